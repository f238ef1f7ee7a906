//! Triggers on engine metrics: the worked cases with what an agent says of scraped pages, several
//! selections of one engine's series, and when a serving pod keeps its workload.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gateway::answer::Refusal;
use gateway::directory::DeclaredTrigger;
use gateway::explain::explain_at;
use gateway::fleet::Session;
use gateway::fleet::view::Intervals;
use gateway::trigger::observed::TargetType;
use shared::frame::{Engine, EngineSample, Inventory, Sample};
use shared::identity::PodKey;
use shared::metric::{Metric, Scope};
use shared::reading::Reading;
use shared::time::Timestamp;

use crate::cases::{ADevice, APod, World, at, push, ready};

pub(crate) const WAITING: (&str, &str) = ("metricType", "requests_waiting:5");

/// A pod, a selection of its series, and what these say.
type Row<'a> = (&'a str, &'a str, &'a [(Metric, Reading)]);

/// What each scrape of the agent's pods said just now.
fn scraped(agent: &Session, rows: &[Row<'_>], now: Timestamp) {
    let samples = rows.iter().map(|(.., readings)| {
        let readings = readings.iter().cloned().collect();
        Some(EngineSample { age: Duration::ZERO, readings })
    });
    let sample = Sample { engines: samples.collect(), ..Sample::default() };
    agent.apply(&inventory(rows), sample, now);
}

fn inventory(rows: &[Row<'_>]) -> Arc<Inventory> {
    let engines = rows.iter().map(|(pod, labels, _)| Engine {
        pod: PodKey::new("ml", *pod),
        uid: None,
        labels: (*labels).into(),
    });
    Arc::new(Inventory { engines: engines.collect(), ..Inventory::default() })
}

fn ok(metric: Metric, value: f64) -> (Metric, Reading) {
    (metric, Reading::Ok(value))
}

fn failed(metric: Metric, why: &str) -> (Metric, Reading) {
    (metric, Reading::Failed(why.into()))
}

/// Every engine metric failed: what a scrape that did not answer leaves.
fn no_answer(why: &str) -> Vec<(Metric, Reading)> {
    let engine = Metric::ALL.iter().filter(|metric| metric.scope() == Scope::Engine);
    engine.map(|metric| failed(*metric, why)).collect()
}

pub(crate) fn map(metadata: &[(&str, &str)]) -> HashMap<String, String> {
    metadata.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}

fn unavailable<T: std::fmt::Debug>(answer: Result<T, Refusal>) -> String {
    match answer {
        Err(Refusal::Unavailable(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// A world whose ScaledObjects all declare these triggers.
pub(crate) fn declaring(triggers: &[&[(&str, &str)]]) -> World {
    let declared = triggers.iter().enumerate().map(|(index, metadata)| DeclaredTrigger {
        index,
        pushes: true,
        name: None,
        target_type: TargetType::AverageValue,
        metadata: map(metadata),
    });
    World { triggers: declared.collect(), ..World::new() }
}

#[test]
fn an_engine_is_as_fresh_as_its_agent_means_to_read_it() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let seconds = Duration::from_secs;
    let every = Intervals { samples: seconds(1), engines: seconds(20) };
    let agent = world.fleet.open("n1".into(), every, "test".into()).unwrap();
    scraped(&agent, &[("a", "", &[ok(Metric::RequestsWaiting, 4.0)])], at(0.0));
    for second in [9.0, 15.0, 59.5] {
        assert_eq!(world.value("llm", &[WAITING], at(second)), Ok(4.0), "{second}");
        assert_eq!(world.active("llm", &[WAITING], at(second)), Ok(true), "{second}");
    }
    unavailable(world.value("llm", &[WAITING], at(60.5)));
    unavailable(world.active("llm", &[WAITING], at(60.5)));
    // Devices of the same node are read every second, and old after staleAfter.
    let gpu: &[ADevice<'_>] = &[("u1", "a", None, 50.0)];
    push(&agent, gpu, at(100.0));
    let utilization = [("targetGpuUtilization", "50")];
    assert_eq!(world.value("llm", &utilization, at(109.0)), Ok(50.0));
    unavailable(world.value("llm", &utilization, at(110.5)));
}

// === The worked cases ===

#[test]
fn o07_truly_idle_then_truly_unknown() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let idle = [
        Metric::RequestsWaiting,
        Metric::RequestsRunning,
        Metric::KvCacheUsage,
        Metric::QueueWaitMs,
        Metric::RequestRate,
    ]
    .map(|metric| ok(metric, 0.0));
    let triggers = ["requests_waiting:5", "queue_wait_ms:50", "request_rate:10"];
    let asked = triggers.map(|metric| [("metricType", metric)]);
    for second in 0..=300 {
        scraped(&agent, &[("a", "", &idle)], at(f64::from(second)));
    }
    for trigger in &asked {
        assert_eq!(world.value("llm", trigger, at(300.5)), Ok(0.0), "{trigger:?}");
        assert_eq!(world.active("llm", trigger, at(300.5)), Ok(false), "{trigger:?}");
    }
    scraped(&agent, &[("a", "", &no_answer("connection refused"))], at(301.0));
    for trigger in &asked {
        let why = unavailable(world.value("llm", trigger, at(301.5)));
        assert!(why.ends_with("no fresh reading of 1 ready pod (a): connection refused"), "{why}");
        unavailable(world.active("llm", trigger, at(301.5)));
    }
}

#[test]
fn a_scrape_that_only_grows_old_is_unknown_too() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let rows = [("a", "", &[ok(Metric::RequestsWaiting, 0.0)][..])];
    let inventory = inventory(&rows);
    scraped(&agent, &rows, at(0.0));
    for second in 1..=11 {
        let nothing_new = Sample { engines: vec![None], ..Sample::default() };
        agent.apply(&inventory, nothing_new, at(f64::from(second)));
    }
    assert_eq!(world.value("llm", &[WAITING], at(10.0)), Ok(0.0));
    let why = unavailable(world.value("llm", &[WAITING], at(11.0)));
    assert!(why.ends_with("the newest is 11.0 s old"), "{why}");
}

#[test]
fn o11_a_gauge_changes_its_name() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let kv = [("metricType", "vllm:gpu_cache_usage_perc:80")];
    // A, B and C: one name, the other, or both.
    scraped(&agent, &[("a", "", &[ok(Metric::KvCacheUsage, 42.0)])], at(1.0));
    assert_eq!(world.value("llm", &kv, at(1.5)), Ok(42.0));
    for (case, text) in [
        ("D", "vllm:kv_cache_usage_perc is NaN"),
        (
            "E",
            "vLLM has no vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc here; \
             found vllm:num_requests_running",
        ),
    ] {
        let said = [ok(Metric::RequestsRunning, 3.0), failed(Metric::KvCacheUsage, text)];
        scraped(&agent, &[("a", "", &said)], at(2.0));
        let why = unavailable(world.value("llm", &kv, at(2.5)));
        assert!(why.ends_with(text), "{case}: {why}");
    }
}

#[test]
fn what_was_looked_for_is_explained() {
    let text = "vLLM has no vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc here";
    let mut world = declaring(&[&[("metricType", "kv_cache_usage:80")]]);
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    scraped(&agent, &[("a", "", &[failed(Metric::KvCacheUsage, text)])], at(1.0));
    let explanation = explain_at(&world.answers, "ml", "llm", at(1.5)).unwrap();
    let trigger = &explanation.triggers[0];
    assert_eq!(trigger.status, "UNAVAILABLE");
    assert!(trigger.reason.ends_with(text), "{}", trigger.reason);
    assert_eq!(trigger.pods[0].why.as_deref(), Some(text));
    assert_eq!(trigger.pods[0].devices[0].state, text);
}

#[test]
fn o12_engines_of_one_pod_add_up_and_counters_are_rates() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let value = |metric: &str, now| world.value("llm", &[("metricType", metric)], at(now));
    // (a) Two engines: queues summed, the mean of the caches.
    let both = [ok(Metric::RequestsWaiting, 10.0), ok(Metric::KvCacheUsage, 60.0)];
    scraped(&agent, &[("a", "", &both)], at(0.0));
    assert_eq!(value("vllm_queue_depth:5", 0.5), Ok(10.0));
    assert_eq!(value("vllm_kv_cache_usage:80", 0.5), Ok(60.0));
    // (b) After the first scrape unknown, then 20 ms at 5 /s, then 5 ms at 1 /s.
    let first = "no earlier scrape to compare with yet";
    let said = [failed(Metric::QueueWaitMs, first), failed(Metric::RequestRate, first)];
    scraped(&agent, &[("a", "", &said)], at(1.0));
    for metric in ["triton_queue_wait_ms:50", "triton_request_rate:50"] {
        assert!(unavailable(value(metric, 1.5)).ends_with(first));
    }
    for (now, wait, rate) in [(11.0, 20.0, 5.0), (21.0, 5.0, 1.0)] {
        let said = [ok(Metric::QueueWaitMs, wait), ok(Metric::RequestRate, rate)];
        scraped(&agent, &[("a", "", &said)], at(now));
        assert_eq!(value("triton_queue_wait_ms:50", now + 0.5), Ok(wait));
        assert_eq!(value("triton_request_rate:50", now + 0.5), Ok(rate));
    }
}

#[test]
fn the_removed_throughput_gauges_are_the_rate_of_the_token_counter() {
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agent = world.agent("n1");
    let said = [ok(Metric::TokenThroughput, 1500.5)];
    scraped(&agent, &[("a", "", &said), ("b", "", &said)], at(1.0));
    for name in ["tok_per_s", "toks_per_s"] {
        let metric = format!("vllm:avg_generation_throughput_{name}:2000");
        assert_eq!(world.value("llm", &[("metricType", &metric)], at(1.5)), Ok(3001.0));
    }
}

// === Profiles and composites ===

#[test]
fn a_composite_whose_one_part_fails_everywhere_holds_while_another_is_fresh() {
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agent = world.agent("n1");
    let with = |waiting, running, kv: Reading| {
        let said = [
            ok(Metric::RequestsWaiting, waiting),
            ok(Metric::RequestsRunning, running),
            (Metric::KvCacheUsage, kv),
        ];
        scraped(&agent, &[("a", "", &said), ("b", "", &said)], at(1.0));
        world.value("llm", &[("profile", "vllm")], at(1.5))
    };
    let nan = || Reading::Failed("vllm:kv_cache_usage_perc is NaN".into());
    assert_eq!(with(1.0, 16.0, nan()), Ok(200.0), "hold");
    let held = world.assess("llm", &[("profile", "vllm")], at(1.5)).unwrap().verdict.reason;
    assert_eq!(
        held.to_string(),
        "kv_cache_usage: 0 of 2 replicas report (vllm:kv_cache_usage_perc is NaN); \
         2 missing could tip it either way, so nothing moves"
    );
    assert_eq!(with(20.0, 16.0, nan()), Ok(800.0), "the queue alone asks for more");
    assert_eq!(with(1.0, 16.0, Reading::Ok(20.0)), Ok(50.0), "2 pods × max(20, 25, 25) %");
    assert_eq!(with(0.0, 48.0, Reading::Ok(72.0)), Ok(180.0), "2 pods × max(0, 75, 90) %");
}

#[test]
fn what_an_engine_does_not_publish_is_refused_with_what_it_does() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let said = [ok(Metric::RequestsWaiting, 2.0), ok(Metric::RequestsRunning, 1.0)];
    scraped(&agent, &[("a", "", &said)], at(1.0));
    let use_instead = "use one that these pods report: requests_waiting, requests_running";
    for (metadata, who) in [
        (&[("profile", "tgi"), ("metricType", "kv_cache_usage:80")][..], "TGI does not publish it"),
        (&[("metricType", "kv_cache_usage:80")], "not supported by the devices or the engine"),
    ] {
        match world.value("llm", metadata, at(1.5)) {
            Err(Refusal::FailedPrecondition(why)) => {
                assert!(why.contains(who) && why.ends_with(use_instead), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.value("llm", &[("profile", "tgi")], at(1.5)), Ok(40.0), "max(2/5, 1/64)");
}

// === Rule 4 ===

#[test]
fn a_serving_pod_keeps_its_workload_whatever_the_threshold() {
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agent = world.agent("n1");
    let asked = [("metricType", "kv_cache_usage:80"), ("activationThreshold", "50")];
    let said = |running, kv| [ok(Metric::RequestsRunning, running), ok(Metric::KvCacheUsage, kv)];
    let (idle, serving) = (said(0.0, 0.0), said(1.0, 3.0));
    let mut now = 0.0;
    let mut go_on = |seconds: u32, a: &[(Metric, Reading)]| {
        for _ in 0..seconds {
            now += 1.0;
            scraped(&agent, &[("a", "", a), ("b", "", &idle)], at(now));
        }
        at(now)
    };
    let end = go_on(100, &idle);
    assert_eq!(world.active("llm", &asked, end), Ok(false));
    let end = go_on(1, &serving);
    assert_eq!(world.active("llm", &asked, end), Ok(true), "3 % is not above 50");
    let end = go_on(30, &idle);
    assert_eq!(world.active("llm", &asked, end), Ok(true), "within the activation window");
    let end = go_on(40, &idle);
    assert_eq!(world.active("llm", &asked, end), Ok(false));
}

#[test]
fn a_serving_pod_counts_as_activity_though_its_own_reading_failed_but_is_no_answer() {
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agent = world.agent("n1");
    let asked = [("metricType", "kv_cache_usage:80")];
    let blind = [ok(Metric::RequestsRunning, 2.0), failed(Metric::KvCacheUsage, "NaN")];
    let idle = [ok(Metric::RequestsRunning, 0.0), ok(Metric::KvCacheUsage, 0.0)];
    scraped(&agent, &[("a", "", &blind), ("b", "", &idle)], at(100.0));
    assert_eq!(world.value("llm", &asked, at(100.5)), Ok(80.0), "0 and one at the target");
    assert_eq!(world.active("llm", &asked, at(100.5)), Ok(true));
    // With no reading at all there is no answer, and KEDA leaves things as they are.
    scraped(&agent, &[("a", "", &blind), ("b", "", &blind)], at(101.0));
    unavailable(world.value("llm", &asked, at(101.5)));
    unavailable(world.active("llm", &asked, at(101.5)));
}

// === Several selections of one engine's series ===

#[test]
fn each_trigger_reads_the_series_that_it_selects() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let agent = world.agent("n1");
    let said = |waiting| [ok(Metric::RequestsWaiting, waiting)];
    let nothing = no_answer("no series of vLLM has model_name=c; model_name is one of: a, b");
    let (all, a, b) = (said(9.0), said(9.0), said(0.0));
    for second in 0..100 {
        let rows = [
            ("a", "", &all[..]),
            ("a", "engine=0,model_name=a", &a),
            ("a", "model_name=b", &b),
            ("a", "model_name=c", &nothing),
        ];
        scraped(&agent, &rows, at(f64::from(second)));
    }
    let now = at(99.5);
    let labelled = |labels| world.value("llm", &[WAITING, ("engineLabels", labels)], now);
    assert_eq!(world.value("llm", &[WAITING], now), Ok(9.0));
    // However it is written.
    assert_eq!(labelled("model_name = a, engine=0"), Ok(9.0));
    assert_eq!(labelled("model_name=b"), Ok(0.0));
    let why = unavailable(labelled("model_name=c"));
    assert!(why.ends_with("has model_name=c; model_name is one of: a, b"), "{why}");
    let why = unavailable(labelled("model_name=d"));
    assert!(why.ends_with("is read, but not by engineLabels model_name=d so far"), "{why}");
    let active = |labels| world.active("llm", &[WAITING, ("engineLabels", labels)], now);
    assert_eq!(active("engine=0,model_name=a"), Ok(true));
    assert_eq!(active("model_name=b"), Ok(false), "only series with these labels count");
}

#[test]
fn a_pod_that_has_just_become_ready_has_time_for_its_first_scrape() {
    let mut world = World::new();
    let young = APod("b", None, None, Ok(at(100.0)), None);
    world.workload("llm", 2, &[ready("a"), young], at(100.0));
    let agent = world.agent("n1");
    let said = [ok(Metric::RequestsWaiting, 4.0)];
    let asked = [WAITING, ("engineLabels", "model_name=a")];
    let rows = [("a", "model_name=a", &said[..]), ("b", "", &said)];
    for (now, starting, missing) in [(105.0, 1, 0), (111.0, 0, 1)] {
        scraped(&agent, &rows, at(now));
        let coverage = world.assess("llm", &asked, at(now)).unwrap().verdict.coverage;
        assert_eq!(
            (coverage.reporting, coverage.starting, coverage.missing),
            (1, starting, missing)
        );
    }
}

#[test]
fn sessions_of_one_node_add_up_selection_by_selection() {
    let mut world = World::new();
    world.workload("llm", 1, &[ready("a")], at(0.0));
    let (old, new) = (world.agent("n1"), world.agent("n1"));
    let said = |waiting| [ok(Metric::RequestsWaiting, waiting)];
    let (one, two, three) = (said(1.0), said(2.0), said(3.0));
    scraped(&old, &[("a", "", &one), ("a", "model_name=a", &two)], at(1.0));
    scraped(&new, &[("a", "", &three)], at(2.0));
    let labelled = [WAITING, ("engineLabels", "model_name=a")];
    assert_eq!(world.value("llm", &[WAITING], at(2.5)), Ok(3.0), "the newest word");
    assert_eq!(world.value("llm", &labelled, at(2.5)), Ok(2.0));
    drop(old);
    assert_eq!(world.value("llm", &[WAITING], at(2.5)), Ok(3.0));
    unavailable(world.value("llm", &labelled, at(2.5)));
}

#[test]
fn a_reading_stays_with_its_engine_when_the_inventory_changes() {
    let mut world = World::new();
    world.workload("llm", 2, &[ready("a"), ready("b")], at(0.0));
    let agent = world.agent("n1");
    let (four, seven) = ([ok(Metric::RequestsWaiting, 4.0)], [ok(Metric::RequestsWaiting, 7.0)]);
    scraped(&agent, &[("b", "", &four)], at(1.0));
    let both = inventory(&[("a", "", &[]), ("b", "", &[])]);
    let fresh = EngineSample { age: Duration::ZERO, readings: seven.into_iter().collect() };
    let sample = Sample { engines: vec![Some(fresh), None], ..Sample::default() };
    agent.apply(&both, sample, at(2.0));
    assert_eq!(world.value("llm", &[WAITING], at(2.5)), Ok(11.0));
}
