//! The looks at one trigger, in order → what changed, and an evenly spaced history.
//!
//! Guarantees: pure; bounded by `KEPT` changes and `SAMPLES` samples. A value that moves while
//! nothing else does is no change. What was seen stands for at most `STANDS` samples more; a longer
//! span without looks is a gap in the history, not a line.

use std::collections::VecDeque;
use std::time::Duration;

use shared::time::Timestamp;

use super::look::Look;

/// Changes kept of a trigger.
pub const KEPT: usize = 64;
/// Samples kept of a trigger: half an hour.
pub const SAMPLES: usize = 360;
/// Time between two samples.
pub const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// Samples for which a look stands where the next is late.
pub const STANDS: usize = 6;

/// The columns of the history, in their order.
pub const COLUMNS: [&str; 13] = [
    "value",
    "hold",
    "desired",
    "ordered",
    "ready",
    "starting",
    "unscheduled",
    "missing",
    "active",
    "requestsWaiting",
    "requestsRunning",
    "tokensPerSecond",
    "timeToFirstTokenMs",
];

/// What is remembered of one trigger.
#[derive(Debug, Default)]
pub struct Record {
    newest: Option<Look>,
    /// What is known of the activity, also while there is no value.
    active: Option<bool>,
    entries: VecDeque<Entry>,
    samples: VecDeque<Sample>,
    /// The slot of the newest sample.
    slot: i64,
    /// Changes noted so far.
    pub changes: u64,
    /// Edges from inactive to active so far.
    pub activations: u64,
}

/// A change: how things were from then on, and what was new.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When it was seen.
    pub at: Timestamp,
    /// What is new, in a fixed order.
    pub changed: Vec<&'static str>,
    /// How things were then.
    pub look: Look,
}

/// One moment of the history; what is not known is not a number.
type Sample = [f32; COLUMNS.len()];

impl Record {
    /// Takes one look, and returns what is new, if anything is.
    pub fn note(&mut self, look: Look, now: Timestamp) -> Option<&Entry> {
        self.sample(&look, now);
        let changed = match &self.newest {
            None => vec!["first"],
            Some(before) => changes(before, &look),
        };
        let was = self.active;
        self.active = look.active.or(was);
        self.activations += u64::from(was == Some(false) && look.active == Some(true));
        self.newest = Some(look.clone());
        if changed.is_empty() {
            return None;
        }
        self.changes += 1;
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(Entry { at: now, changed, look });
        self.entries.back()
    }

    /// The newest look.
    pub fn newest(&self) -> Option<&Look> {
        self.newest.as_ref()
    }

    /// The changes, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The slot of the newest sample: its time in units of [`SAMPLE_EVERY`].
    pub fn slot(&self) -> i64 {
        self.slot
    }

    /// One column of the history, oldest first; `None` where nothing is known.
    pub fn column(&self, at: usize) -> impl DoubleEndedIterator<Item = Option<f64>> + '_ {
        self.samples.iter().map(move |sample| {
            let value = f64::from(sample[at]);
            (!value.is_nan()).then(|| (value * 1_000.0).round() / 1_000.0)
        })
    }

    fn sample(&mut self, look: &Look, now: Timestamp) {
        let every = i64::try_from(SAMPLE_EVERY.as_millis()).unwrap_or(i64::MAX);
        let since_start = i64::try_from(now.since(Timestamp::START).as_millis());
        let slot = since_start.unwrap_or(i64::MAX) / every;
        if !self.samples.is_empty() && slot <= self.slot {
            return;
        }
        let gap = if self.samples.is_empty() { 0 } else { slot - self.slot - 1 };
        let gap = usize::try_from(gap).unwrap_or(usize::MAX).min(SAMPLES);
        let unknown = [f32::NAN; COLUMNS.len()];
        let between = self.samples.back().copied().filter(|_| gap <= STANDS).unwrap_or(unknown);
        self.samples.extend(std::iter::repeat_n(between, gap));
        self.samples.push_back(sampled(look));
        let surplus = self.samples.len().saturating_sub(SAMPLES);
        self.samples.drain(..surplus);
        self.slot = slot;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a picture needs no more digits")]
fn sampled(look: &Look) -> Sample {
    let coverage = look.coverage;
    let count = |count: Option<u32>| count.map(f64::from);
    let of = |pods: fn(crate::trigger::coverage::Coverage) -> u32| count(coverage.map(pods));
    let columns = [
        look.value,
        look.figures.map(|figures| figures.hold),
        count(look.desired),
        count(look.replicas),
        count(look.ready),
        of(|coverage| coverage.starting + coverage.absent - coverage.unscheduled),
        count(look.unscheduled),
        of(|coverage| coverage.missing + coverage.unsupported),
        look.active.map(|active| f64::from(u8::from(active))),
        look.engines.waiting,
        look.engines.running,
        look.engines.tokens,
        look.engines.first_token,
    ];
    columns.map(|column| column.map_or(f32::NAN, |value| value as f32))
}

/// What of `look` is not as it was before.
fn changes(before: &Look, look: &Look) -> Vec<&'static str> {
    let direction = |look: &Look| look.figures.map(|figures| figures.direction);
    let facts = [
        ("status", before.status != look.status),
        ("active", before.active != look.active),
        ("desired", before.desired != look.desired),
        ("ordered", before.replicas != look.replicas),
        ("ready", before.ready != look.ready),
        ("unscheduled", before.unscheduled != look.unscheduled),
        ("coverage", before.coverage != look.coverage),
        ("direction", direction(before) != direction(look)),
        ("target", before.target != look.target || before.metric_type != look.metric_type),
        ("reason", !reads_alike(&before.reason, &look.reason)),
    ];
    facts.into_iter().filter_map(|(fact, is_new)| is_new.then_some(fact)).collect()
}

