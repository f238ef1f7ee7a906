use std::sync::Arc;

use super::*;
use crate::directory::{Directory, Phase};

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1_000)
}

fn key() -> WorkloadKey {
    WorkloadKey { namespace: "ai".into(), kind: "Deployment".into(), name: "vllm".into() }
}

/// A pod that is not Ready since `since`, without a place.
fn pod(name: &str, since: Timestamp) -> Pod {
    Pod {
        key: PodKey::new("ai", name),
        uid: None,
        node: None,
        ip: None,
        ports: Box::default(),
        annotations: Box::default(),
        group: None,
        beside: false,
        terminating: false,
        phase: Phase::Pending,
        ready: false,
        since,
        unscheduled: None,
        containers: Box::default(),
    }
}

fn on_a_node(name: &str, since: Timestamp) -> Pod {
    Pod { node: Some("n1".into()), ..pod(name, since) }
}

fn ready(name: &str, since: Timestamp) -> Pod {
    Pod { ready: true, ..on_a_node(name, since) }
}

fn look(directory: &Directory, pods: &[Pod], now: Timestamp) {
    let workload = Workload {
        key: key(),
        replicas: 1,
        status_replicas: 1,
        pods: pods.iter().cloned().map(Arc::new).collect(),
        gone: Vec::new(),
        short_since: None,
        with_pods_since: None,
    };
    let before = directory.snapshot();
    let before = before.as_ref().and_then(|before| before.workload(&key()));
    let workload = Arc::new(workload.after(before.map(|before| &**before), now));
    directory.replace(Snapshot::new(now, [workload], Vec::new(), |_| SECOND));
}

fn seconds(span: Span) -> (Option<u64>, Option<u64>, usize) {
    (span.median.map(|m| m.as_secs()), span.p90.map(|p| p.as_secs()), span.pods)
}

const NONE: (Option<u64>, Option<u64>, usize) = (None, None, 0);

fn one(seconds: u64) -> (Option<u64>, Option<u64>, usize) {
    (Some(seconds), Some(seconds), 1)
}

#[test]
fn a_pod_that_was_seen_to_come_counts_step_by_step() {
    let directory = Directory::default();
    look(&directory, &[], at(0));
    look(&directory, &[pod("a", at(10))], at(11));
    let refused = Pod { unscheduled: Some("no GPU".into()), ..pod("a", at(10)) };
    look(&directory, &[refused], at(12));
    assert_eq!(directory.startup(&key()), Startup::default());
    look(&directory, &[on_a_node("a", at(10))], at(40));
    look(&directory, &[ready("a", at(160))], at(161));
    let startup = directory.startup(&key());
    assert_eq!(seconds(startup.ordered_to_scheduled), one(30));
    assert_eq!(seconds(startup.scheduled_to_ready), one(120));
    assert_eq!(seconds(startup.ready_to_first_reading), NONE);
    directory.first_readings(|_| None, at(162));
    directory.first_readings(|_| Some(at(163)), at(170));
    directory.first_readings(|_| Some(at(163)), at(171));
    assert_eq!(seconds(directory.startup(&key()).ready_to_first_reading), one(3));
    // It is no start when a pod that was Ready loses and finds its readiness again.
    look(&directory, &[on_a_node("a", at(200))], at(200));
    look(&directory, &[ready("a", at(230))], at(230));
    assert_eq!(seconds(directory.startup(&key()).scheduled_to_ready), one(120));
}

#[test]
fn what_was_there_at_the_first_look_teaches_only_what_came_after() {
    let directory = Directory::default();
    look(
        &directory,
        &[ready("old", Timestamp::LONG_AGO), on_a_node("b", at(-50)), pod("c", at(-5))],
        at(0),
    );
    let all = [ready("old", Timestamp::LONG_AGO), ready("b", at(20)), on_a_node("c", at(-5))];
    look(&directory, &all, at(20));
    directory.first_readings(|_| Some(at(5)), at(21));
    let startup = directory.startup(&key());
    assert_eq!(seconds(startup.ordered_to_scheduled), NONE, "nobody saw when they were ordered");
    assert_eq!(seconds(startup.scheduled_to_ready), NONE);
    assert_eq!(seconds(startup.ready_to_first_reading), one(0), "it was heard of before");
    look(&directory, &[ready("c", Timestamp::LONG_AGO)], at(50));
    assert_eq!(seconds(directory.startup(&key()).scheduled_to_ready), one(30));
}

#[test]
fn a_pod_that_is_replaced_under_its_name_starts_anew() {
    let directory = Directory::default();
    look(&directory, &[], at(0));
    let with_uid = |uid: &str, pod: Pod| Pod { uid: Some(uid.into()), ..pod };
    look(&directory, &[with_uid("1", pod("a", at(10)))], at(10));
    look(&directory, &[with_uid("2", on_a_node("a", at(60)))], at(60));
    look(&directory, &[with_uid("2", ready("a", at(65)))], at(65));
    let startup = directory.startup(&key());
    assert_eq!(seconds(startup.ordered_to_scheduled), one(0));
    assert_eq!(seconds(startup.scheduled_to_ready), one(5));
    // On a node already when it was first seen, but old: when it got there was not seen.
    look(&directory, &[with_uid("3", on_a_node("a", at(70)))], at(90));
    look(&directory, &[with_uid("3", ready("a", at(95)))], at(95));
    assert_eq!(seconds(directory.startup(&key()).scheduled_to_ready), one(5));
}

#[test]
fn median_and_p90_are_of_the_newest_pods_and_memory_is_bounded() {
    let directory = Directory::default();
    look(&directory, &[], at(0));
    for number in 1..=10 {
        look(&directory, &[pod("a", at(number * 100))], at(number * 100));
        look(&directory, &[on_a_node("a", at(number * 100))], at(number * 101));
        look(&directory, &[], at(number * 101));
    }
    let span = directory.startup(&key()).ordered_to_scheduled;
    assert_eq!(seconds(span), (Some(5), Some(9), 10));
    let many: Vec<_> = (0..5_000).map(|number| pod(&number.to_string(), at(2_000))).collect();
    look(&directory, &many, at(2_000));
    let many: Vec<_> = many.iter().map(|pod| on_a_node(&pod.key.name, at(2_000))).collect();
    look(&directory, &many, at(2_007));
    let startups = directory.startups.lock();
    assert_eq!(startups.0[&key()].followed.len(), MAX_FOLLOWED);
    assert_eq!(seconds(startups.of(&key()).ordered_to_scheduled), (Some(7), Some(7), MAX_SPANS));
}
