//! Who may connect, how many at once, and how soon they must speak.
//!
//! Guarantees: a port holds at most so many connections, and one peer at most a quarter of them;
//! what is over is closed at once and counted. Where idle connections give way, a newcomer gets the
//! place of the longest idle one of whoever has the most, and is closed itself only if all are at
//! work. A connection that has not said a first word in time
//! is closed, and at shutdown at once. No port can take the descriptors that the others need.

/// A connection that must speak soon.
pub mod guarded;
/// Messages per second.
pub mod rate;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use shared::process::pages::Attendant;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::seldom::Seldom;

/// Descriptors kept for files, the API server, demand pages and the listeners.
const SPARED: u64 = 128;
/// One peer may have one part in so many of a port's connections.
const PEER_SHARE: usize = 4;
/// How long accepting rests when the system has no descriptor left.
const REST: Duration = Duration::from_millis(100);
/// Bytes before which a connection has said nothing: the length of the HTTP/2 preface.
pub const PREFACE: usize = 24;
/// How long a connection may take to say its first word.
pub const SPEAK_WITHIN: Duration = Duration::from_secs(10);

/// Connections that each port holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// KEDA's port.
    pub keda: usize,
    /// The agents' port.
    pub agents: usize,
    /// The HTTP port.
    pub http: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self { keda: 4_096, agents: 24_000, http: 512 }
    }
}

impl Connections {
    /// The same where the process may have `descriptors` open: all ports together leave
    /// `SPARED` of them, and each keeps its part.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "parts of counts of connections"
    )]
    pub fn within(self, descriptors: u64) -> Self {
        let room = descriptors.saturating_sub(SPARED) as f64;
        let part = room / (self.keda + self.agents + self.http) as f64;
        if part >= 1.0 {
            return self;
        }
        let cut = |connections: usize| ((connections as f64 * part) as usize).max(1);
        // The small ports keep what they need for probes and for KEDA before agents get theirs.
        let (keda, http) = (cut(self.keda).max(16), cut(self.http).max(16));
        let agents = (room as usize).saturating_sub(keda + http).clamp(1, self.agents);
        Self { keda, agents, http }
    }
}

