//! Real neighbours and small builders for the tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use proto::uplink::agent_message::Body;
use proto::uplink::uplink_server::{self, UplinkServer};
use proto::uplink::{AgentMessage, Brief, GatewayMessage, Welcome, gateway_message};
use shared::time::Timestamp;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// What the gateway heard: the number of the stream, and a message or its end.
pub(crate) type Heard = (u32, Option<Body>);

/// What the gateway does with its streams.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mood {
    Reading,
    Deaf,
}

/// A gateway of the tests: a tonic server of the real service on a port of its own.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    pub(crate) mood: watch::Sender<Mood>,
    /// What every stream is told of its node, also anew when it changes.
    pub(crate) brief: watch::Sender<Option<Brief>>,
    /// Breaks one stream per notification.
    pub(crate) hang_up: Arc<Notify>,
    /// `authorization` of each stream.
    pub(crate) authorizations: Arc<Mutex<Vec<Option<String>>>>,
    heard: mpsc::UnboundedReceiver<Heard>,
}

impl Gateway {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mood, moods) = watch::channel(Mood::Reading);
        let (brief, briefs) = watch::channel(None);
        let (hear, heard) = mpsc::unbounded_channel();
        let hang_up = Arc::new(Notify::new());
        let authorizations = Arc::new(Mutex::new(Vec::new()));
        let service = UplinkServer::new(Service {
            moods,
            briefs,
            hang_up: hang_up.clone(),
            authorizations: authorizations.clone(),
            hear,
            streams: AtomicU32::new(0),
        });
        tokio::spawn(
            tonic::transport::Server::builder()
                .initial_stream_window_size(65_536)
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Self { address, mood, brief, hang_up, authorizations, heard }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What is heard next; a test that waits for nothing fails here.
    pub(crate) async fn next(&mut self) -> Heard {
        tokio::time::timeout(Duration::from_secs(20), self.heard.recv())
            .await
            .expect("nothing was heard from the agent")
            .expect("the gateway runs")
    }
}

struct Service {
    moods: watch::Receiver<Mood>,
    briefs: watch::Receiver<Option<Brief>>,
    hang_up: Arc<Notify>,
    authorizations: Arc<Mutex<Vec<Option<String>>>>,
    hear: mpsc::UnboundedSender<Heard>,
    streams: AtomicU32,
}

#[tonic::async_trait]
impl uplink_server::Uplink for Service {
    type PushStream = ReceiverStream<Result<GatewayMessage, Status>>;

    async fn push(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::PushStream>, Status> {
        let authorization = request.metadata().get("authorization");
        let authorization = authorization.map(|value| value.to_str().unwrap().to_owned());
        self.authorizations.lock().push(authorization);
        let stream = self.streams.fetch_add(1, Ordering::Relaxed);
        let (say, said) = mpsc::channel(1);
        let ear = Ear {
            incoming: request.into_inner(),
            stream,
            moods: self.moods.clone(),
            briefs: self.briefs.clone(),
            hang_up: self.hang_up.clone(),
            hear: self.hear.clone(),
            say,
        };
        tokio::spawn(ear.listen());
        Ok(Response::new(ReceiverStream::new(said)))
    }
}

/// One stream, at the gateway's end.
struct Ear {
    incoming: Streaming<AgentMessage>,
    stream: u32,
    moods: watch::Receiver<Mood>,
    briefs: watch::Receiver<Option<Brief>>,
    hang_up: Arc<Notify>,
    hear: mpsc::UnboundedSender<Heard>,
    say: mpsc::Sender<Result<GatewayMessage, Status>>,
}

impl Ear {
    async fn listen(mut self) {
        let welcome =
            gateway_message::Body::Welcome(Welcome { version: "test".into(), sessions: 1 });
        let welcome = GatewayMessage { body: Some(welcome) };
        self.say.send(Ok(welcome)).await.unwrap();
        self.briefs.mark_changed();
        loop {
            let mood = *self.moods.borrow_and_update();
            tokio::select! {
                changed = self.moods.changed() => if changed.is_err() { return },
                Ok(()) = self.briefs.changed() => {
                    let brief = self.briefs.borrow_and_update().clone();
                    let Some(brief) = brief.map(gateway_message::Body::Brief) else { continue };
                    let brief = GatewayMessage { body: Some(brief) };
                    self.say.send(Ok(brief)).await.unwrap();
                }
                () = self.hang_up.notified() => {
                    let broken = Err(Status::unavailable("out for lunch"));
                    self.say.send(broken).await.unwrap();
                    return;
                }
                message = self.incoming.message(), if mood == Mood::Reading => {
                    let body = message.ok().flatten().map(|message| message.body.unwrap());
                    let over = body.is_none();
                    let unread = self.hear.send((self.stream, body)).is_err();
                    if over || unread {
                        return;
                    }
                }
            }
        }
    }
}

/// Log lines written while `run` runs on this thread.
pub(crate) fn logged<T>(run: impl FnOnce() -> T) -> (T, String) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let result = tracing::subscriber::with_default(subscriber, run);
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    (result, text)
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `millis` after the start.
pub(crate) fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}
