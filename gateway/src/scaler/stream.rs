//! StreamIsActive and StreamMetricSpec.
//!
//! Guarantees: one `true` on opening if the workload is active, then one on every edge from
//! inactive to active; never `false`, never a tick, never a backlog. What is not known is no edge.
//! Only while the target is known to be at zero is a `true` repeated a few times, because KEDA may
//! have dropped it. Streams end with OK at shutdown and when their connection has become old, with
//! DEADLINE_EXCEEDED when the time is over that their client gave them, and free everything when
//! the client leaves.
//! However many there are, looking leaves calls their room: a stream then looks less often, but
//! once a second.

use std::sync::Arc;
use std::time::Duration;

use proto::keda::{GetMetricSpecResponse, IsActiveResponse, ScaledObjectRef};
use shared::identity::ScaledObjectKey;
use shared::time::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::OpenStream;
use crate::answer::{Answers, Question};
use crate::contain::{self, Life};
use crate::deadline;
use crate::trigger::spec::Demand;

/// Time alone changes answers too: readings grow stale, grace periods end.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// All streams together may look for one part in so many of the time.
const SPARED: u32 = 4;
/// When a `true` is repeated while the target stays at zero, counted from the edge.
const REPEATS: [Duration; 3] =
    [Duration::from_secs(2), Duration::from_secs(6), Duration::from_secs(14)];

/// What a stream goes on asking; it was checked when the stream was opened.
pub(super) struct Standing {
    /// The ScaledObject and the trigger's metadata.
    pub(super) reference: ScaledObjectRef,
    /// The trigger's demand source.
    pub(super) demand: Option<Demand>,
}

impl Standing {
    fn question(&self) -> Question<'_> {
        let ScaledObjectRef { name, namespace, scaler_metadata: metadata } = &self.reference;
        Question { namespace, name, metadata }
    }

    /// Wakes when what the demand source says changes; `None` while it is not read.
    fn demand_changes(&self, answers: &Answers) -> Option<watch::Receiver<()>> {
        let ScaledObjectRef { name, namespace, .. } = &self.reference;
        let object = ScaledObjectKey::new(namespace.as_str(), name.as_str());
        answers.demands().changes(&object, self.demand.as_ref()?)
    }
}

/// How long a stream may last: as long as its connection, and as its client wants it.
pub(super) struct Span {
    life: Life,
    deadline: Option<Duration>,
}

impl Span {
    /// With the client's own deadline, if `metadata` has one.
    pub(super) fn new(life: Life, metadata: &MetadataMap) -> Self {
        Self { life, deadline: deadline::of_caller(metadata.as_ref()) }
    }

    /// Runs `stream` for so long.
    async fn of(&self, stream: impl Future<Output = ()>) -> Result<(), Status> {
        let living = self.life.run_until_cancelled(stream);
        let Some(deadline) = self.deadline else {
            living.await;
            return Ok(());
        };
        let ended = timeout(deadline, living).await.map(drop);
        ended.map_err(|_| Status::deadline_exceeded("the time that the caller gave it is over"))
    }
}

/// What was last known and said on one stream.
#[derive(Debug, Default)]
struct Edge {
    active: Option<bool>,
    since: Timestamp,
    repeated: usize,
}

impl Edge {
    /// Takes what is known now and returns whether to say `true`.
    fn on(&mut self, active: Option<bool>, at_zero: bool, now: Timestamp) -> bool {
        let was = self.active;
        self.active = active.or(was);
        match (was, active) {
            (Some(true), Some(true)) => {
                let due = REPEATS.get(self.repeated).is_some_and(|at| now.since(self.since) >= *at);
                self.repeated += usize::from(due);
                due && at_zero
            }
            (_, Some(true)) => {
                (self.since, self.repeated) = (now, 0);
                true
            }
            _ => false,
        }
    }
}

/// Follows the activity of one trigger.
pub(super) fn activity(
    answers: Arc<Answers>,
    standing: Standing,
    span: Span,
    open: OpenStream,
) -> ReceiverStream<Result<IsActiveResponse, Status>> {
    let (messages, stream) = mpsc::channel(1);
    let (counts, end) = (open.contained(), messages.clone());
    let following = async move {
        let ended = span.of(follow(&answers, &standing, &messages, &open)).await;
        say_end(&messages, ended).await;
    };
    tokio::spawn(contain::stream(counts, "StreamIsActive", end, following));
    ReceiverStream::new(stream)
}