/// Whether two reasons differ at most in their numbers: ages tick without anything having changed.
fn reads_alike(before: &str, now: &str) -> bool {
    let words = |text| str::chars(text).filter(|c| !c.is_ascii_digit() && *c != '.');
    before == now || words(before).eq(words(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::coverage::Coverage;
    use crate::trigger::verdict::{Direction, Figures};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    fn look(value: f64) -> Look {
        Look {
            status: "OK",
            reason: "gpu_utilization: 1 of 1 replica reports".into(),
            value: Some(value),
            target: Some(50.0),
            active: Some(value > 0.0),
            desired: Some(1),
            replicas: Some(1),
            ready: Some(1),
            unscheduled: Some(0),
            coverage: Some(Coverage { reporting: 1, ..Coverage::default() }),
            figures: Some(Figures {
                s: value,
                up: value,
                down: value,
                hold: 50.0,
                direction: Direction::Down,
            }),
            ..Look::default()
        }
    }

    fn changed(record: &mut Record, look: Look, second: i64) -> Vec<&'static str> {
        record.note(look, at(second)).map_or_else(Vec::new, |entry| entry.changed.clone())
    }

    #[test]
    fn a_value_that_moves_is_no_change_and_what_follows_from_it_is() {
        let mut record = Record::default();
        assert_eq!(changed(&mut record, look(30.0), 0), ["first"]);
        assert!(changed(&mut record, look(31.0), 1).is_empty());
        let more = Look { desired: Some(2), ..look(80.0) };
        assert_eq!(changed(&mut record, more.clone(), 2), ["desired"]);
        let ordered = Look { replicas: Some(2), unscheduled: Some(1), ..more };
        assert_eq!(changed(&mut record, ordered, 3), ["ordered", "unscheduled"]);
        assert_eq!((record.changes, record.entries().count()), (3, 3));
    }

    #[test]
    fn a_reason_that_only_counts_on_is_no_change() {
        let mut record = Record::default();
        let stale = |age: &str| Look {
            reason: format!("no fresh reading of 1 ready pod (a): stale for {age} s").into(),
            ..look(1.0)
        };
        changed(&mut record, stale("9.5"), 0);
        assert!(changed(&mut record, stale("10"), 1).is_empty());
        assert_eq!(changed(&mut record, look(1.0), 2), ["reason"]);
    }

    #[test]
    fn activations_are_edges_and_what_is_not_known_is_none() {
        let mut record = Record::default();
        let unknown = || Look { active: None, status: "UNAVAILABLE", ..look(1.0) };
        for (second, look) in
            (0..).zip([look(1.0), look(0.0), unknown(), look(2.0), unknown(), look(3.0), look(0.0)])
        {
            record.note(look, at(second));
        }
        assert_eq!(record.activations, 1, "from 0 to 2, with an unknown moment between");
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stays() {
        let mut record = Record::default();
        for second in 0..4_000 {
            let desired = Some(u32::try_from(second % 7).unwrap());
            record.note(
                Look { desired, ..look(f64::from(u16::try_from(second).unwrap())) },
                at(second),
            );
        }
        assert_eq!(record.entries().count(), KEPT);
        assert_eq!(record.entries().last().unwrap().at, at(3_999));
        assert_eq!(record.column(0).count(), SAMPLES);
        assert_eq!(record.column(0).next_back().unwrap(), Some(3_995.0));
    }

    #[test]
    fn a_span_without_looks_is_a_gap_and_a_clock_that_stands_still_adds_nothing() {
        let mut record = Record::default();
        for (value, second) in
            [(1.0, 0), (1.0, 1), (2.0, 5), (3.0, 5), (4.0, 20), (5.0, 19), (6.0, 60)]
        {
            record.note(look(value), at(second));
        }
        let known: Vec<_> = record.column(0).collect();
        let mut right = vec![Some(1.0), Some(2.0), Some(2.0), Some(2.0), Some(4.0)];
        right.extend([None; 7]);
        right.push(Some(6.0));
        assert_eq!(known, right, "a look stands for a while, not for 40 s");
        record.note(look(1.0), at(1_000_000));
        assert_eq!(record.column(0).filter(Option::is_some).count(), 1);
        assert_eq!(record.column(0).count(), SAMPLES);
    }
}