/// How many descriptors `limits` (the text of `/proc/self/limits`) allows; `None` is no limit.
pub fn descriptors(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What is counted about connections.
#[derive(Clone, Default)]
pub struct Counts {
    open: Family<Port, Gauge>,
    most: Family<Port, Gauge>,
    refused: Family<Refused, Counter>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Port {
    port: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    port: &'static str,
    why: &'static str,
}

impl Counts {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Connections that are open, by port", self.open.clone());
        let help = "Connections that the port holds at most";
        registry.register("connections_limit", help, self.most.clone());
        let help = "Connections closed: the port is `full`, the `peer` has too many, it stayed \
                    `silent`, it was `idle` and gave way to a new one, its `head` was too large, \
                    or there was no `descriptor` for it";
        registry.register("connections_refused", help, self.refused.clone());
    }
}

#[cfg(test)]
impl reference::Specimens for Counts {
    fn specimens(&self) {
        self.open.specimens();
        self.most.specimens();
        self.refused.specimens();
    }
}

/// One port's door: it knows who is inside.
#[derive(Clone)]
pub struct Door {
    port: &'static str,
    most: usize,
    idle_give_way: bool,
    inside: Arc<Mutex<Inside>>,
    counts: Counts,
    said: Seldom<()>,
}

#[derive(Default)]
struct Inside {
    all: usize,
    peers: HashMap<IpAddr, usize>,
    /// Who does nothing now and gives way, by number of the place.
    idle: HashMap<u64, Idle>,
    /// Counts places and the times that they became idle.
    ticket: u64,
}

struct Idle {
    since: u64,
    peer: IpAddr,
    leave: CancellationToken,
}

/// A place inside, given back when dropped.
pub struct Place(Standing);

/// What the one at a place does.
#[derive(Clone)]
pub struct Standing {
    door: Door,
    peer: IpAddr,
    number: u64,
    /// Cancelled, with the door locked, when the place is given back or given to another.
    leave: CancellationToken,
}

impl Door {
    /// A door of the port called `port`, with `most` places.
    pub fn new(port: &'static str, most: usize, counts: Counts) -> Self {
        let limit = i64::try_from(most).unwrap_or(i64::MAX);
        counts.most.get_or_create(&Port { port }).set(limit);
        counts.open.get_or_create(&Port { port }).set(0);
        Self {
            port,
            most,
            idle_give_way: false,
            inside: Arc::default(),
            counts,
            said: Seldom::default(),
        }
    }

    /// The same, where connections without a request give way to new ones.
    #[must_use]
    pub fn idle_give_way(self) -> Self {
        Self { idle_give_way: true, ..self }
    }

    /// A place for `peer`; `None` if the port is full or the peer has its part already, and nobody
    /// gives way.
    pub fn admit(&self, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        let mut inside = self.inside.lock();
        let is_full = inside.all >= self.most;
        if inside.of(peer) >= (self.most / PEER_SHARE).max(1) {
            self.make_way(&mut inside, Some(peer), if is_full { "full" } else { "peer" })?;
        } else if is_full {
            self.make_way(&mut inside, None, "full")?;
        }
        inside.all += 1;
        *inside.peers.entry(peer).or_default() += 1;
        inside.ticket += 1;
        let (number, leave) = (inside.ticket, CancellationToken::new());
        self.open().inc();
        drop(inside);
        let standing = Standing { door: self.clone(), peer, number, leave };
        standing.waits();
        Some(Place(standing))
    }

    /// Sends away the longest idle connection: of `peer`, or else of whoever has the most. `None`,
    /// and counted for `why`, if there is no idle one.
    fn make_way(&self, inside: &mut Inside, peer: Option<IpAddr>, why: &'static str) -> Option<()> {
        let idle = inside.idle.iter().filter(|(_, idle)| peer.is_none_or(|peer| idle.peer == peer));
        let first = idle.max_by_key(|(_, idle)| (inside.of(idle.peer), Reverse(idle.since)));
        let Some(number) = first.map(|(number, _)| *number) else {
            self.refuse(why);
            return None;
        };
        let Idle { peer, leave, .. } = inside.idle.remove(&number)?;
        leave.cancel();
        self.give_back(inside, peer);
        self.refuse("idle");
        Some(())
    }

    fn give_back(&self, inside: &mut Inside, peer: IpAddr) {
        inside.all -= 1;
        if let Entry::Occupied(mut of_peer) = inside.peers.entry(peer) {
            *of_peer.get_mut() -= 1;
            if *of_peer.get() == 0 {
                of_peer.remove();
            }
        }
        self.open().dec();
    }

    fn open(&self) -> Gauge {
        self.counts.open.get_or_create(&Port { port: self.port }).clone()
    }

    /// Counts a connection that was closed for `why`.
    pub fn refuse(&self, why: &'static str) {
        self.counts.refused.get_or_create(&Refused { port: self.port, why }).inc();
    }
}

impl Inside {
    fn of(&self, peer: IpAddr) -> usize {
        self.peers.get(&peer).copied().unwrap_or_default()
    }
}

impl Place {
    /// Says at the door what the one at this place does.
    pub fn standing(&self) -> Standing {
        self.0.clone()
    }

    fn door(&self) -> &Door {
        &self.0.door
    }
}

impl Attendant for Standing {
    fn works(&self) {
        self.door.inside.lock().idle.remove(&self.number);
    }

    fn waits(&self) {
        let mut inside = self.door.inside.lock();
        if self.door.idle_give_way && !self.leave.is_cancelled() {
            inside.ticket += 1;
            let idle = Idle { since: inside.ticket, peer: self.peer, leave: self.leave.clone() };
            inside.idle.insert(self.number, idle);
        }
    }

    async fn dismissed(&self) {
        self.leave.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Standing { door, peer, number, leave } = &self.0;
        let mut inside = door.inside.lock();
        inside.idle.remove(number);
        // Otherwise it has been given to another.
        if !leave.is_cancelled() {
            leave.cancel();
            door.give_back(&mut inside, *peer);
        }
    }
}

/// A connection that has a place.
pub struct Admitted {
    /// The connection.
    pub stream: TcpStream,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// Its place.
    pub place: Place,
}

/// The connections of `listener` that `door` admits.
pub fn incoming(listener: TcpListener, door: Door) -> impl Stream<Item = Admitted> {
    futures_util::stream::unfold((listener, door), async |(listener, door)| {
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // A peer that left while it waited is nobody's trouble; no descriptor is.
                    if error.raw_os_error().is_some_and(|code| [ENFILE, EMFILE].contains(&code)) {
                        door.refuse("descriptor");
                        if let Some(more) = door.said.unsaid((), Instant::now()) {
                            warn!(port = door.port, %error, more, "a connection cannot be accepted");
                        }
                        tokio::time::sleep(REST).await;
                    }
                    continue;
                }
            };
            let Some(place) = door.admit(peer.ip()) else { continue };
            // Answers are small and must not wait for more; without it they are only slower.
            stream.set_nodelay(true).ok();
            return Some((Admitted { stream, peer, place }, (listener, door)));
        }
    })
}

