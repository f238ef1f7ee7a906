//! Two agents of one node that do not agree on who holds a device: one has the brief and the
//! other has not yet, or one has seen a device change hands and the other has not.

use std::sync::Arc;
use std::time::Duration;

use gateway::fleet::{Fleet, MAX_NODES, Session};
use proptest::prelude::*;
use shared::frame::{Device, DeviceSample, HeldReading, Holder, HolderSource, Inventory, Sample};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

use crate::cases::at;

const SECOND: Duration = Duration::from_secs(1);
const LOAD: f64 = 90.0;

/// What an agent says of the device: each pod's part, `Ok` where it was measured and `Err` where it
/// is a share; and the load, where it was read for these.
#[derive(Clone, Debug)]
struct Word {
    parts: Vec<(&'static str, Result<f64, f64>)>,
    load: Option<f64>,
}

fn word(parts: &[(&'static str, Result<f64, f64>)], load: Option<f64>) -> Word {
    Word { parts: parts.to_vec(), load }
}

struct Agent {
    session: Session,
    said: Option<(Word, Arc<Inventory>)>,
}

impl Agent {
    fn new(fleet: &Arc<Fleet>) -> Self {
        let session = fleet.open("n1".into(), SECOND, "test".into()).unwrap();
        Self { session, said: None }
    }

    fn says(&mut self, word: &Word, now: Timestamp) {
        let holder = |(pod, part): &(&'static str, Result<f64, f64>)| Holder {
            pod: PodKey::new("ml", *pod),
            uid: None,
            container: "main".into(),
            share: part.err(),
            estimated: part.is_err() && word.parts.len() > 1,
            source: if part.is_ok() { HolderSource::Process } else { HolderSource::Kubelet },
            undeclared: false,
        };
        let inventory = Inventory {
            devices: vec![Device {
                uuid: "GPU-1".into(),
                index: 0,
                name: "card".into(),
                memory_total_mib: None,
                mig: None,
                holders: word.parts.iter().map(holder).collect(),
                reason: None,
                health: None,
            }],
            ..Inventory::default()
        };
        let known = self.said.take().map(|(_, known)| known).filter(|known| **known == inventory);
        let inventory = known.unwrap_or_else(|| Arc::new(inventory));
        let metric = Metric::GpuUtilization;
        let held = word.parts.iter().enumerate().filter_map(|(holder, (_, part))| {
            Some(HeldReading { holder, metric, value: part.ok()? })
        });
        let sample = word.load.map(|load| DeviceSample {
            age: Duration::ZERO,
            readings: [(metric, Reading::Ok(load))].into_iter().collect(),
            held: held.collect(),
            ..DeviceSample::default()
        });
        let sample = Sample { devices: vec![sample], ..Sample::default() };
        self.session.apply(&inventory, sample, now);
        self.said = Some((word.clone(), inventory));
    }
}

/// Utilisation that a pod is billed for.
fn billed(fleet: &Fleet, pod: &str) -> Option<f64> {
    let view = fleet.view(&"n1".into())?;
    let pod = view.pod(&PodKey::new("ml", pod), None)?;
    let values: Vec<_> = pod
        .devices()
        .filter_map(|(claim, _)| pod.reading(claim, Metric::GpuUtilization).0.value())
        .collect();
    assert!(values.len() <= 1, "one device: {values:?}");
    values.first().copied()
}

#[test]
fn what_was_read_for_the_former_holder_is_never_the_new_ones() {
    let fleet = Arc::new(Fleet::default());
    let (mut old, mut new) = (Agent::new(&fleet), Agent::new(&fleet));
    let of = |pod, load| word(&[(pod, Err(1.0))], load);
    old.says(&of("a", Some(LOAD)), at(1.0));
    new.says(&of("a", Some(LOAD)), at(1.1));
    // The new one has seen that it is b's now, and has not read it for b yet.
    new.says(&of("b", None), at(2.1));
    assert_eq!((billed(&fleet, "a"), billed(&fleet, "b")), (None, None));
    // The old one has not seen that yet.
    old.says(&of("a", Some(LOAD)), at(2.2));
    assert_eq!((billed(&fleet, "a"), billed(&fleet, "b")), (None, None));
    new.says(&of("b", Some(20.0)), at(3.1));
    assert_eq!((billed(&fleet, "a"), billed(&fleet, "b")), (None, Some(20.0)));
    old.says(&of("a", Some(21.0)), at(3.2));
    assert_eq!((billed(&fleet, "a"), billed(&fleet, "b")), (None, Some(20.0)));
    old.says(&of("b", Some(21.0)), at(4.2));
    new.says(&of("b", Some(22.0)), at(4.3));
    assert_eq!((billed(&fleet, "a"), billed(&fleet, "b")), (None, Some(22.0)));
}

#[test]
fn an_agent_without_the_brief_does_not_turn_what_is_measured_into_a_guess() {
    let fleet = Arc::new(Fleet::default());
    let (mut old, mut new) = (Agent::new(&fleet), Agent::new(&fleet));
    let measured = word(&[("a", Ok(70.0)), ("b", Ok(20.0))], Some(LOAD));
    let guessed = word(&[("b", Err(0.5)), ("a", Err(0.5))], Some(LOAD));
    let both = |fleet: &Fleet| (billed(fleet, "a").unwrap(), billed(fleet, "b").unwrap());
    old.says(&measured, at(1.0));
    for second in 1..4 {
        new.says(&guessed, at(f64::from(second) + 0.1));
        assert_eq!(both(&fleet), (70.0, 20.0));
        old.says(&measured, at(f64::from(second) + 1.0));
        assert_eq!(both(&fleet), (70.0, 20.0));
    }
    // It is all there is once the other one has long been silent.
    for second in 5..9 {
        new.says(&guessed, at(f64::from(second)));
    }
    assert_eq!(both(&fleet), (45.0, 45.0));
    new.says(&measured, at(9.0));
    assert_eq!(both(&fleet), (70.0, 20.0));
    // The other one is back, and ends: the new one is read all the time.
    old.says(&measured, at(9.2));
    drop(old);
    assert_eq!(both(&fleet), (70.0, 20.0));
}

#[test]
fn a_device_that_one_agent_cannot_read_any_more_is_read_through_the_other() {
    let fleet = Arc::new(Fleet::default());
    let (mut old, mut new) = (Agent::new(&fleet), Agent::new(&fleet));
    let of = |load| word(&[("a", Err(1.0))], load);
    old.says(&of(Some(50.0)), at(1.0));
    new.says(&of(Some(51.0)), at(1.1));
    assert_eq!(billed(&fleet, "a"), Some(51.0));
    for second in 2..6 {
        // Nothing new of the device: the last reading stays, and grows old.
        new.says(&of(None), at(f64::from(second) + 0.1));
        old.says(&of(Some(60.0)), at(f64::from(second) + 0.2));
    }
    assert_eq!(billed(&fleet, "a"), Some(60.0));
}

fn any_word() -> impl Strategy<Value = Word> {
    let pods = proptest::sample::subsequence(vec!["a", "b", "c"], 0..=3);
    let load = proptest::option::of(0.0..=100.0_f64);
    (pods, load, any::<bool>()).prop_map(|(pods, load, is_measured)| {
        let n = pods.len() as f64;
        let part =
            |pod| (pod, if is_measured { Ok(load.unwrap_or(0.0) / n) } else { Err(1.0 / n) });
        Word { parts: pods.into_iter().map(part).collect(), load }
    })
}

proptest! {
    #[test]
    fn no_more_is_billed_than_one_agent_read(
        words in proptest::collection::vec((any::<bool>(), any_word()), 1..12),
    ) {
        let fleet = Arc::new(Fleet::default());
        let mut agents = [Agent::new(&fleet), Agent::new(&fleet)];
        for ((is_new, word), second) in words.iter().zip(1_u32..) {
            agents[usize::from(*is_new)].says(word, at(f64::from(second)));
            let of = |pod: &str| billed(&fleet, pod).unwrap_or(0.0);
            let sum = of("a") + of("b") + of("c");
            let said = words.iter().take(second as usize);
            let most = said.filter_map(|(_, word)| word.load).fold(0.0, f64::max);
            prop_assert!(sum <= most + 1e-9, "{sum} of {most}");
            // Nobody is billed whom no agent names now.
            let named = |pod: &str| agents.iter().any(|agent| {
                let said = agent.said.as_ref();
                said.is_some_and(|(word, _)| word.parts.iter().any(|(known, _)| *known == pod))
            });
            for pod in ["a", "b", "c"] {
                prop_assert!(billed(&fleet, pod).is_none() || named(pod), "{pod}");
            }
        }
    }
}

/// The bound on nodes: one more is refused by name, a known one is not, and room is made again.
#[test]
fn a_node_too_many_is_refused_and_known_ones_go_on() {
    let fleet = Arc::new(Fleet::default());
    let open = |node: usize| fleet.open(format!("n{node}").into(), SECOND, "test".into());
    let mut sessions: Vec<_> = (0..MAX_NODES).map(|node| open(node).unwrap()).collect();
    assert_eq!(fleet.len(), MAX_NODES);
    assert!(open(MAX_NODES).err().unwrap().to_string().contains("20000 nodes"));
    let again = open(0).expect("a known node's second session");
    drop(again);
    drop(sessions.pop());
    fleet.tidy(|_| None, at(0.0));
    assert_eq!(fleet.len(), MAX_NODES - 1, "it was never heard, so nothing of it is kept");
    open(MAX_NODES).expect("there is room");
}

#[test]
fn who_keeps_the_place_of_a_node_that_is_forgotten_keeps_nothing_it_said() {
    let fleet = Arc::new(Fleet::default());
    let mut agent = Agent::new(&fleet);
    agent.says(&word(&[("a", Ok(LOAD))], Some(LOAD)), at(0.0));
    let slot = fleet.slot(&"n1".into()).unwrap();
    let said = Arc::downgrade(&fleet.view(&"n1".into()).unwrap());
    drop(agent);
    fleet.tidy(|_| Some(3_600 * SECOND), at(700.0));
    assert!(fleet.is_empty() && slot.view().is_none());
    assert!(said.upgrade().is_none(), "neither history nor last words");
}
