//! Who looks at which page of demand, and how many there may be. Nothing is read here.

use std::time::Duration;

use gateway::demand::Demands;
use gateway::demand::place::Rules;
use gateway::trigger::observed::DemandReading;
use gateway::trigger::spec::{Absent, Demand, DemandEndpoint};
use shared::identity::ScaledObjectKey;
use shared::process::Clock;
use shared::time::Timestamp;

const STALE_AFTER: Duration = Duration::from_secs(10);

fn demand(endpoint: &str, metric: &str) -> Demand {
    Demand {
        endpoint: DemandEndpoint::parse(endpoint).unwrap(),
        metric: metric.into(),
        labels: Vec::new(),
        threshold: 0.0,
        absent: Absent::Error,
    }
}

fn demands() -> Demands {
    Demands::new(Rules::default(), Clock::start())
}

/// Why nothing is known.
fn ask(demands: &Demands, object: &ScaledObjectKey, demand: &Demand) -> String {
    match demands.reading(object, demand, STALE_AFTER, Timestamp::START) {
        DemandReading::Unknown(why) => why.to_string(),
        other => panic!("nothing was read, and yet {other:?}"),
    }
}

#[test]
fn a_page_is_one_whatever_its_spelling_and_whoever_asks() {
    let demands = demands();
    for (at, host) in ["router", "router.ai", "router.ai.svc"].into_iter().enumerate() {
        let object = ScaledObjectKey::new("ai", format!("so-{at}"));
        let why = ask(&demands, &object, &demand(&format!("http://{host}:9/m"), "q"));
        assert_eq!(why, format!("http://{host}:9/m: it has not been read yet"));
    }
    assert_eq!(demands.len(), 1);
    let elsewhere = ScaledObjectKey::new("other", "so");
    ask(&demands, &elsewhere, &demand("http://router:9/m", "q"));
    assert_eq!(demands.len(), 2, "that name is another Service there");
}

#[test]
fn pages_and_selections_are_bounded_and_the_error_says_so() {
    let demands = demands();
    for at in 0..1_000 {
        let object = ScaledObjectKey::new(format!("ns-{at}"), "so");
        ask(&demands, &object, &demand("http://router/m", "q"));
    }
    let object = ScaledObjectKey::new("one-more", "so");
    let why = ask(&demands, &object, &demand("http://router/m", "q"));
    assert!(why.contains("1,000 pages"), "{why}");
    assert_eq!(demands.len(), 1_000);

    let object = ScaledObjectKey::new("ns-7", "so");
    let refused = (0..300).filter(|at| {
        let demand = demand("http://router/m", &format!("q{at}"));
        ask(&demands, &object, &demand).contains("256 different selections")
    });
    assert_eq!(refused.count(), 300 - 255, "one was there");
}

#[test]
fn another_namespace_s_page_is_never_looked_at() {
    let demands = demands();
    let why = ask(&demands, &ScaledObjectKey::new("ai", "so"), &demand("http://r.infra/m", "q"));
    assert!(why.contains("--demand-allow http://r.infra:80"), "{why}");
    assert!(demands.is_empty());
}