/// Error numbers of Linux: too many files open in the system, and in this process.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn one_peer_gets_a_quarter_and_all_together_what_there_is() {
        let door = Door::new("keda", 8, Counts::default());
        let two: Vec<_> = (0..2).filter_map(|_| door.admit(peer(1))).collect();
        assert_eq!(two.len(), 2);
        assert!(door.admit(peer(1)).is_none(), "a quarter of eight is two");
        let six: Vec<_> = (2..8).filter_map(|last| door.admit(peer(last))).collect();
        assert_eq!(six.len(), 6);
        assert!(door.admit(peer(9)).is_none(), "a ninth");
        drop(two);
        assert!(door.admit(peer(1)).is_some(), "places are given back");
        drop(six);
        let inside = door.inside.lock();
        assert_eq!((inside.all, inside.peers.len()), (0, 0));
    }

    #[test]
    fn who_is_idle_longest_of_whoever_has_the_most_gives_way_and_who_works_does_not() {
        let door = Door::new("http", 8, Counts::default()).idle_give_way();
        let gone = |place: &Place| place.0.leave.is_cancelled();
        let of_one: Vec<_> = (0..2).filter_map(|_| door.admit(peer(1))).collect();
        let other: Vec<_> = (2..8).filter_map(|last| door.admit(peer(last))).collect();
        assert_eq!((of_one.len(), other.len()), (2, 6));
        of_one[0].standing().works();
        let newcomer = door.admit(peer(9)).unwrap();
        assert!(!gone(&of_one[0]) && gone(&of_one[1]), "the idle one of who has two");
        let own = door.admit(peer(1)).unwrap();
        assert!(gone(&other[0]) && !gone(&other[1]), "the oldest, as all have one");
        let again = door.admit(peer(1)).unwrap();
        assert!(gone(&own), "a peer's own where it has its part");
        again.standing().works();
        assert!(door.admit(peer(1)).is_none(), "both are at work");
        assert_eq!(door.inside.lock().all, 8);
        let late = again.standing();
        drop((of_one, other, newcomer, own, again));
        late.waits();
        let inside = door.inside.lock();
        assert_eq!((inside.all, inside.peers.len(), inside.idle.len()), (0, 0, 0));
    }

    #[test]
    fn an_address_is_one_peer_in_both_of_its_spellings() {
        let door = Door::new("keda", 4, Counts::default());
        let _place = door.admit(peer(1));
        assert!(door.admit("::ffff:10.0.0.1".parse().unwrap()).is_none());
    }

    #[test]
    fn ports_share_the_descriptors_there_are_and_none_takes_anothers() {
        let all = Connections::default();
        assert_eq!(all.within(1 << 20), all);
        for descriptors in [256, 1_024, 4_096, 20_000] {
            let cut = all.within(descriptors);
            let sum = cut.keda + cut.agents + cut.http;
            assert!(sum as u64 + SPARED <= descriptors, "{descriptors}: {cut:?}");
            assert!(cut.keda >= 16 && cut.http >= 16 && cut.agents >= 64, "{cut:?}");
        }
    }

    #[test]
    fn the_limit_of_descriptors_is_the_soft_one() {
        let limits =
            "Limit   Soft Limit  Hard Limit  Units\nMax open files   1024   524288   files\n";
        assert_eq!(descriptors(limits), Some(1_024));
        assert_eq!(descriptors("Max open files   unlimited unlimited files"), None);
    }
}
