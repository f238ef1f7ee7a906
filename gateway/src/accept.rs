//! Connections as they come in, past their handshake.
//!
//! Guarantees: a connection has its place at the port's door before its handshake, and must say
//! its first words soon after it. Handshakes go on beside each other, each for `HANDSHAKE_WITHIN`
//! at most, and none of them keeps another connection from being accepted; one that fails or panics
//! costs only its own connection and is counted. Every handshake uses the certificates that are valid
//! then; connections that are up are not touched when those change.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::contain;
use crate::limit::guarded::Guarded;
use crate::limit::{Admitted, PREFACE};
use crate::refusal::Refusals;
use crate::reload::Reloaded;
use crate::tls::{self, Server};

/// How long a client may take for its handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Handshakes at once; a connection beyond that is closed.
const MAX_HANDSHAKES: usize = 1_024;
/// Connections that are past their handshake and wait to be taken.
const QUEUE: usize = 64;

/// How one port takes connections.
#[derive(Clone)]
pub struct Entrance {
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

/// The connections of `admitted`, for as long as the stream is held, and what takes them and must
/// be run beside it. At `shutdown` those that have said nothing are closed.
pub fn incoming(
    admitted: impl Stream<Item = Admitted> + Send + 'static,
    entrance: Entrance,
    panics: contain::Counts,
    shutdown: CancellationToken,
) -> (impl Future<Output = ()> + Send, impl Stream<Item = Guarded<Conn>>) {
    let (taken, conns) = mpsc::channel(QUEUE);
    (accept(admitted, entrance, panics, taken, shutdown), ReceiverStream::new(conns))
}

async fn accept(
    admitted: impl Stream<Item = Admitted>,
    entrance: Entrance,
    panics: contain::Counts,
    taken: mpsc::Sender<Guarded<Conn>>,
    shutdown: CancellationToken,
) {
    let Entrance { name, tls, refusals } = entrance;
    // They end with this task.
    let mut handshakes = JoinSet::new();
    let mut admitted = pin!(admitted);
    loop {
        let next = tokio::select! {
            next = admitted.next() => next,
            Some(ended) = handshakes.join_next() => {
                if let Some(Ok(panic)) = ended.err().map(JoinError::try_into_panic) {
                    panics.panicked(name, &*panic);
                }
                continue;
            }
            () = taken.closed() => return,
        };
        let Some(Admitted { stream, peer: address, place }) = next else { return };
        let Some(tls) = &tls else {
            let conn = Conn { stream: Wire::Plain(stream), peer: Peer { address, names: None } };
            if taken.send(Guarded::new(conn, place, PREFACE, &shutdown)).await.is_err() {
                return;
            }
            continue;
        };
        if handshakes.len() >= MAX_HANDSHAKES {
            let why = format!("{MAX_HANDSHAKES} handshakes at once");
            refusals.refuse(name, "handshakes", &address.to_string(), &why);
            continue;
        }
        let acceptor = TlsAcceptor::from(tls.get().config.clone());
        let (refusals, taken, shutdown) = (refusals.clone(), taken.clone(), shutdown.clone());
        handshakes.spawn(async move {
            let (reason, why) = match timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => {
                    let conn = Conn::secured(stream, address);
                    // If the server went away, so does the connection.
                    taken.send(Guarded::new(conn, place, PREFACE, &shutdown)).await.ok();
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
