use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proto::convert::{Error, Link, MAX_DEVICES, MAX_REFUSALS, inventory_to_wire, sample_to_wire};
use proto::uplink as wire;
use shared::frame::{
    Device, DeviceSample, Engine, EngineSample, HeldReading, Holder, HolderSource, Inventory, Mig,
    Sample,
};
use shared::health::{Energy, Health, MAX_XIDS, Origin, RecoveryAction, Throttle, XidCount};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::{Reading, Readings};

fn a_readings() -> impl Strategy<Value = Readings> {
    let reading = prop_oneof![
        (0.0..=100.0).prop_map(Reading::Ok),
        Just(Reading::Unsupported),
        "[a-z ]{1,20}".prop_map(|reason| Reading::Failed(reason.into())),
    ];
    prop::collection::vec((0..Metric::ALL.len(), reading), 0..10)
        .prop_map(|list| list.into_iter().map(|(n, reading)| (Metric::ALL[n], reading)).collect())
}

fn a_holder() -> impl Strategy<Value = Holder> {
    ("[a-z]{1,8}", "[a-z0-9-]{1,12}", prop::option::of(0.0..=1.0), any::<bool>()).prop_map(
        |(namespace, pod, share, estimated)| Holder {
            pod: PodKey::new(namespace, pod.as_str()),
            uid: estimated.then(|| format!("uid-{pod}").into()),
            container: "engine".into(),
            share,
            estimated,
            source: HolderSource::Process,
            undeclared: estimated,
        },
    )
}

fn an_energy() -> impl Strategy<Value = Energy> {
    let origin = prop_oneof![Just(Origin::Counter), (1..u64::MAX).prop_map(Origin::Integrated)];
    (0.0..=Energy::MAX_JOULES, origin).prop_map(|(joules, origin)| Energy { joules, origin })
}

fn a_throttling() -> impl Strategy<Value = Box<[(Throttle, f64)]>> {
    let percents = prop::collection::vec(prop::option::of(0.0..=100.0), Throttle::ALL.len());
    percents.prop_map(|percents| {
        let known = Throttle::ALL.into_iter().zip(percents);
        known.filter_map(|(throttle, percent)| Some((throttle, percent?))).collect()
    })
}

fn a_health() -> impl Strategy<Value = Health> {
    let xids = prop::collection::btree_map(any::<u32>(), 1..u64::MAX, 0..MAX_XIDS);
    let flag = || prop::option::of(any::<bool>());
    let counts = (prop::option::of(xids), prop::option::of(any::<u64>()));
    let action = prop::option::of((0..9_u32).prop_map(RecoveryAction::from_number));
    (counts, flag(), flag(), action, any::<bool>()).prop_map(
        |((xids, ecc_uncorrected), remap_pending, remap_failed, recovery, lost)| Health {
            xids: xids
                .map(|xids| xids.into_iter().map(|(xid, count)| XidCount { xid, count }).collect()),
            ecc_uncorrected,
            remap_pending,
            remap_failed,
            recovery,
            lost,
        },
    )
}

fn a_device() -> impl Strategy<Value = (Device, Option<DeviceSample>)> {
    let used = (prop::option::of(an_energy()), a_throttling());
    let sample = (a_readings(), 0..100_000_u64, prop::option::of(0.0..=100.0), used);
    let known = (prop::option::of(a_health()), any::<bool>());
    (prop::collection::vec(a_holder(), 0..4), prop::option::of(sample), known).prop_map(
        |(holders, sample, (health, sliced))| {
            let sample = sample.map(|(readings, age, held, (energy, throttled))| DeviceSample {
                age: Duration::from_millis(age),
                readings,
                held: held
                    .filter(|_| !holders.is_empty())
                    .map(|value| HeldReading { holder: 0, metric: Metric::GpuUtilization, value })
                    .into_iter()
                    .collect(),
                energy,
                throttled,
            });
            let device = Device {
                uuid: "set below".into(),
                index: 0,
                name: "NVIDIA H100 80GB HBM3".into(),
                memory_total_mib: (!sliced).then_some(81_559.0),
                mig: sliced.then(|| Mig { parent: "GPU-0".into(), profile: "3g.40gb".into() }),
                holders,
                reason: sliced.then(|| "kubelet does not answer".into()),
                health: health.map(Box::new),
            };
            (device, sample)
        },
    )
}

