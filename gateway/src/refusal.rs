//! Who was turned away, and why: counted always, said now and then.
//!
//! Guarantees: a port and reason has one line of log in `SAY_EVERY` at most, with how many there
//! were since the last; reasons come from the code, never from the peer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tracing::{debug, warn};

/// Two lines about one port and reason are at least this far apart.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Counts refusals; clones count together.
#[derive(Clone, Default)]
pub struct Refusals {
    counts: Family<Refused, Counter>,
    said: Arc<Mutex<HashMap<Refused, Said>>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    port: &'static str,
    reason: &'static str,
}

struct Said {
    at: Instant,
    unsaid: u64,
}

impl Refusals {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Peers turned away for who they are, by port and reason";
        registry.register("peers_refused", help, self.counts.clone());
    }

    /// `peer` was turned away at `port`; `why` is for people and names no secret.
    pub fn refuse(&self, port: &'static str, reason: &'static str, peer: &str, why: &str) {
        let refused = Refused { port, reason };
        self.counts.get_or_create(&refused).inc();
        let now = Instant::now();
        let unsaid = {
            let mut said = self.said.lock();
            match said.get_mut(&refused) {
                Some(said) if now - said.at < SAY_EVERY => {
                    said.unsaid += 1;
                    None
                }
                Some(said) => {
                    said.at = now;
                    Some(std::mem::take(&mut said.unsaid))
                }
                None => {
                    said.insert(refused, Said { at: now, unsaid: 0 });
                    Some(0)
                }
            }
        };
        match unsaid {
            Some(more) => warn!(port, reason, peer, why, more, "peer refused"),
            None => debug!(port, reason, peer, why, "peer refused"),
        }
    }
}
