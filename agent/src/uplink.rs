//! The newest frame to every gateway replica, one stream per address.
//!
//! Guarantees: every address the gateway's name stands for gets its own stream, which comes back
//! by itself; a break is logged once and a lasting one ever more rarely; when the collector has
//! ended, streams end cleanly after its last frame.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::uplink::Hello;
use shared::brief::Brief;
use shared::identity::NodeName;
use shared::process::{Clock, VERSION};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::collector::Newest;

/// Gateway addresses as written.
pub mod address;
/// Delays between tries.
pub mod backoff;
/// What the streams say of this node, put together.
pub mod briefs;
/// One stream, once.
mod connection;
/// What the agent shows, and by what it knows a gateway.
pub mod credentials;
/// The messages of one stream.
mod outbound;
/// Whether a gateway takes streams.
pub mod probe;

use address::Gateway;
use briefs::Briefs;
use connection::Ended;
use credentials::Credentials;

/// Time between two looks at what a gateway's name stands for.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// After a break the name is looked up again this soon: replicas are replaced, not repaired.
const RESOLVE_AFTER_BREAK: Duration = Duration::from_secs(1);

/// What every stream of an agent shares.
#[derive(Clone)]
pub struct Uplink {
    /// The node it speaks for.
    pub node: NodeName,
    /// Time between two samples.
    pub interval: Duration,
    /// Time between two scrapes of an engine.
    pub engine_interval: Duration,
    /// Where frames come from.
    pub newest: watch::Receiver<Newest>,
    /// What the gateways say of this node; all streams write to it.
    pub briefs: Heard,
    /// The clock frames are stamped with.
    pub clock: Clock,
    /// What the agent shows the gateways.
    pub credentials: Arc<Credentials>,
    /// Cancelled when nothing is to be tried any more; streams that are up end by themselves.
    pub shutdown: CancellationToken,
}

/// What the gateways say of this node, put together; clones share it.
#[derive(Clone, Debug)]
pub struct Heard {
    briefs: Arc<Mutex<Briefs>>,
    together: watch::Sender<Option<Arc<Brief>>>,
}

impl Heard {
    /// Nothing yet; what is heard goes to `together`.
    pub fn new(together: watch::Sender<Option<Arc<Brief>>>) -> Self {
        Self { briefs: Arc::default(), together }
    }

    /// Changes what was heard, and tells where that changes anything.
    fn update(&self, change: impl FnOnce(&mut Briefs)) {
        let mut briefs = self.briefs.lock();
        change(&mut briefs);
        // Under the lock, so that what is told last is what was heard last.
        let Some(together) = briefs.together() else { return };
        self.together.send_if_modified(|known| {
            let is_new = known.as_deref() != Some(&together);
            if is_new {
                *known = Some(Arc::new(together));
            }
            is_new
        });
    }
}

/// What the streams to one gateway's addresses share.
struct Addresses {
    /// What the name stands for now.
    wanted: watch::Sender<HashSet<SocketAddr>>,
    /// A stream broke: perhaps the name stands for other addresses now.
    broke: Notify,
}

impl Uplink {
    /// Pushes to every replica of `gateway` until the collector has ended.
    pub async fn run(self, gateway: Gateway) {
        let addresses =
            Arc::new(Addresses { wanted: watch::Sender::default(), broke: Notify::new() });
        let mut streams = JoinSet::new();
        let mut running = HashSet::new();
        let mut failures = 0;
        loop {
            let Some(resolved) = self.shutdown.run_until_cancelled(resolve(&gateway)).await else {
                break;
            };
            self.briefs.update(|briefs| briefs.forget(self.clock.now()));
            let pause = match resolved {
                Ok(found) => {
                    failures = 0;
                    addresses.wanted.send_replace(found.clone());
                    for &address in found.difference(&running) {
                        let (uplink, gateway) = (self.clone(), gateway.clone());
                        let addresses = addresses.clone();
                        streams.spawn(uplink.keep_up(gateway, address, addresses));
                    }
                    running.extend(&found);
                    jittered(RESOLVE_EVERY)
                }
                Err(error) => {
                    // What it stood for before is kept.
                    let delay = backoff::delay(failures, None, fastrand::f64());
                    if is_worth_a_line(failures) {
                        warn!(%gateway, %error, ?delay, "gateway's name cannot be resolved");
                    }
                    failures += 1;
                    delay
                }
            };
            if !self.pause(pause, &addresses, &mut streams, &mut running).await {
                break;
            }
        }
        while streams.join_next().await.is_some() {}
    }

    /// Waits until the name is to be resolved again; false when all is over.
    async fn pause(
        &self,
        pause: Duration,
        addresses: &Addresses,
        streams: &mut JoinSet<SocketAddr>,
        running: &mut HashSet<SocketAddr>,
    ) -> bool {
        let next = tokio::time::sleep(pause);
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return false,
                () = &mut next => return true,
                () = addresses.broke.notified() => {
                    let soon = tokio::time::Instant::now() + jittered(RESOLVE_AFTER_BREAK);
                    let sooner = soon.min(next.deadline());
                    next.as_mut().reset(sooner);
                }
                Some(ended) = streams.join_next() => {
                    // A stream that panicked is not known by address; it stays away.
                    if let Ok(address) = ended {
                        running.remove(&address);
                    }
                }
            }
        }
    }

    /// One address: a stream, and another when it breaks, for as long as the address is wanted.
    async fn keep_up(
        self,
        gateway: Gateway,
        address: SocketAddr,
        addresses: Arc<Addresses>,
    ) -> SocketAddr {
        let stream = (gateway.clone(), address);
        let mut failures = 0;
        let mut sessions = None;
        loop {
            let ended = connection::once(&self, &stream).await;
            self.briefs.update(|briefs| briefs.end(&stream, self.clock.now()));
            let why = match ended {
                Ended::Over => return address,
                Ended::NeverUp { error } => error,
                Ended::Broke { error, held } => {
                    failures = 0;
                    sessions = Some(held);
                    error
                }
            };
            addresses.broke.notify_one();
            let delay = backoff::delay(failures, sessions, fastrand::f64());
            if is_worth_a_line(failures) {
                warn!(%gateway, %address, error = why, ?delay, failures, "no stream to the gateway");
            }
            failures = failures.saturating_add(1);
            let wait = tokio::time::sleep(delay);
            if self.shutdown.run_until_cancelled(wait).await.is_none() {
                return address;
            }
            if !addresses.wanted.borrow().contains(&address) {
                info!(%gateway, %address, "the gateway's name no longer stands for this address");
                return address;
            }
        }
    }

    fn hello(&self) -> Hello {
        let millis = |every: Duration| u32::try_from(every.as_millis()).unwrap_or(u32::MAX);
        Hello {
            node: self.node.to_string(),
            version: VERSION.to_owned(),
            interval_ms: millis(self.interval),
            engine_interval_ms: millis(self.engine_interval),
        }
    }
}

async fn resolve(gateway: &Gateway) -> std::io::Result<HashSet<SocketAddr>> {
    let found: HashSet<_> = tokio::net::lookup_host(gateway.authority()).await?.collect();
    if found.is_empty() {
        return Err(std::io::Error::other("the name stands for no address"));
    }
    Ok(found)
}

/// The first of a row of failures, and then ever fewer.
fn is_worth_a_line(failures: u32) -> bool {
    failures == 0 || failures.is_power_of_two()
}

/// Half to one and a half times as long, so that agents do not act in step.
fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.5 + fastrand::f64())
}
