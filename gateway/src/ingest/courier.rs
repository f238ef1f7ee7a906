//! One stream's way back to the agent: the welcome, then its node's brief whenever that changes.
//!
//! Guarantees: a brief is made when there is room to send it and not before, so an agent that
//! reads slowly gets the newest and costs no memory; equal briefs are sent once; at most one goes
//! out per `PAUSE`. Versions count from 1 with each stream.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use proto::brief::to_wire;
use proto::uplink::gateway_message::Body;
use proto::uplink::{GatewayMessage, Welcome};
use shared::identity::NodeName;
use shared::process::VERSION;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::brief::brief;
use crate::directory::Directory;
use crate::directory::by_node::OfNode;
use crate::engine::Asks;
use crate::fleet::Fleet;

/// Briefs of one stream are at least this far apart.
const PAUSE: Duration = Duration::from_millis(250);
/// How often it is looked whether there are more sessions than the agent was told.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// Fewer sessions than these need no spreading.
const CROWD: u32 = 64;

/// Where one stream's messages to the agent come from.
pub(super) struct Courier {
    directory: Arc<Directory>,
    asks: watch::Receiver<Arc<Asks>>,
    briefs: Counter,
    fleet: Arc<Fleet>,
    replies: mpsc::Sender<Result<GatewayMessage, Status>>,
}

/// What the agent was told last.
#[derive(Default)]
struct Told {
    version: u64,
    /// Stands for the brief itself, of which thousands of streams would each keep one.
    digest: u64,
    of_node: OfNode,
    asks: u64,
}

impl Courier {
    /// A courier that counts the `briefs` it sends.
    pub(super) fn new(
        directory: Arc<Directory>,
        asks: watch::Receiver<Arc<Asks>>,
        briefs: Counter,
        fleet: Arc<Fleet>,
        replies: mpsc::Sender<Result<GatewayMessage, Status>>,
    ) -> Self {
        Self { directory, asks, briefs, fleet, replies }
    }

    /// Sends the welcome and keeps the agent told about `node`, until the agent is gone.
    pub(super) async fn carry(mut self, welcome: Welcome, node: NodeName) {
        let mut crowd = welcome.sessions;
        if !self.welcome(welcome).await {
            return;
        }
        let mut changes = self.directory.changes();
        let mut told = Told::default();
        loop {
            changes.mark_unchanged();
            self.asks.mark_unchanged();
            if !self.tell(&node, &mut told).await {
                return;
            }
            tokio::time::sleep(PAUSE).await;
            let changed = tokio::select! {
                changed = changes.changed() => changed,
                changed = self.asks.changed() => changed,
                () = tokio::time::sleep(COUNT_EVERY) => Ok(()),
            };
            // After a restart all come at once, and the first of them met nobody. It is told anew
            // at a quarter more: who knows of half the others comes back in half the time.
            let sessions = self.fleet.crowd();
            if sessions >= CROWD && sessions - sessions / 5 >= crowd {
                crowd = sessions;
                if !self.welcome(Welcome { version: VERSION.into(), sessions }).await {
                    return;
                }
            }
            if changed.is_err() {
                return;
            }
        }
    }

    /// Says how many sessions there are; false if nobody listens any more.
    async fn welcome(&self, welcome: Welcome) -> bool {
        let message = GatewayMessage { body: Some(Body::Welcome(welcome)) };
        self.replies.send(Ok(message)).await.is_ok()
    }

    /// Tells what is new; false if nobody listens any more.
    async fn tell(&self, node: &NodeName, told: &mut Told) -> bool {
        let Some(snapshot) = self.directory.snapshot() else { return true };
        let is_same = told.of_node.is_same_as(&snapshot.node(node))
            && told.asks == self.asks.borrow().version();
        if told.version > 0 && is_same {
            return true;
        }
        drop(snapshot);
        let Ok(room) = self.replies.reserve().await else { return false };
        // While there was no room it may have changed again.
        let Some(snapshot) = self.directory.snapshot() else { return true };
        let asks = self.asks.borrow().clone();
        let brief = brief(&snapshot, node, |pod| asks.target(&snapshot, pod));
        (told.of_node, told.asks) = (snapshot.node(node), asks.version());
        let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one(&brief);
        if told.version == 0 || told.digest != digest {
            (told.version, told.digest) = (told.version + 1, digest);
            let message = to_wire(told.version, &brief);
            room.send(Ok(GatewayMessage { body: Some(Body::Brief(message)) }));
            self.briefs.inc();
        }
        true
    }
}
