//! A line to the gateway that breaks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// A line to the gateway that can be cut or held up, which a closed socket cannot show.
pub(crate) struct Cable {
    pub(crate) address: SocketAddr,
    /// While it is set nothing comes through, in either direction.
    held: Arc<std::sync::atomic::AtomicBool>,
    task: JoinHandle<()>,
}

impl Cable {
    /// A line to `to`, for any number of connections.
    pub(crate) async fn to(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let held = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let hold = held.clone();
        let task = tokio::spawn(async move {
            let mut lines = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(to).await.expect("the gateway accepts");
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                lines.spawn(carry(near_in, far_out, hold.clone()));
                lines.spawn(carry(far_in, near_out, hold.clone()));
            }
        });
        Self { address, held, task }
    }

    /// Nothing comes through any more, and nobody is told.
    pub(crate) fn hold(&self) {
        self.held.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Both ends find their connection broken.
    pub(crate) fn cut(&self) {
        self.task.abort();
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.cut();
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    held: Arc<std::sync::atomic::AtomicBool>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        while held.load(std::sync::atomic::Ordering::SeqCst) {
            sleep(Duration::from_millis(20)).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
