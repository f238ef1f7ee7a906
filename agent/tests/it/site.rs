//! An HTTP server that sends exactly the bytes it is told to, good ones or not.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use shared::brief::EnginePage;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What it sends once it has read a request.
#[derive(Clone)]
pub(crate) enum Answer {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// These bytes, then the others for ever.
    Endless(Vec<u8>, Vec<u8>),
    /// These bytes, one every 20 ms, then nothing.
    Drip(Vec<u8>),
    /// These bytes after a while.
    Late(Duration, Vec<u8>),
}

pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    requests: Arc<Mutex<Vec<String>>>,
    most: Arc<AtomicUsize>,
    _accepting: tokio_util::task::AbortOnDropHandle<()>,
}

impl Site {
    pub(crate) async fn start(answer: Answer) -> Self {
        Self::start_on("127.0.0.1:0", answer).await.unwrap()
    }

    pub(crate) async fn start_on(listen: &str, answer: Answer) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let answer = Arc::new(Mutex::new(answer));
        let (requests, most) = (Arc::default(), Arc::default());
        let serving = Serving {
            answer: answer.clone(),
            requests: Arc::clone(&requests),
            now: Arc::default(),
            most: Arc::clone(&most),
        };
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        let accepting = tokio_util::task::AbortOnDropHandle::new(accepting);
        Ok(Self { address, answer, requests, most, _accepting: accepting })
    }

    pub(crate) fn says(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }

    /// Heads of the requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// The most connections there were at a time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    pub(crate) fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    pub(crate) fn page(&self) -> EnginePage {
        EnginePage { port: self.address.port(), path: "/metrics".into() }
    }
}

#[derive(Clone)]
struct Serving {
    answer: Arc<Mutex<Answer>>,
    requests: Arc<Mutex<Vec<String>>>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Serving {
    async fn serve(self, stream: TcpStream) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        // The other end hangs up on many of these.
        drop(self.answer(stream).await);
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    async fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        self.requests.lock().push(String::from_utf8_lossy(&head).into_owned());
        let answer = self.answer.lock().clone();
        match answer {
            Answer::Bytes(bytes) => stream.write_all(&bytes).await?,
            Answer::Endless(first, then) => {
                stream.write_all(&first).await?;
                loop {
                    stream.write_all(&then).await?;
                }
            }
            Answer::Drip(bytes) => {
                for byte in bytes {
                    stream.write_all(&[byte]).await?;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                std::future::pending::<()>().await;
            }
            Answer::Late(pause, bytes) => {
                tokio::time::sleep(pause).await;
                stream.write_all(&bytes).await?;
            }
        }
        stream.shutdown().await
    }
}

/// A whole response of one status and type.
pub(crate) fn response(status: &str, kind: &str, body: impl AsRef<[u8]>) -> Answer {
    let body = body.as_ref();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Answer::Bytes([head.as_bytes(), body].concat())
}

/// A page of metrics.
pub(crate) fn page(text: &str) -> Answer {
    response("200 OK", "text/plain; version=0.0.4; charset=utf-8", text)
}
