//! From three replicas to zero and back by the router's queue: order and counts are asserted, times
//! are not.

use loadtest::night::{self, COOLDOWN, Event, MODEL_LOAD, NEEDED, Part};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_sleeps_wakes_by_the_queue_and_grows_and_no_serving_pod_is_killed() {
    assert!(MODEL_LOAD > COOLDOWN, "else KEDA's cooldown alone would keep it");
    let mut told = Vec::new();
    let report = night::run(|event| told.push(event), &CancellationToken::new()).await.unwrap();

    let seen = format!("{report:#?}\n{told:#?}");
    assert_eq!(report.problems(), Vec::<String>::new(), "{seen}");
    assert_eq!(report.path[..3], [3, 0, 1], "{seen}");
    assert_eq!(report.path.last(), Some(&NEEDED), "40 requests at 8 a replica: {seen}");
    assert_eq!(report.killed, 0, "{seen}");
    let parts: Vec<Part> = told.iter().filter_map(began).collect();
    assert_eq!(parts, [Part::Day, Part::Night, Part::Morning], "{seen}");
}

fn began(event: &Event) -> Option<Part> {
    match event {
        Event::Began(part, _) => Some(*part),
        _ => None,
    }
}
