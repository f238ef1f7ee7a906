//! Readings that are missing and parts that are not known: nothing is given to who did not have it,
//! and what is not known is not zero.

use super::*;

fn unread(gpu: Gpu) -> Gpu {
    Gpu { joules: None, ..gpu }
}

#[test]
fn energy_of_a_time_without_readings_is_nobodys_if_the_device_changed_hands_in_it() {
    let mut world = World::new();
    world.workload("old", 1, &[ready("a")], at(0.0));
    world.workload("new", 1, &[ready("b")], at(0.0));
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    let of_pod = |second, pod| gpu("u1", 50.0, 200.0 * second, &[pod]);
    run(&mut ledger, &world, &agent, 0..=10, |second| vec![of_pod(second, "a")]);
    // The counter is not read for twenty seconds; who has the device is.
    run(&mut ledger, &world, &agent, 11..=20, |second| vec![unread(of_pod(second, "a"))]);
    run(&mut ledger, &world, &agent, 21..=30, |second| vec![unread(of_pod(second, "b"))]);
    run(&mut ledger, &world, &agent, 31..=40, |second| vec![of_pod(second, "b")]);
    let changed = report(&ledger, &world, at(40.0));
    near(of(&changed, "old").joules, 10.0 * 200.0);
    near(of(&changed, "new").joules, 9.0 * 200.0);
    near(changed.nodes[0].joules_unattributed, 21.0 * 200.0);
    near(changed.nodes[0].joules, 40.0 * 200.0);

    run(&mut ledger, &world, &agent, 41..=60, |second| vec![unread(of_pod(second, "b"))]);
    run(&mut ledger, &world, &agent, 61..=70, |second| vec![of_pod(second, "b")]);
    let same = report(&ledger, &world, at(70.0));
    near(of(&same, "new").joules, 39.0 * 200.0);
    near(same.nodes[0].joules_unattributed, 21.0 * 200.0);
}

#[test]
fn idle_energy_of_a_time_without_readings_is_idle_for_all_of_it() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let idle_watts = vec!["H100=60".parse().unwrap()];
    let mut given = Ledger::new(Tariff { idle_watts, ..Tariff::default() });
    let mut learned = Ledger::default();
    for second in 0..=100_u32 {
        let gpu = gpu("u1", 0.0, 60.0 * f64::from(second), &["a"]);
        // Of every forty seconds the counter is read in ten.
        let gpu = if second % 40 > 10 { unread(gpu) } else { gpu };
        push(&agent, &[gpu], at(f64::from(second)));
        look(&mut given, &world, at(f64::from(second)));
        look(&mut learned, &world, at(f64::from(second)));
    }
    let given = report(&given, &world, at(100.0));
    near(of(&given, "llm").joules_idle, 90.0 * 60.0);
    near(of(&given, "llm").joules_dynamic, 0.0);
    let learned = report(&learned, &world, at(100.0));
    near(of(&learned, "llm").joules, 90.0 * 60.0);
    // Ten seconds until it is known, and not a joule above what is drawn idle after it.
    near(of(&learned, "llm").joules_dynamic, 9.0 * 60.0);
}

#[test]
fn the_part_of_who_is_not_told_apart_is_null_and_not_zero() {
    let world = World::new();
    let agent = world.agent("n1");
    let idle_watts = vec!["H100=80".parse().unwrap()];
    let ledgers = [Ledger::default(), Ledger::new(Tariff { idle_watts, ..Tariff::default() })];
    let [unknown, known] = ledgers.map(|mut ledger| {
        for second in (0..=60).map(f64::from) {
            let gpu = gpu("u1", 50.0, 300.0 * second, &["a", "b"]);
            let mut device = gpu.device();
            device.holders.iter_mut().for_each(|holder| holder.share = None);
            let inventory = Arc::new(Inventory { devices: vec![device], ..Inventory::default() });
            let sample = Sample { devices: vec![Some(gpu.sample())], engines: Vec::new() };
            agent.apply(&inventory, sample, at(second));
            look(&mut ledger, &world, at(second));
        }
        report(&ledger, &world, at(60.0))
    });
    let nothing = Counted { gpu_seconds_held: 30.0, ..Counted::default() };
    assert_eq!(*of(&unknown, "a"), nothing);
    near(unknown.nodes[0].joules_unattributed, 18_000.0);
    let part = of(&known, "a");
    assert_eq!((part.gpu_seconds_busy, part.joules_dynamic), (None, None));
    near(part.joules_idle, 2_400.0);
    near(known.nodes[0].joules_attributed, 4_800.0);
}

#[test]
fn pods_that_work_at_the_same_time_are_not_busier_together_than_their_gpu() {
    let mut world = World::new();
    world.workload("a", 1, &[ready("a1")], at(0.0));
    world.workload("b", 1, &[ready("b1")], at(0.0));
    let agent = world.agent("n1");
    let mut ledger = Ledger::default();
    run(&mut ledger, &world, &agent, 0..=100, |second| {
        let pods = ["a1", "b1"].map(|pod| (pod.into(), Some(90.0))).into();
        vec![Gpu { pods, ..gpu("u1", 95.0, 300.0 * second, &[]) }]
    });
    let report = report(&ledger, &world, at(100.0));
    for name in ["a", "b"] {
        near(of(&report, name).gpu_seconds_busy, 50.0);
        near(of(&report, name).joules, 15_000.0);
    }
}

#[test]
fn an_idle_pod_stays_named_between_the_readings_of_a_slow_agent() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let intervals = Duration::from_secs(20);
    let agent = world.fleet.open("n1".into(), intervals, "test".into()).unwrap();
    let mut ledger = Ledger::default();
    for second in 0..=200_u32 {
        let now = at(f64::from(second));
        if second % 20 == 0 {
            push(&agent, &[gpu("u1", 0.0, 0.0, &["a"])], now);
        }
        look(&mut ledger, &world, now);
        let idle = report(&ledger, &world, now).idle;
        assert_eq!(idle.len(), usize::from(second >= 10), "at {second} s");
    }
    assert_eq!(report(&ledger, &world, at(240.0)).idle.len(), 1);
    assert!(report(&ledger, &world, at(261.0)).idle.is_empty(), "not read any more: not known");
}
