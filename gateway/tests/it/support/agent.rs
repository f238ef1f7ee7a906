//! Agents that push: one that keeps the rules, and the bare stream.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use proto::uplink::agent_message::Body;
use proto::uplink::uplink_client::UplinkClient;
use proto::uplink::{AgentMessage, GatewayMessage, Welcome, gateway_message};
use shared::brief::Brief;
use shared::metric::Metric;
use shared::reading::Reading;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::node::Node;
use super::{INTERVAL, endpoint, soon};

/// An agent that pushes what its node has every 100 ms, over its own connection.
pub(crate) struct TestAgent {
    node: Arc<Mutex<Node>>,
    changed: Arc<Notify>,
    leave: CancellationToken,
    task: JoinHandle<Result<(), Status>>,
}

impl TestAgent {
    pub(crate) async fn start(address: SocketAddr, node: Node) -> Self {
        let mut uplink = Uplink::open(address).await;
        uplink.say(node.hello()).await;
        uplink.welcome().await.expect("the agent is welcome");
        uplink.say(node.inventory_message(1)).await;
        uplink.say(node.sample_message(1)).await;
        let node = Arc::new(Mutex::new(node));
        let changed = Arc::new(Notify::new());
        let leave = CancellationToken::new();
        let task = tokio::spawn(push(uplink, node.clone(), changed.clone(), leave.clone()));
        Self { node, changed, leave, task }
    }

    /// Changes what the node has or reads; it is pushed at once.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Node)) {
        change(&mut self.node.lock());
        self.changed.notify_one();
    }

    /// Changes one GPU's utilisation.
    pub(crate) fn reads(&self, uuid: &str, utilization: f64) {
        self.change(|node| {
            let readings = &mut node.gpu(uuid).readings;
            readings.insert(Metric::GpuUtilization, Reading::Ok(utilization));
        });
    }

    /// Leaves as on SIGTERM: ends its stream, and tells how the gateway ended its own.
    pub(crate) async fn leave(self) -> Result<(), Status> {
        self.leave.cancel();
        self.ended().await
    }

    /// Waits until the gateway ends the stream, and tells how.
    pub(crate) async fn ended(self) -> Result<(), Status> {
        soon("the agent's stream ends", self.task).await.expect("the agent does not panic")
    }

    /// Dies: its connection is gone without a word.
    pub(crate) async fn die(self) {
        self.task.abort();
        self.task.await.expect_err("it was aborted");
    }
}

async fn push(
    mut uplink: Uplink,
    node: Arc<Mutex<Node>>,
    changed: Arc<Notify>,
    leave: CancellationToken,
) -> Result<(), Status> {
    let (mut generation, mut known) = (1, node.lock().inventory());
    loop {
        tokio::select! {
            () = leave.cancelled() => return uplink.end().await,
            reply = uplink.replies.message() => match reply? {
                // What it is told of its node does not concern it.
                Some(_) => continue,
                None => return Ok(()),
            },
            () = changed.notified() => {}
            () = sleep(INTERVAL) => {}
        }
        let now = node.lock().clone();
        if now.frozen {
            continue;
        }
        let inventory = now.inventory();
        if inventory != known {
            (generation, known) = (generation + 1, inventory);
            uplink.say(now.inventory_message(generation)).await;
        }
        uplink.say(now.sample_message(generation)).await;
    }
}

/// The bare stream, for agents that do not keep the rules.
pub(crate) struct Uplink {
    pub(crate) messages: Option<mpsc::Sender<AgentMessage>>,
    pub(crate) replies: Streaming<GatewayMessage>,
}

impl Uplink {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let channel = soon("the agent connects", endpoint(address).connect()).await;
        Self::on(channel.expect("the agent can connect")).await
    }

    pub(crate) async fn on(channel: Channel) -> Self {
        let (messages, stream) = mpsc::channel(16);
        let mut client = UplinkClient::new(channel);
        let call = client.push(ReceiverStream::new(stream));
        let replies = soon("Push is answered", call).await;
        Self { messages: Some(messages), replies: replies.expect("Push opens").into_inner() }
    }

    /// Says something; whether anyone still listens is seen in how the stream ends.
    pub(crate) async fn say(&mut self, body: Body) {
        self.say_raw(AgentMessage { body: Some(body) }).await;
    }

    pub(crate) async fn say_raw(&mut self, message: AgentMessage) {
        if let Some(messages) = &self.messages {
            messages.send(message).await.ok();
        }
    }

    /// Waits for the gateway's answer to Hello.
    pub(crate) async fn welcome(&mut self) -> Result<Welcome, Status> {
        let reply = soon("Welcome", self.replies.message()).await?;
        match reply.and_then(|reply| reply.body) {
            Some(gateway_message::Body::Welcome(welcome)) => Ok(welcome),
            other => panic!("instead of a Welcome: {other:?}"),
        }
    }

    /// Waits for the next brief: its version and what it says.
    pub(crate) async fn brief(&mut self) -> Result<(u64, Brief), Status> {
        let reply = soon("a brief", self.replies.message()).await?;
        match reply.and_then(|reply| reply.body) {
            Some(gateway_message::Body::Brief(message)) => {
                let version = message.version;
                let (brief, refusals) = proto::brief::from_wire(message);
                assert_eq!(refusals, Vec::<String>::new(), "an agent takes all of it");
                Ok((version, brief))
            }
            other => panic!("instead of a Brief: {other:?}"),
        }
    }

    /// Waits until the gateway ends the stream, and tells how.
    pub(crate) async fn ended(&mut self) -> Result<(), Status> {
        let end = async {
            while self.replies.message().await?.is_some() {}
            Ok(())
        };
        soon("the gateway ends the stream", end).await
    }

    /// Ends its own half, and tells how the gateway ends the other.
    pub(crate) async fn end(&mut self) -> Result<(), Status> {
        self.messages = None;
        self.ended().await
    }
}
