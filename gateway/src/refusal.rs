//! Who was turned away, and why: counted always, said now and then.
//!
//! Guarantees: a port and reason has one line of log in ten seconds at most, with how many there
//! were since the last; reasons come from the code, never from the peer.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::seldom::Seldom;

/// Counts refusals; clones count together.
#[derive(Clone, Default)]
pub struct Refusals {
    counts: Family<Refused, Counter>,
    said: Seldom<Refused>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    port: &'static str,
    reason: &'static str,
}

impl Refusals {
    /// Registers the counters.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Peers turned away for who they are, by port and reason";
        registry.register("peers_refused", help, self.counts.clone());
    }

    /// Somebody left `port` by himself, which probes of a load balancer do all the time.
    pub fn count(&self, port: &'static str, reason: &'static str) {
        self.counts.get_or_create(&Refused { port, reason }).inc();
    }

    /// `peer` was turned away at `port`; `why` is for people and names no secret.
    pub fn refuse(&self, port: &'static str, reason: &'static str, peer: &str, why: &str) {
        let refused = Refused { port, reason };
        self.counts.get_or_create(&refused).inc();
        match self.said.unsaid(refused, Instant::now()) {
            Some(more) => warn!(port, reason, peer, why, more, "peer refused"),
            None => debug!(port, reason, peer, why, "peer refused"),
        }
    }
}

#[cfg(test)]
impl reference::Specimens for Refusals {
    fn specimens(&self) {
        self.counts.specimens();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Instant, Refusals, Refused};
    use crate::seldom::SAY_EVERY;

    #[test]
    fn a_reason_has_one_line_in_ten_seconds() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let slow = Refused { port: "agents", reason: "slow" };
        let other = Refused { port: "keda", reason: "slow" };
        assert_eq!(refusals.said.unsaid(slow.clone(), start), Some(0));
        for millis in 1..1_000 {
            let now = start + Duration::from_millis(millis);
            assert_eq!(refusals.said.unsaid(slow.clone(), now), None);
        }
        assert_eq!(refusals.said.unsaid(other, start), Some(0), "another port");
        assert_eq!(refusals.said.unsaid(slow.clone(), start + SAY_EVERY), Some(999));
        assert_eq!(refusals.said.unsaid(slow, start + 2 * SAY_EVERY), Some(0));
    }
}
