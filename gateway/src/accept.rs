//! Connections as they come in, past their handshake.
//!
//! Guarantees: handshakes go on beside each other, each for `HANDSHAKE_WITHIN` at most, and none
//! of them keeps another connection from being accepted; one that fails costs only its own
//! connection and is counted. Every handshake uses the certificates that are valid then;
//! connections that are up are not touched when those change.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tracing::warn;

use crate::refusal::Refusals;
use crate::reload::Reloaded;
use crate::tls::{self, Server};

/// How long a client may take for its handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Handshakes at once; a connection beyond that is closed.
const MAX_HANDSHAKES: usize = 1_024;
/// Connections that are past their handshake and wait to be taken.
const QUEUE: usize = 64;
/// Pause after an accept that failed for want of descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);

/// How one port takes connections.
#[derive(Clone)]
pub struct Port {
    /// Its name in logs and metrics.
    pub name: &'static str,
    /// With TLS, or in plaintext.
    pub tls: Option<Arc<Reloaded<Server>>>,
    /// Where those are counted that were turned away.
    pub refusals: Refusals,
}

/// Who is at the other end of a connection; in the extensions of its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it called from.
    pub address: SocketAddr,
    /// The names its certificate was issued for; `None` if it showed none.
    pub names: Option<Arc<[String]>>,
}

/// One connection.
pub struct Conn {
    stream: Wire,
    peer: Peer,
}

enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The connections that `listener` gets, for as long as the stream is held.
pub fn incoming(listener: TcpListener, port: Port) -> impl Stream<Item = io::Result<Conn>> + use<> {
    let (taken, conns) = mpsc::channel(QUEUE);
    tokio::spawn(accept(listener, port, taken));
    ReceiverStream::new(conns)
}

async fn accept(listener: TcpListener, port: Port, taken: mpsc::Sender<io::Result<Conn>>) {
    let at_once = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    let mut failures = 0_u32;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = taken.closed() => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                failures += 1;
                if failures.is_power_of_two() {
                    warn!(port = port.name, %error, failures, "no connection can be accepted");
                }
                sleep(PAUSE).await;
                continue;
            }
        };
        failures = 0;
        // Answers are small and must not wait for more; without it they are only slower.
        stream.set_nodelay(true).ok();
        let Some(tls) = &port.tls else {
            let peer = Peer { address, names: None };
            if taken.send(Ok(Conn { stream: Wire::Plain(stream), peer })).await.is_err() {
                return;
            }
            continue;
        };
        let refusals = port.refusals.clone();
        let Ok(permit) = at_once.clone().try_acquire_owned() else {
            let why = format!("{MAX_HANDSHAKES} handshakes at once");
            refusals.refuse(port.name, "handshakes", &address.to_string(), &why);
            continue;
        };
        let acceptor = TlsAcceptor::from(tls.get().config.clone());
        let (name, taken) = (port.name, taken.clone());
        tokio::spawn(async move {
            let handshake = timeout(HANDSHAKE_WITHIN, acceptor.accept(stream));
            let shaken = tokio::select! {
                shaken = handshake => shaken,
                () = taken.closed() => return,
            };
            drop(permit);
            let (reason, why) = match shaken {
                Ok(Ok(stream)) => {
                    // The server went away; so does the connection.
                    taken.send(Ok(Conn::secured(stream, address))).await.ok();
                    return;
                }
                Ok(Err(error)) => match tls::refused(&error) {
                    Some(refused) => refused,
                    None => return refusals.count(name, "closed"),
                },
                Err(_) => ("slow", format!("no handshake within {HANDSHAKE_WITHIN:?}")),
            };
            refusals.refuse(name, reason, &address.to_string(), &why);
        });
    }
}

impl Conn {
    fn secured(stream: TlsStream<TcpStream>, address: SocketAddr) -> Self {
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let names = certificate.map(|certificate| tls::names(certificate).into());
        Self { stream: Wire::Tls(Box::new(stream)), peer: Peer { address, names } }
    }
}

impl Connected for Conn {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Wire::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Wire::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Wire::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
