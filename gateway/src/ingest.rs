//! The agents' stream: check, decode, hand to the fleet.
//!
//! Guarantees: Hello comes first and once, an inventory before the first sample; what breaks that
//! order, or is larger than a node can be, ends the stream with a status that says so. A bad
//! element costs only itself, and is counted. Who sends more than it may is read more slowly; a
//! connection has no more streams than it may. Refused streams and those that begin are logged now
//! and then only. A stream ends with OK at shutdown. An agent is told
//! about the node it said Hello for and no other.

/// One stream's way back to the agent.
mod courier;

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use proto::convert::{self, Link};
use proto::uplink::agent_message::Body;
use proto::uplink::uplink_server::Uplink;
use proto::uplink::{AgentMessage, GatewayMessage, Hello, Welcome};
use shared::identity::NodeName;
use shared::process::{Clock, VERSION};
use shared::time::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{debug, info, warn};

use self::courier::Courier;
use crate::accept::Peer;
use crate::contain::{self, Connection, Life, Over};
use crate::directory::Directory;
use crate::engine::Asks;
use crate::fleet::view::Intervals;
use crate::fleet::{Fleet, Session};
use crate::identity::{Guard, Identity, Refused as Denied};
use crate::limit::rate::Rate;
use crate::refusal::Refusals;
use crate::seldom::Seldom;

/// How long an agent may take to say who it is, and to hear why it is refused.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// The name of this port in logs and metrics.
pub const PORT: &str = "agents";
/// Sampling intervals an agent may have.
const INTERVALS_MS: std::ops::RangeInclusive<u32> = 100..=60_000;

/// The service agents push to.
pub struct Ingest {
    fleet: Arc<Fleet>,
    directory: Arc<Directory>,
    asks: watch::Receiver<Arc<Asks>>,
    clock: Clock,
    counts: Counts,
    door: Door,
    shutdown: CancellationToken,
}

/// Who may push.
#[derive(Clone)]
pub struct Door {
    /// What agents have to show.
    pub guard: Arc<Guard>,
    /// Where those are counted that were turned away.
    pub refusals: Refusals,
}

impl Door {
    fn refuse(&self, denied: Denied, peer: &str) -> Status {
        let Denied { reason, status } = denied;
        self.refusals.refuse(PORT, reason, peer, status.message());
        status
    }
}

/// What is counted about the agents' messages.
#[derive(Clone, Default)]
pub struct Counts {
    messages: Counter,
    briefs: Counter,
    refused: Family<Refused, Counter>,
    slowed: Counter,
    contained: contain::Counts,
    said: Said,
}

/// What was lately said of streams, so that nobody fills the log.
#[derive(Clone, Default)]
struct Said {
    connected: Seldom<NodeName>,
    /// By number of the status.
    ended: Seldom<i32>,
    parts: Seldom<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    what: &'static str,
}

impl Counts {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let messages = self.messages.clone();
        registry.register("uplink_messages", "Messages received from agents", messages);
        let briefs = self.briefs.clone();
        registry.register("uplink_briefs", "Node briefs sent to agents", briefs);
        let what = "Streams and elements of messages refused, by what was refused";
        registry.register("uplink_refused", what, self.refused.clone());
        let what = "Messages read later because their agent sends more than 50 a second";
        registry.register("uplink_slowed", what, self.slowed.clone());
    }

    /// The same, with panics of streams counted in `contained`.
    #[must_use]
    pub fn contained(self, contained: contain::Counts) -> Self {
        Self { contained, ..self }
    }

    fn refuse(&self, what: &'static str, count: usize) {
        self.refused.get_or_create(&Refused { what }).inc_by(count as u64);
    }
}

#[cfg(test)]
impl reference::Specimens for Counts {
    fn specimens(&self) {
        self.refused.specimens();
    }
}

impl Ingest {
    /// Hands what agents push to `fleet`, and tells them what `directory` knows of their node and
    /// what is asked of its engines.
    pub fn new(
        fleet: Arc<Fleet>,
        directory: Arc<Directory>,
        asks: watch::Receiver<Arc<Asks>>,
        clock: Clock,
        counts: Counts,
        shutdown: CancellationToken,
    ) -> Self {
        let door = Door { guard: Arc::new(Guard::Open), refusals: Refusals::default() };
        Self { fleet, directory, asks, clock, counts, door, shutdown }
    }

    /// The same, for those only whom `door` lets in.
    #[must_use]
    pub fn with_door(self, door: Door) -> Self {
        Self { door, ..self }
    }
}

#[tonic::async_trait]
impl Uplink for Ingest {
    type PushStream = ReceiverStream<Result<GatewayMessage, Status>>;