proptest! {
    #[test]
    fn a_frame_arrives_as_it_was_sent(
        devices in prop::collection::vec(a_device(), 0..6),
        engine in a_readings(),
        waited in 0..5_000_u64,
    ) {
        let (mut devices, samples): (Vec<_>, Vec<_>) = devices.into_iter().unzip();
        for (index, device) in devices.iter_mut().enumerate() {
            device.index = u32::try_from(index).unwrap();
            device.uuid = format!("GPU-{index}").into();
        }
        let inventory = Inventory {
            devices,
            engines: vec![Engine {
                pod: PodKey::new("ai", "vllm-0"),
                uid: Some("u-0".into()),
                labels: "model_name=m1".into(),
            }],
            reason: None,
        };
        let sample = Sample {
            devices: samples,
            engines: vec![Some(EngineSample { age: Duration::ZERO, readings: engine })],
        };

        let (link, refusals) = Link::open(inventory_to_wire(7, &inventory)).unwrap();
        prop_assert!(refusals.is_empty(), "{refusals:?}");
        let waited = Duration::from_millis(waited);
        let (arrived, refusals) = link.sample(sample_to_wire(7, &sample, waited)).unwrap();
        prop_assert!(refusals.is_empty(), "{refusals:?}");

        let mut expected = sample;
        expected.devices.iter_mut().flatten().for_each(|device| device.age += waited);
        expected.engines.iter_mut().flatten().for_each(|engine| engine.age += waited);
        prop_assert_eq!(link.inventory(), &Arc::new(inventory));
        prop_assert_eq!(arrived, expected);
    }
}

fn device(uuid: &str) -> wire::Device {
    wire::Device { uuid: uuid.into(), name: "H100".into(), ..Default::default() }
}

#[test]
fn a_bad_element_refuses_itself_and_leaves_its_neighbours_in_place() {
    let holder = wire::Holder {
        namespace: "ai".into(),
        pod: "vllm-0".into(),
        source: wire::HolderSource::Replay.into(),
        share: Some(1.0),
        ..Default::default()
    };
    let mut good = device("GPU-1");
    good.holders = vec![
        wire::Holder { share: Some(f64::NAN), ..holder.clone() },
        wire::Holder { pod: String::new(), ..holder.clone() },
        holder,
    ];
    let inventory = wire::Inventory {
        generation: 1,
        devices: vec![device("GPU-0"), device("GPU-0"), device(""), good, device(&"x".repeat(300))],
        ..Default::default()
    };
    let (link, refusals) = Link::open(inventory).unwrap();
    let uuids: Vec<_> = link.inventory().devices.iter().map(|d| d.uuid.as_str()).collect();
    assert_eq!(uuids, ["GPU-0", "GPU-1"]);
    assert_eq!(refusals.len(), 5, "{refusals:?}");

    let gpu = u32::from(Metric::GpuUtilization as u8) + 1;
    let at = |device, metrics: Vec<u32>, values: Vec<f64>| wire::DeviceSample {
        device,
        metrics,
        values,
        held: vec![wire::HeldReading { holder: 2, metric: gpu, value: 25.0 }],
        ..Default::default()
    };
    let sample = wire::Sample {
        generation: 1,
        devices: vec![
            at(0, vec![gpu], vec![f64::INFINITY]),
            at(1, vec![gpu], vec![1.0]),
            at(3, vec![gpu, 999], vec![50.0, 1.0]),
            at(4, vec![gpu], vec![1.0]),
            at(4_000_000_000, vec![gpu], vec![1.0]),
        ],
        ..Default::default()
    };
    let (sample, refusals) = link.sample(sample).unwrap();
    let first = sample.devices[0].as_ref().unwrap().readings.get(Metric::GpuUtilization);
    assert!(matches!(first, Reading::Failed(_)), "{first:?}");
    let second = sample.devices[1].as_ref().unwrap();
    assert_eq!(second.readings.get(Metric::GpuUtilization), Reading::Ok(50.0));
    assert_eq!(
        second.held,
        [HeldReading { holder: 0, metric: Metric::GpuUtilization, value: 25.0 }]
    );
    assert_eq!(refusals.len(), 4, "{refusals:?}");
}

