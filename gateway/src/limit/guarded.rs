//! A connection that must speak soon.
//!
//! Guarantees: until so many bytes have come, reading fails when the time is over or the gateway
//! shuts down; from then on it is the connection alone. When it is dropped its place at the door is
//! given back.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::{Place, SPEAK_WITHIN};

/// A connection with a place at a door.
pub struct Guarded<IO> {
    io: IO,
    place: Place,
    /// Gone once it has spoken.
    silence: Option<Pin<Box<Silence>>>,
}

/// The time until a connection must have spoken.
struct Silence {
    /// Bytes that are still to come.
    missing: usize,
    over: Pin<Box<tokio::time::Sleep>>,
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<IO> Guarded<IO> {
    /// `io`, which must say `words` bytes within [`SPEAK_WITHIN`] and before `shutdown`.
    pub fn new(io: IO, place: Place, words: usize, shutdown: &CancellationToken) -> Self {
        let silence = Box::pin(Silence {
            missing: words,
            over: Box::pin(tokio::time::sleep(SPEAK_WITHIN)),
            shutdown: Box::pin(shutdown.clone().cancelled_owned()),
        });
        Self { io, place, silence: Some(silence) }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Guarded<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        let Some(silence) = &mut self.silence else { return read };
        silence.missing = silence.missing.saturating_sub(buf.filled().len() - before);
        if silence.missing == 0 {
            self.silence = None;
        } else if read.is_pending() {
            if silence.shutdown.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if silence.over.as_mut().poll(cx).is_ready() {
                self.place.door().refuse("silent");
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Guarded<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl<IO: Connected> Connected for Guarded<IO> {
    type ConnectInfo = IO::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}