    async fn push(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::PushStream>, Status> {
        let connection = request.extensions().get::<Connection>();
        let place = connection.map(Connection::open_stream).transpose();
        let place = place.map_err(|_| {
            self.counts.contained.shed(PORT, Over::Streams);
            Status::resource_exhausted("this connection has as many streams as it may have")
        })?;
        let known = request.extensions().get::<Peer>().cloned();
        let peer = known.as_ref().map_or_else(String::new, |peer| peer.address.to_string());
        let admitted = self.door.guard.admit(known.as_ref(), request.metadata()).await;
        let identity = admitted.map_err(|denied| self.door.refuse(denied, &peer))?;
        let (replies, stream) = mpsc::channel(1);
        // The connection's own, which ends with the gateway: thousands would meet at that one's lock.
        let life = connection.map(|it| it.life().clone());
        let life = life.unwrap_or_else(|| self.shutdown.child_token());
        // In one place of its own: moved from future to future it would be kept several times over.
        let mut conversation = Box::new(Conversation {
            messages: request.into_inner(),
            life,
            clock: self.clock,
            fleet: self.fleet.clone(),
            counts: self.counts.clone(),
            directory: self.directory.clone(),
            door: self.door.clone(),
            identity,
            peer: peer.clone(),
            session: None,
            link: None,
            rate: Rate::default(),
            refusals_logged: false,
        });
        let (directory, asks) = (self.directory.clone(), self.asks.clone());
        let (briefs, fleet) = (self.counts.briefs.clone(), self.fleet.clone());
        let courier = Courier::new(directory, asks, briefs, fleet, replies.clone());
        let (contained, end) = (self.counts.contained.clone(), replies.clone());
        let said = self.counts.said.ended.clone();
        let listening = async move {
            let _place = place;
            match conversation.listen(courier).await {
                Ok(()) => debug!(peer, "agent stream ended"),
                Err(status) => {
                    let (code, error) = (status.code(), status.message());
                    match said.unsaid(code.into(), Instant::now()) {
                        Some(more) => info!(peer, ?code, error, more, "agent stream refused"),
                        None => debug!(peer, ?code, error, "agent stream refused"),
                    }
                    // The agent may be gone already, or not read.
                    replies.send_timeout(Err(status), HELLO_WITHIN).await.ok();
                }
            }
        };
        tokio::spawn(contain::stream(contained, "ingest", end, listening));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// What one agent has said so far.
struct Conversation {
    messages: Streaming<AgentMessage>,
    /// Of its connection.
    life: Life,
    clock: Clock,
    fleet: Arc<Fleet>,
    counts: Counts,
    directory: Arc<Directory>,
    door: Door,
    identity: Identity,
    peer: String,
    session: Option<Session>,
    link: Option<Link>,
    rate: Rate,
    refusals_logged: bool,
}

impl Conversation {
    /// Takes what comes, until the agent leaves.
    async fn listen(&mut self, courier: Courier) -> Result<(), Status> {
        let first = tokio::time::timeout(HELLO_WITHIN, self.messages.message());
        let Some(first) = self.life.run_until_cancelled(first).await else { return Ok(()) };
        let first = first.map_err(|_| {
            self.refused("order", Status::deadline_exceeded("no Hello within 10 s"))
        })?;
        let Some(hello) = self.came(first)? else { return Ok(()) };
        let welcome = self.take(hello, self.clock.now())?;
        let Some((welcome, session)) = welcome.zip(self.session.as_ref()) else { return Ok(()) };
        // On its own, so that an agent that does not read is listened to all the same.
        let carrying = tokio::spawn(courier.carry(welcome, session.node().clone()));
        let _briefing = AbortOnDropHandle::new(carrying);
        let superseded = session.superseded.clone();
        if let Some(ended) = superseded.run_until_cancelled(self.go_on()).await {
            return ended;
        }
        if self.life.is_cancelled() {
            return Ok(());
        }
        let status = Status::aborted("newer streams of this node took over");
        Err(self.refused("session", status))
    }

    /// Takes what comes after Hello.
    async fn go_on(&mut self) -> Result<(), Status> {
        loop {
            let next = self.messages.message().await;
            let Some(message) = self.came(next)? else { return Ok(()) };
            let now = self.clock.now();
            let wait = self.rate.take(now);
            self.take(message, now)?;
            if !wait.is_zero() {
                // Not refused: flow control slows the agent down, and its last word stays.
                self.counts.slowed.inc();
                tokio::time::sleep(wait).await;
            }
        }
    }

    /// The message that came; none if the agent left, or its connection did.
    fn came(
        &self,
        next: Result<Option<AgentMessage>, Status>,
    ) -> Result<Option<AgentMessage>, Status> {
        match next {
            Ok(message) => Ok(message),
            // What cannot be decoded, or is too large, is the agent's fault.
            Err(status) if matches!(status.code(), Code::OutOfRange | Code::Internal) => {
                Err(self.refused("message", status))
            }
            Err(status) => {
                debug!(error = status.message(), "agent stream broke");
                Ok(None)
            }
        }
    }

    /// Takes one message; the welcome is the answer to Hello.
    fn take(&mut self, message: AgentMessage, now: Timestamp) -> Result<Option<Welcome>, Status> {
        self.counts.messages.inc();
        match (message.body, &self.session, &self.link) {
            (Some(Body::Hello(hello)), None, _) => self.hello(hello).map(Some),
            (Some(Body::Hello(_)), Some(_), _) => Err(self.out_of_order("Hello came twice")),
            (_, None, _) => Err(self.out_of_order("Hello must come first")),
            (Some(Body::Inventory(inventory)), Some(_), _) => {
                let (link, refusals) = Link::open(inventory).map_err(|error| {
                    self.refused("inventory", Status::resource_exhausted(error.to_string()))
                })?;
                self.report("inventory element", &refusals);
                self.link = Some(link);
                Ok(None)
            }
            (Some(Body::Sample(_)), Some(_), None) => {
                Err(self.out_of_order("an Inventory must come before a Sample"))
            }
            (Some(Body::Sample(sample)), Some(session), Some(link)) => {
                match link.sample(sample) {
                    Ok((sample, refusals)) => {
                        session.apply(link.inventory(), sample, now);
                        self.report("sample element", &refusals);
                    }
                    Err(error) => self.report("sample", &[error.to_string()]),
                }
                Ok(None)
            }
            // A newer agent may say what this gateway does not know.
            (None, Some(_), _) => Ok(None),
        }
    }

    fn refused(&self, what: &'static str, status: Status) -> Status {
        self.counts.refuse(what, 1);
        status
    }

    fn out_of_order(&self, why: &str) -> Status {
        self.refused("order", Status::invalid_argument(why))
    }

    fn hello(&mut self, hello: Hello) -> Result<Welcome, Status> {
        let refuse = |why: String| {
            self.counts.refuse("hello", 1);
            Err(Status::invalid_argument(why))
        };
        let length = hello.node.len();
        if !(1..=convert::MAX_NAME).contains(&length) {
            return refuse(format!("node name of {length} bytes; 1 to {} are", convert::MAX_NAME));
        }
        if !INTERVALS_MS.contains(&hello.interval_ms) {
            return refuse(format!("interval of {} ms; 100 to 60000 are", hello.interval_ms));
        }
        let every = |ms: u32| Duration::from_millis(u64::from(ms));
        let engines = match hello.engine_interval_ms {
            0 => hello.interval_ms,
            ms if INTERVALS_MS.contains(&ms) => ms,
            ms => return refuse(format!("engine interval of {ms} ms; 100 to 60000 are")),
        };
        let intervals = Intervals { samples: every(hello.interval_ms), engines: every(engines) };
        self.identity
            .may_speak_for(&hello.node, &self.directory)
            .map_err(|denied| self.door.refuse(denied, &self.peer))?;
        let version: String = hello.version.chars().take(64).collect();
        let node = hello.node.into();
        let session = self
            .fleet
            // One to wait for, be it that newer streams take over or that the connection is to end.
            .open_until(self.life.child_token(), node, intervals, version.into())
            .map_err(|full| self.refused("node", Status::resource_exhausted(full.to_string())))?;
        let node = session.node();
        match self.counts.said.connected.unsaid(node.clone(), Instant::now()) {
            Some(more) => info!(%node, more, "agent connected"),
            None => debug!(%node, "agent connected"),
        }
        self.session = Some(session);
        Ok(Welcome { version: VERSION.into(), sessions: self.fleet.crowd() })
    }

    /// Counts what was left out; says it once a stream at most.
    fn report(&mut self, what: &'static str, refusals: &[String]) {
        let Some(first) = refusals.first() else {
            return;
        };
        self.counts.refuse(what, refusals.len());
        if !std::mem::replace(&mut self.refusals_logged, true) {
            let node = self.session.as_ref().map(|session| session.node().to_string());
            let count = refusals.len();
            match self.counts.said.parts.unsaid(what, Instant::now()) {
                Some(more) => warn!(node, what, count, first, more, "parts of a message refused"),
                None => debug!(node, what, count, first, "parts of a message refused"),
            }
        }
    }
}
