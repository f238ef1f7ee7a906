//! What an agent finds out about holders is what the gateway counts for their pods.

use std::sync::Arc;
use std::time::Duration;

use agent::device::{Condition, Observation, ObservedDevice, ObservedProcess, Processes, Seat};
use agent::frame::{Taken, assemble};
use agent::local::view::View;
use agent::owner::declared::{Declaration, DeclaredHolder};
use agent::owner::handover::Handovers;
use agent::owner::process::{Occupant, PodProcess, ProcessOwners};
use agent::owner::{Declared, Known, resolve};
use gateway::fleet::unattributed::unattributed;
use gateway::fleet::{Fleet, Session};
use proto::convert::{Link, inventory_to_wire, sample_to_wire};
use shared::frame::{Frame, HolderSource, Inventory, Mig};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

/// An agent and a gateway without sockets and clocks.
struct World {
    fleet: Arc<Fleet>,
    session: Session,
    handovers: Handovers,
    /// The agent's newest inventory, and the gateway's end of the stream.
    sent: Option<(Arc<Inventory>, Link)>,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let fleet = Arc::new(Fleet::default());
        let session = fleet.open("n1".into(), SECOND, "test".into()).unwrap();
        let (handovers, now) = (Handovers::default(), Timestamp::START);
        Self { fleet, session, handovers, sent: None, now }
    }

    /// One tick of the agent, over the wire into the gateway.
    fn tick(
        &mut self,
        devices: Vec<ObservedDevice>,
        declaration: &Declaration,
        processes: &ProcessOwners,
    ) {
        self.now = self.now + SECOND;
        let observation = Observation { devices, ..Observation::default() };
        let known = Known { file: &Declared::new(), declaration, processes };
        let mut owners = resolve(&observation, known);
        self.handovers.mark(&observation, &mut owners, self.now);
        let previous = self.sent.as_ref().map(|(inventory, _)| inventory);
        let frame = assemble(observation, owners, previous);
        let link = match self.sent.take() {
            Some((inventory, link)) if Arc::ptr_eq(&inventory, &frame.inventory) => link,
            _ => {
                let (link, refusals) = Link::open(inventory_to_wire(1, &frame.inventory)).unwrap();
                assert_eq!(refusals, Vec::<String>::new());
                link
            }
        };
        let message = sample_to_wire(1, &frame.sample, Duration::ZERO);
        let (sample, refusals) = link.sample(message).unwrap();
        assert_eq!(refusals, Vec::<String>::new());
        self.session.apply(link.inventory(), sample, self.now);
        self.agrees(&frame);
        self.sent = Some((frame.inventory, link));
    }

    /// What is nobody's is the same to the agent alone and to the gateway.
    fn agrees(&self, frame: &Frame) {
        let taken = Taken { frame: frame.clone(), at: self.now, kubelet: None };
        let here = View::of(&taken, self.now, 10 * SECOND);
        let there = self.fleet.view(&"n1".into()).unwrap();
        for (at, device) in here.devices.iter().enumerate() {
            let uuid = &device.device.uuid;
            assert_eq!(device.unattributed(), unattributed(&there, at), "of {uuid}");
        }
    }

    /// What the gateway has of `metric` for `pod`, and when that was read.
    fn reading(&self, pod: &str, metric: Metric) -> Option<(Reading, Option<Timestamp>)> {
        let view = self.fleet.view(&"n1".into())?;
        let pod = view.pod(&PodKey::new("ml", pod), None)?;
        let mut readings = pod.devices().map(|(claim, _)| pod.reading(claim, metric));
        let reading = readings.next();
        assert!(readings.next().is_none(), "one device");
        reading
    }

    fn value(&self, pod: &str, metric: Metric) -> f64 {
        match self.reading(pod, metric).unwrap().0 {
            Reading::Ok(value) => value,
            other => panic!("{metric} of {pod}: {other:?}"),
        }
    }
}

fn device(uuid: &str, readings: &[(Metric, f64)], processes: Processes) -> ObservedDevice {
    let readings = readings.iter().map(|&(metric, value)| (metric, Reading::Ok(value)));
    ObservedDevice {
        uuid: uuid.into(),
        index: 0,
        name: "card".into(),
        memory_total_mib: None,
        mig: None,
        holders: Vec::new(),
        reason: None,
        age: Duration::ZERO,
        readings: readings.collect(),
        seat: Seat::default(),
        processes,
        condition: Condition::default(),
    }
}

fn declaration(holders: &[(&str, &[&str])]) -> Declaration {
    let holder = |pod: &&str| DeclaredHolder {
        pod: PodKey::new("ml", *pod),
        uid: Some(format!("uid of {pod}").into()),
        container: "main".into(),
        source: HolderSource::Kubelet,
    };
    let of = |(uuid, pods): &(&str, &[&str])| {
        ((*uuid).into(), pods.iter().map(holder).collect::<Vec<_>>())
    };
    let holders = holders.iter().map(of).collect();
    Declaration { holders, is_known: true, ..Declaration::default() }
}

fn owners(pods: &[(u32, &str)]) -> ProcessOwners {
    let occupant = |&(pid, pod): &(u32, &str)| {
        let uid = format!("uid of {pod}").into();
        let pod = Some(PodKey::new("ml", pod));
        (pid, Occupant::Pod(PodProcess { uid, pod, container: Some("main".into()) }))
    };
    let occupants = pods.iter().map(occupant).collect();
    ProcessOwners { occupants, trouble: None, changed: false }
}

