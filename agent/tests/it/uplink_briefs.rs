//! What several gateways say of one node, put together.

use std::net::SocketAddr;

use agent::uplink::briefs::{Briefs, Stream};
use shared::brief::{Brief, BriefedPod, EnginePage, EngineTarget};

use crate::declared::briefed;
use crate::support::at;

fn stream(number: u8) -> Stream {
    let address = SocketAddr::from(([10, 0, 0, number], 6001));
    ("http://gateways:6001".parse().unwrap(), address)
}

fn target(ports: &[u16], labels: &[&str], engine: Option<&str>) -> EngineTarget {
    let page = |&port: &u16| EnginePage { port, path: "/metrics".into() };
    EngineTarget {
        pages: ports.iter().map(page).collect(),
        labels: labels.iter().map(|&labels| labels.into()).collect(),
        engine: engine.map(Into::into),
    }
}

fn asking(uid: &str, engine: Option<EngineTarget>) -> Brief {
    let pod = BriefedPod { engine, ..briefed("llm", uid) };
    Brief { pods: vec![pod], devices: Vec::new() }
}

fn engine(briefs: &Briefs) -> Option<EngineTarget> {
    briefs.together().unwrap().pods[0].engine.clone()
}

#[test]
fn one_stream_is_believed_as_it_is_and_none_says_nothing() {
    let mut briefs = Briefs::default();
    assert_eq!(briefs.together(), None);
    for brief in [asking("u1", Some(target(&[8000], &[""], None))), asking("u1", None)] {
        briefs.hear(&stream(1), brief.clone());
        assert_eq!(briefs.together(), Some(brief));
    }
}

#[test]
fn an_engine_is_read_as_any_replica_asks_whichever_spoke_last() {
    let (one, two) = (target(&[8000], &[""], None), target(&[8000, 9000], &["a=1"], Some("vllm")));
    let both = Some(target(&[8000, 9000], &["", "a=1"], Some("vllm")));
    let mut briefs = Briefs::default();
    briefs.hear(&stream(1), asking("u1", Some(one.clone())));
    briefs.hear(&stream(2), asking("u1", Some(two)));
    assert_eq!(engine(&briefs), both);
    briefs.hear(&stream(1), asking("u1", Some(one)));
    assert_eq!(engine(&briefs), both, "the order does not change either");
    briefs.hear(&stream(3), asking("u1", None));
    assert_eq!(engine(&briefs), both);
}

#[test]
fn pods_are_those_of_the_newest_and_another_pods_engine_is_not_theirs() {
    let mut briefs = Briefs::default();
    briefs.hear(&stream(1), asking("u1", Some(target(&[8000], &[""], None))));
    briefs.hear(&stream(2), asking("u2", None));
    assert_eq!(briefs.together(), Some(asking("u2", None)));
    briefs.hear(&stream(2), Brief::default());
    assert_eq!(briefs.together(), Some(Brief::default()), "it is gone");
}

#[test]
fn a_stream_that_ended_counts_for_a_minute_and_the_last_word_until_somebody_speaks() {
    let asked = || asking("u1", Some(target(&[8000], &[""], None)));
    let mut briefs = Briefs::default();
    briefs.hear(&stream(1), asked());
    briefs.hear(&stream(2), asking("u1", None));
    briefs.end(&stream(1), at(0));
    briefs.end(&stream(1), at(30_000));
    briefs.forget(at(59_999));
    assert!(engine(&briefs).is_some());
    briefs.forget(at(60_000));
    assert_eq!(engine(&briefs), None);

    briefs.end(&stream(2), at(60_000));
    briefs.forget(at(1_000_000));
    assert_eq!(briefs.together(), Some(asking("u1", None)), "nobody else speaks");
    briefs.hear(&stream(3), asked());
    briefs.forget(at(1_000_000));
    assert_eq!(briefs.together(), Some(asked()));

    // One that comes back is no longer one that has ended.
    briefs.end(&stream(3), at(1_000_000));
    briefs.hear(&stream(3), asked());
    briefs.hear(&stream(4), asking("u1", None));
    briefs.forget(at(2_000_000));
    assert!(engine(&briefs).is_some());
}

#[test]
fn together_they_ask_for_no_more_than_one_may() {
    let mut briefs = Briefs::default();
    for number in 0..40_u8 {
        let ports = [8000 + u16::from(number)];
        let target = target(&ports, &[&format!("n={number}")], None);
        briefs.hear(&stream(number), asking("u1", Some(target)));
    }
    let engine = engine(&briefs).unwrap();
    assert_eq!((engine.pages.len(), engine.labels.len()), (8, 32));
}