/// The client is told of its deadline if it still listens.
async fn say_end<T>(messages: &mpsc::Sender<Result<T, Status>>, ended: Result<(), Status>) {
    if let Err(status) = ended {
        messages.send(Err(status)).await.ok();
    }
}

async fn follow(
    answers: &Answers,
    standing: &Standing,
    messages: &mpsc::Sender<Result<IsActiveResponse, Status>>,
    open: &OpenStream,
) {
    let question = standing.question();
    let mut topology = answers.fleet().topology();
    let mut directory = answers.directory().changes();
    let mut edge = Edge::default();
    let mut ended = answers.endings(question);
    let mut demand = None;
    loop {
        // A new one each time, so that nodes the workload has left forget the old.
        let spoken = Arc::new(Notify::new());
        answers.fleet().wake_on(&answers.nodes_of(question), &spoken);
        let mut has_moved = false;
        while !has_moved {
            let begun = answers.clock().now();
            // Whoever else was told that it is inactive: that was an edge for this stream too.
            let endings = answers.endings(question);
            if endings > std::mem::replace(&mut ended, endings) {
                edge.on(Some(false), false, answers.clock().now());
            }
            let active = answers.is_active(question).ok();
            if edge.on(active, answers.is_at_zero(question), answers.clock().now()) {
                // Full means that a `true` is on its way already.
                messages.try_send(Ok(IsActiveResponse { result: true })).ok();
            }
            if demand.is_none() {
                demand = standing.demand_changes(answers);
                if demand.is_some() {
                    // It may have changed since it was looked at.
                    continue;
                }
            }
            let took = answers.clock().now().since(begun);
            has_moved = tokio::select! {
                () = messages.closed() => return,
                Ok(()) = topology.changed() => true,
                Ok(()) = directory.changed() => true,
                () = spoken.notified() => false,
                () = changed(&mut demand) => false,
                () = tokio::time::sleep(LOOK_EVERY) => false,
            };
            // Not all at the same time.
            let rest = rest(took, open.streams()).mul_f64(0.5 + 0.5 * fastrand::f64());
            let rest = rest.saturating_sub(answers.clock().now().since(begun));
            if timeout(rest, messages.closed()).await.is_ok() {
                return;
            }
        }
    }
}

/// How far apart a stream's looks are, which take so long, where there are so many streams.
fn rest(took: Duration, streams: u32) -> Duration {
    took.saturating_mul(SPARED).saturating_mul(streams).min(LOOK_EVERY)
}

/// Waits for a change of the demand; for ever while there is none to wait for.
async fn changed(demand: &mut Option<watch::Receiver<()>>) {
    match demand {
        None => std::future::pending().await,
        Some(changes) => {
            if changes.changed().await.is_err() {
                // It is read no more.
                *demand = None;
            }
        }
    }
}

/// Says the specs once and holds the stream open: targets change only with the metadata.
pub(super) fn once(
    specs: GetMetricSpecResponse,
    span: Span,
    open: OpenStream,
) -> ReceiverStream<Result<GetMetricSpecResponse, Status>> {
    let (messages, stream) = mpsc::channel(1);
    tokio::spawn(async move {
        let _open = open;
        // The client may be gone already.
        messages.send(Ok(specs)).await.ok();
        let ended = span.of(messages.closed()).await;
        say_end(&messages, ended).await;
    });
    ReceiverStream::new(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn only_the_edge_from_inactive_to_active_is_said() {
        let mut edge = Edge::default();
        let said: Vec<bool> =
            [None, Some(true), Some(true), None, Some(true), Some(false), None, Some(true)]
                .into_iter()
                .zip(0..)
                .map(|(active, second)| edge.on(active, false, at(second)))
                .collect();
        assert_eq!(said, [false, true, false, false, false, false, false, true]);
    }

    #[test]
    fn many_streams_look_less_often_but_once_a_second() {
        let rest = |micros, streams| rest(Duration::from_micros(micros), streams);
        assert_eq!(rest(50, 1), Duration::from_micros(200));
        assert_eq!(rest(50, 1_000), Duration::from_millis(200));
        assert_eq!(rest(5_000, 1_000), LOOK_EVERY);
        assert_eq!(rest(u64::MAX >> 8, u32::MAX), LOOK_EVERY);
    }

    #[test]
    fn a_true_is_repeated_a_few_times_only_while_the_target_stays_at_zero() {
        let mut edge = Edge::default();
        let said: Vec<i64> =
            (0..60).filter(|second| edge.on(Some(true), *second < 10, at(*second))).collect();
        assert_eq!(said, [0, 2, 6]);
    }
}