fn processes(used: &[(u32, f64)]) -> Processes {
    let process = |&(pid, used): &(u32, f64)| ObservedProcess {
        pid,
        memory_mib: None,
        utilization: Some(used),
    };
    Processes::Known(used.iter().map(process).collect())
}

#[test]
fn three_pods_on_a_time_sliced_card_have_their_own_parts_of_load_and_energy() {
    let declared = declaration(&[("GPU-1", &["a1", "a2", "b1"])]);
    let owners = owners(&[(1, "a1"), (2, "a2"), (3, "b1")]);
    let used = processes(&[(1, 60.0), (2, 20.0), (3, 10.0)]);
    let card = [
        (Metric::GpuUtilization, 90.0),
        (Metric::PowerDraw, 300.0),
        (Metric::Temperature, 60.0),
        (Metric::MemoryUsedMib, 1_000.0),
    ];
    let mut world = World::new();
    let (mut a, mut b) = (0.0, 0.0);
    for _ in 0..600 {
        world.tick(vec![device("GPU-1", &card, used.clone())], &declared, &owners);
        let both = |metric| world.value("a1", metric) + world.value("a2", metric);
        assert_eq!(both(Metric::GpuUtilization), 80.0);
        assert_eq!(world.value("b1", Metric::GpuUtilization), 10.0);
        a += both(Metric::PowerDraw) / 3_600.0;
        b += world.value("b1", Metric::PowerDraw) / 3_600.0;
    }
    // All by share: 44.4 Wh and 5.6 Wh of 50.
    assert!((a - 44.444).abs() < 0.001, "{a} Wh");
    assert!((b - 5.556).abs() < 0.001, "{b} Wh");
    // What each feels in full is not split; what cannot be told is not known.
    assert_eq!(world.value("b1", Metric::Temperature), 60.0);
    let (memory, _) = world.reading("b1", Metric::MemoryUsedMib).unwrap();
    assert_eq!(memory, Reading::Failed("its share of a shared device is not known".into()));
}

#[test]
fn slices_of_a_mig_gpu_have_their_own_memory_and_no_utilisation() {
    let slice = |uuid, used: f64| {
        let total = 19_968.0;
        let percent = used / total * 100.0;
        let memory = [(Metric::MemoryUsedMib, used), (Metric::MemoryUsedPercent, percent)];
        let mut slice = device(uuid, &memory, Processes::Known(Vec::new()));
        slice.memory_total_mib = Some(total);
        slice.mig = Some(Mig { parent: "GPU-1".into(), profile: "3g.20gb".into() });
        slice
    };
    let parent = [(Metric::MemoryUsedMib, 20_100.0), (Metric::GpuUtilization, 100.0)];
    let parent = device("GPU-1", &parent, Processes::Unasked);
    let declared = declaration(&[("MIG-1", &["a"]), ("MIG-2", &["b"])]);
    let mut world = World::new();
    let devices = vec![parent, slice("MIG-1", 18_000.0), slice("MIG-2", 2_000.0)];
    world.tick(devices, &declared, &owners(&[]));
    let percent = |pod| (world.value(pod, Metric::MemoryUsedPercent) * 1_000.0).round() / 1_000.0;
    assert_eq!((percent("a"), percent("b")), (90.144, 10.016));
    let (utilization, _) = world.reading("a", Metric::GpuUtilization).unwrap();
    assert_eq!(utilization, Reading::Unsupported, "never the parent's");
}

#[test]
fn the_new_owner_of_a_device_has_no_reading_until_the_device_is_read_again() {
    let nobody = owners(&[]);
    let read = |load| vec![device("GPU-1", &[(Metric::GpuUtilization, load)], processes(&[]))];
    let of = |pod| declaration(&[("GPU-1", &[pod])]);
    let mut world = World::new();
    world.tick(read(90.0), &of("old"), &nobody);
    assert_eq!(world.value("old", Metric::GpuUtilization), 90.0);

    // Half of what is read now is the old one's.
    world.tick(read(45.0), &of("new"), &nobody);
    assert_eq!(world.reading("old", Metric::GpuUtilization), None);
    let never = Some((Reading::Unsupported, None));
    assert_eq!(world.reading("new", Metric::GpuUtilization), never, "it was never read for it");

    world.tick(read(5.0), &of("new"), &nobody);
    assert_eq!(world.value("new", Metric::GpuUtilization), 5.0);
    assert_eq!(world.reading("new", Metric::GpuUtilization).unwrap().1, Some(world.now));

    // The past stays the old one's.
    let past = world.fleet.history(&"n1".into(), Timestamp::START);
    let new = PodKey::new("ml", "new");
    let with_new: Vec<_> = past.iter().filter(|view| view.holds(&new)).collect();
    for view in with_new {
        let pod = view.pod(&new, None).unwrap();
        for (claim, _) in pod.devices() {
            let (reading, _) = pod.reading(claim, Metric::GpuUtilization);
            assert!([Reading::Unsupported, Reading::Ok(5.0)].contains(&reading), "{reading:?}");
        }
    }
}
