//! A line between two processes that can be broken in every way a network breaks.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// What happens to what is said over the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Line {
    /// It arrives.
    Good,
    /// It arrives, each part so much later.
    Late(Duration),
    /// So many bytes a second arrive.
    Narrow(u32),
    /// Nothing arrives, and nobody is told: a partition, or a connection that is open at one end.
    Silent,
    /// Half of the next part arrives, and then both ends find the connection reset.
    Reset,
    /// Every connection is closed, and new ones are at once.
    Cut,
}

/// A line to one address, for any number of connections.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    line: watch::Sender<Line>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A good line to `to`.
    pub(crate) async fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (line, state) = watch::channel(Line::Good);
        let task = tokio::spawn(accept(listener, to, state));
        Self { address, line, task }
    }

    pub(crate) fn is(&self, line: Line) {
        self.line.send_replace(line);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, to: SocketAddr, state: watch::Receiver<Line>) {
    // Dropped with this task, and the connections with them.
    let mut lines = tokio::task::JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        if *state.borrow() == Line::Cut {
            continue;
        }
        // The other end may be gone for good: then so is this one.
        let Ok(far) = TcpStream::connect(to).await else { continue };
        lines.spawn(connection(near, far, state.clone()));
    }
}

/// One connection, until one end closes it or the line does.
async fn connection(near: TcpStream, far: TcpStream, mut state: watch::Receiver<Line>) {
    for end in [&near, &far] {
        end.set_nodelay(true).unwrap();
    }
    let (near_in, near_out) = near.into_split();
    let (far_in, far_out) = far.into_split();
    // Whichever ends first takes the other along, and both sockets.
    tokio::select! {
        () = carry(near_in, far_out, state.clone()) => {}
        () = carry(far_in, near_out, state.clone()) => {}
        _ = state.wait_for(|line| *line == Line::Cut) => {}
    }
}

/// Carries one direction.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<Line>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else { return };
        let read_at = Instant::now();
        let mut part = &buffer[..length];
        while !part.is_empty() {
            let line = *state.borrow_and_update();
            let now = match line {
                Line::Good => part.len(),
                Line::Late(by) => {
                    sleep_until(read_at + by).await;
                    part.len()
                }
                Line::Narrow(bytes) => {
                    sleep(Duration::from_millis(100)).await;
                    part.len().min((bytes / 10).max(1) as usize)
                }
                Line::Silent => {
                    if state.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                Line::Reset => {
                    to.write_all(&part[..part.len() / 2]).await.ok();
                    for end in [to.as_ref(), from.as_ref()] {
                        end.set_zero_linger().ok();
                    }
                    return;
                }
                Line::Cut => return,
            };
            if to.write_all(&part[..now]).await.is_err() {
                return;
            }
            part = &part[now..];
        }
    }
}
