//! The demo's simulation: order and counts are asserted, times are not.

use std::time::Duration;

use loadtest::load::Load;
use loadtest::simulation::{Event, Simulation};
use loadtest::stage::{Scaling, Setup, Stage};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn replicas_follow_the_load_without_overshoot_and_a_lost_agent_does_not_shake_them() {
    let scaling = Scaling { target: 60.0, min: 1, max: 8 };
    let load = Load { length: Duration::from_secs(45), idle: 30.0, peak: 230.0 };
    let mut told = Vec::new();
    let stage = Stage::build(Setup::by_utilization(scaling, load.idle)).await.unwrap();
    stage.warm_up().await.unwrap();
    let simulation = Simulation::new(stage, scaling, load, |event| told.push(event));
    let report = simulation.run(&CancellationToken::new()).await.unwrap();

    let seen = format!("{report:#?}\n{told:#?}");
    assert_eq!(report.problems(), Vec::<String>::new(), "{seen}");
    assert_eq!(report.needed, 4, "230 / 60, rounded up");
    assert_eq!(report.reached, report.needed, "{seen}");
    assert_eq!(report.most(), report.needed, "no overshoot while models load: {seen}");
    assert_eq!(report.path.first(), Some(&scaling.min), "{seen}");
    assert_eq!(report.path.last(), Some(&scaling.min), "back at the floor: {seen}");
    assert!(report.is_one_hill(), "{seen}");
    assert_eq!(report.shaken, 0, "{seen}");

    let place = |wanted: fn(&Event) -> bool| told.iter().position(wanted);
    let killed = place(|event| matches!(event, Event::Killed(..)));
    let restarted = place(|event| matches!(event, Event::Restarted(_)));
    assert!(killed.is_some() && killed < restarted, "{seen}");
    let is_scaled_by_keda = |event: &Event| matches!(event, Event::Scaled(..));
    assert!(!told.iter().any(is_scaled_by_keda), "with a floor of 1 only the HPA scales: {seen}");
}