#[test]
fn what_breaks_the_protocol_is_refused_whole() {
    let many = wire::Inventory {
        devices: (0..10_000).map(|n| device(&format!("GPU-{n}"))).collect(),
        ..Default::default()
    };
    let error = Link::open(many).unwrap_err();
    assert_eq!(error, Error::TooMany { what: "devices", count: 10_000, max: MAX_DEVICES });

    let (link, _) = Link::open(wire::Inventory { generation: 3, ..Default::default() }).unwrap();
    let late = wire::Sample { generation: 2, ..Default::default() };
    assert_eq!(link.sample(late).unwrap_err(), Error::OtherInventory { got: 2, expected: 3 });

    let uneven =
        wire::DeviceSample { metrics: vec![1, 2], values: vec![1.0], ..Default::default() };
    let inventory =
        wire::Inventory { generation: 1, devices: vec![device("GPU-0")], ..Default::default() };
    let (link, _) = Link::open(inventory).unwrap();
    let message = wire::Sample { generation: 1, devices: vec![uneven], ..Default::default() };
    let (sample, refusals) = link.sample(message).unwrap();
    assert_eq!(sample.devices, [None]);
    assert_eq!(refusals, ["sample of device 0: 2 metrics, but 1 values"]);
}

/// As many elements as fit into the largest message: time and memory grow with its size only.
#[test]
fn a_message_of_the_smallest_elements_is_taken_in_its_stride() {
    let holder = wire::Holder {
        namespace: "ai".into(),
        pod: "vllm-0".into(),
        source: wire::HolderSource::Replay.into(),
        ..Default::default()
    };
    let devices = vec![wire::Device { holders: vec![holder], ..device("GPU-0") }];
    let inventory = wire::Inventory { devices, ..Default::default() };
    let (link, _) = Link::open(inventory).unwrap();
    let [utilization, temperature] =
        [Metric::GpuUtilization, Metric::Temperature].map(|metric| u32::from(metric as u8) + 1);
    let of = |device| wire::Sample { devices: vec![device], ..Default::default() };

    let held = wire::HeldReading { holder: 0, metric: utilization, value: 25.0 };
    let repeated = wire::DeviceSample { held: vec![held; 250_000], ..Default::default() };
    let (sample, refusals) = link.sample(of(repeated)).unwrap();
    assert_eq!(sample.devices[0].as_ref().unwrap().held.len(), 1, "one reading, once");
    assert_eq!(refusals.len(), MAX_REFUSALS);

    let failure = wire::Failure { metric: temperature, reason: String::new() };
    let (metrics, values) = (vec![utilization; 200_000], vec![50.0; 200_000]);
    let failures = vec![failure; 500_000];
    let many = wire::DeviceSample { metrics, values, failures, ..Default::default() };
    let (sample, refusals) = link.sample(of(many)).unwrap();
    let readings = &sample.devices[0].as_ref().unwrap().readings;
    assert_eq!(readings.get(Metric::GpuUtilization), Reading::Ok(50.0));
    assert_eq!(readings.get(Metric::Temperature), Reading::Failed("".into()));
    assert!(refusals.is_empty());
}

#[test]
fn energy_health_and_throttling_are_bounded_and_each_kind_is_there_once() {
    let xids = (0..1_000).map(|n| wire::XidCount { xid: n % 40, count: u64::from(n % 3) });
    let health = wire::Health {
        tells_xids: true,
        xids: xids.collect(),
        recovery_action: Some(77),
        ..Default::default()
    };
    let inventory = wire::Inventory {
        devices: vec![wire::Device { health: Some(health), ..device("GPU-0") }],
        ..Default::default()
    };
    let (link, refusals) = Link::open(inventory).unwrap();
    assert_eq!(refusals, ["1000 kinds of XID errors; at most 32"]);
    let health = link.inventory().devices[0].health.as_ref().unwrap();
    assert!(health.xids.as_ref().unwrap().len() <= MAX_XIDS);
    assert_eq!(health.recovery, Some(RecoveryAction::Other(77)));

    let throttled = |reason, percent| wire::Throttled { reason, percent };
    for joules in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        let sample = wire::DeviceSample {
            energy_joules: Some(joules),
            throttled: vec![
                throttled(1, 80.0),
                throttled(1, 70.0),
                throttled(0, 1.0),
                throttled(-5, 1.0),
                throttled(99, 1.0),
                throttled(2, f64::NAN),
            ],
            ..Default::default()
        };
        let message = wire::Sample { devices: vec![sample], ..Default::default() };
        let (sample, refusals) = link.sample(message).unwrap();
        let sample = sample.devices[0].as_ref().unwrap();
        assert_eq!((sample.energy, &*sample.throttled), (None, &[(Throttle::Power, 80.0)][..]));
        assert_eq!(refusals.len(), 6, "{refusals:?}");
    }
}
