//! The engines of a node: whom the brief names is read, and what is read reaches the gateway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use agent::app::App;
use agent::config::RunConfig;
use agent::device::{Observation, ObservedEngine};
use agent::engine::scrape::Limits;
use agent::engine::{Engines, Scraper};
use proto::uplink::agent_message::Body;
use shared::brief::{Brief, BriefedPod, EnginePage, EngineTarget};
use shared::frame::Engine;
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::process::Clock;
use shared::reading::{Reading, Readings};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::engine_rates::FIRST;
use crate::site::{Answer, Site, page, response};
use crate::support::Gateway;

/// A scraper at work.
struct Node {
    briefs: watch::Sender<Option<Arc<Brief>>>,
    engines: Engines,
    clock: Clock,
    shutdown: CancellationToken,
    scraper: tokio::task::JoinHandle<()>,
}

impl Node {
    fn start() -> Self {
        Self::with(true)
    }

    fn with(loopback: bool) -> Self {
        let (briefs, receiver) = watch::channel(None);
        let (engines, clock) = (Engines::default(), Clock::start());
        let scraper = Scraper {
            interval: Duration::from_millis(20),
            limits: Limits { within: Duration::from_secs(10), ..Limits::default() },
            briefs: receiver,
            engines: engines.clone(),
            loopback,
            clock,
        };
        let shutdown = CancellationToken::new();
        let scraper = tokio::spawn(scraper.run(shutdown.clone()));
        Self { briefs, engines, clock, shutdown, scraper }
    }

    fn brief(&self, pods: Vec<BriefedPod>) {
        self.briefs.send_replace(Some(Arc::new(Brief { pods, devices: Vec::new() })));
    }

    /// What a tick would see.
    fn observed(&self) -> Vec<ObservedEngine> {
        let mut observation = Observation::default();
        self.engines.add(&mut observation, self.clock.now());
        observation.engines
    }

    /// Waits until what is seen is as it should be.
    async fn until(&self, what: &str, is_so: impl Fn(&[ObservedEngine]) -> bool) {
        let waiting = async {
            while !is_so(&self.observed()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), waiting).await.is_err() {
            panic!("never {what}: {:#?}", self.observed());
        }
    }

    /// Waits until the one engine reads `metric` like that.
    async fn reads(&self, metric: Metric, expected: &Reading) {
        self.until(
            &format!("{metric} {expected:?}"),
            |engines| matches!(engines, [one] if one.readings.get(metric) == *expected),
        )
        .await;
    }
}

fn pod(name: &str, site: &Site) -> BriefedPod {
    pages(name, site, vec![site.page()])
}

fn pages(name: &str, site: &Site, pages: Vec<EnginePage>) -> BriefedPod {
    BriefedPod {
        key: PodKey::new("ai", name),
        uid: format!("uid-{name}").into(),
        cgroup_uid: None,
        containers: Vec::new(),
        finished: false,
        ip: Some(site.ip().to_string().into()),
        engine: Some(EngineTarget { pages, labels: vec!["".into()], engine: None }),
    }
}

fn waiting(count: u32) -> Answer {
    page(&format!("vllm:num_requests_waiting {count}\n"))
}

#[tokio::test]
async fn o03_an_engine_that_answers_503_has_failed_in_everything_for_that_reason() {
    let good = Site::start(waiting(8)).await;
    let bad = Site::start(response("503 Service Unavailable", "text/plain", "loading")).await;
    let node = Node::start();
    node.brief(vec![pod("a", &good), pod("b", &good), pod("c", &good), pod("d", &bad)]);
    node.until("four", |engines| engines.len() == 4).await;
    let engines = node.observed();
    for engine in &engines[..3] {
        assert_eq!(engine.readings.get(Metric::RequestsWaiting), Reading::Ok(8.0));
    }
    let port = bad.address.port();
    let why = format!(":{port}/metrics: HTTP 503 Service Unavailable");
    let d = &engines[3];
    assert_eq!((&*d.engine.pod.name, d.engine.uid.as_ref().unwrap().as_str()), ("d", "uid-d"));
    let failed = Reading::Failed(why.into());
    let all = [Metric::RequestsWaiting, Metric::KvCacheUsage, Metric::QueueWaitMs];
    assert!(all.iter().all(|metric| d.readings.get(*metric) == failed), "{d:?}");
    assert_eq!(d.readings.get(Metric::GpuUtilization), Reading::Unsupported);
}

#[tokio::test]
async fn o07_idle_is_zero_and_then_a_failing_scrape_is_unknown() {
    let idle = "vllm:num_requests_waiting 0.0\nvllm:num_requests_running 0.0\n\
                vllm:kv_cache_usage_perc 0.0\nvllm:request_success_total 5\n\
                vllm:request_queue_time_seconds_sum 2\nvllm:request_queue_time_seconds_count 5\n";
    let site = Site::start(page(idle)).await;
    let node = Node::start();
    node.brief(vec![pod("a", &site)]);
    let metrics = [Metric::RequestsWaiting, Metric::QueueWaitMs, Metric::RequestRate];
    for metric in metrics {
        node.reads(metric, &Reading::Ok(0.0)).await;
    }
    site.says(response("500 Internal Server Error", "text/plain", ""));
    let port = site.address.port();
    let why = format!(":{port}/metrics: HTTP 500 Internal Server Error");
    for metric in metrics {
        node.reads(metric, &Reading::Failed(why.as_str().into())).await;
    }
    site.says(page(idle));
    node.reads(Metric::RequestRate, &Reading::Ok(0.0)).await;
}

#[tokio::test]
async fn pages_are_tried_in_order_and_the_engines_own_is_kept() {
    let nothing = Site::start(page("go_threads 9\n")).await;
    let engine = Site::start(waiting(3)).await;
    let node = Node::start();
    let both = vec![nothing.page(), engine.page()];
    node.brief(vec![pages("a", &engine, both)]);
    node.reads(Metric::RequestsWaiting, &Reading::Ok(3.0)).await;
    let (tried, kept) = (nothing.requests().len(), engine.requests().len());
    let more =
        |engines: &[ObservedEngine]| !engines.is_empty() && engine.requests().len() > kept + 3;
    node.until("read again", more).await;
    assert_eq!(nothing.requests().len(), tried);
    // The other way round now.
    engine.says(response("404 Not Found", "text/plain", ""));
    nothing.says(waiting(4));
    node.reads(Metric::RequestsWaiting, &Reading::Ok(4.0)).await;
    nothing.says(page("go_threads 9\n"));
    let why = format!(
        ":{}/metrics: it has no series of vLLM, SGLang, TensorRT-LLM, Text Generation Inference, \
         Triton, llama.cpp, NIM; it has go_threads; :{}/metrics: HTTP 404 Not Found",
        nothing.address.port(),
        engine.address.port(),
    );
    node.reads(Metric::RequestsWaiting, &Reading::Failed(why.into())).await;
}

#[tokio::test]
async fn each_selection_of_series_is_an_engine_of_its_own() {
    let two =
        "vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} 7\n";
    let site = Site::start(page(two)).await;
    let node = Node::start();
    let mut briefed = pod("a", &site);
    let mut select = |labels: &[&str]| {
        let target = briefed.engine.as_mut().unwrap();
        target.labels = labels.iter().map(|labels| (*labels).into()).collect();
        node.brief(vec![briefed.clone()]);
    };
    let seen = |engines: &[ObservedEngine]| -> HashMap<String, Option<f64>> {
        let seen = engines.iter().map(|engine| {
            let value = engine.readings.value(Metric::RequestsWaiting);
            (engine.engine.labels.to_string(), value)
        });
        seen.collect()
    };
    select(&["", "engine=1"]);
    let expected = HashMap::from([("".into(), Some(10.0)), ("engine=1".into(), Some(7.0))]);
    node.until("both", |engines| seen(engines) == expected).await;
    select(&["engine=0", "engine=2"]);
    let expected = HashMap::from([("engine=0".into(), Some(3.0)), ("engine=2".into(), None)]);
    node.until("the others", |engines| seen(engines) == expected).await;
}

#[tokio::test]
async fn only_pods_that_the_brief_names_are_read() {
    let site = Site::start(waiting(1)).await;
    let node = Node::start();
    let finished = BriefedPod { finished: true, ..pod("finished", &site) };
    let nowhere = BriefedPod { ip: None, ..pod("nowhere", &site) };
    let named = BriefedPod { ip: Some("localhost".into()), ..pod("named", &site) };
    let silent = BriefedPod { engine: None, ..pod("silent", &site) };
    let others = [finished, nowhere, named, silent];
    node.brief([vec![pod("a", &site), pod("b", &site)], others.to_vec()].concat());
    let names = |engines: &[ObservedEngine]| -> Vec<String> {
        engines.iter().map(|engine| engine.engine.pod.name.to_string()).collect()
    };
    node.until("two", |engines| names(engines) == ["a", "b"]).await;
    node.brief([vec![pod("b", &site)], others.to_vec()].concat());
    node.until("one", |engines| names(engines) == ["b"]).await;
    // A namesake is another pod.
    let again = BriefedPod { uid: "uid-2".into(), ..pod("b", &site) };
    node.brief(vec![again]);
    node.until(
        "the new one",
        |engines| matches!(engines, [one] if one.engine.uid.as_ref().unwrap().as_str() == "uid-2"),
    )
    .await;
    node.brief(Vec::new());
    node.until("none", <[_]>::is_empty).await;
    node.shutdown.cancel();
    node.scraper.await.unwrap();
}

#[tokio::test]
async fn addresses_that_are_no_pods_are_not_asked() {
    let site = Site::start(waiting(1)).await;
    let node = Node::with(false);
    for (ip, why) in [
        ("127.0.0.1", "127.0.0.1 is loopback, which no pod's address is; it is not read"),
        ("::1", "::1 is loopback, which no pod's address is; it is not read"),
        (
            "::ffff:127.0.0.1",
            "::ffff:127.0.0.1 is loopback, which no pod's address is; it is not read",
        ),
        (
            "169.254.169.254",
            "169.254.169.254 is link-local, which no pod's address is; it is not read",
        ),
        ("0.0.0.0", "0.0.0.0 is unspecified, which no pod's address is; it is not read"),
    ] {
        node.brief(vec![BriefedPod { ip: Some(ip.into()), ..pod("a", &site) }]);
        node.reads(Metric::RequestsWaiting, &Reading::Failed(why.into())).await;
    }
    assert!(site.requests().is_empty());
    let dev = Node::start();
    dev.brief(vec![BriefedPod { ip: Some("169.254.1.1".into()), ..pod("a", &site) }]);
    let why = "169.254.1.1 is link-local, which no pod's address is; it is not read";
    dev.reads(Metric::RequestsWaiting, &Reading::Failed(why.into())).await;
}

#[tokio::test]
async fn a_pod_that_the_source_speaks_for_is_not_read() {
    let site = Site::start(waiting(1)).await;
    let node = Node::start();
    node.brief(vec![pod("a", &site)]);
    node.until("read", |engines| engines.len() == 1).await;
    let labels = "".into();
    let replayed = ObservedEngine {
        engine: Engine { pod: PodKey::new("ai", "a"), uid: None, labels },
        age: Duration::ZERO,
        readings: Readings::default(),
    };
    let tick = || {
        let engines = vec![replayed.clone()];
        let mut observation = Observation { engines, ..Observation::default() };
        node.engines.add(&mut observation, node.clock.now());
        assert_eq!(observation.engines, std::slice::from_ref(&replayed));
    };
    // The scraper hears of it and stops asking.
    let quiet = async {
        loop {
            let before = site.requests().len();
            tick();
            tokio::time::sleep(Duration::from_millis(200)).await;
            if site.requests().len() == before {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), quiet).await.unwrap();
    node.until("read again", |engines| engines.len() == 1).await;
}

#[tokio::test]
async fn a_page_that_changes_its_engine_starts_anew() {
    let count = "vllm:num_requests_waiting 3\nvllm:request_success_total 100\n";
    let site = Site::start(page(count)).await;
    let node = Node::start();
    node.brief(vec![pod("a", &site)]);
    node.reads(Metric::RequestRate, &Reading::Ok(0.0)).await;
    site.says(page("tgi_queue_size 5\ntgi_request_success 100000\n"));
    node.reads(Metric::RequestsWaiting, &Reading::Ok(5.0)).await;
    node.until("its own", |engines| match engines[0].readings.get(Metric::RequestRate) {
        Reading::Ok(rate) => rate == 0.0,
        other => other == Reading::Failed(FIRST.into()),
    })
    .await;
    assert_eq!(node.observed()[0].readings.get(Metric::KvCacheUsage), Reading::Unsupported);
}

#[tokio::test]
async fn ollama_says_plainly_that_it_has_no_page() {
    let site = Site::start(waiting(1)).await;
    let node = Node::start();
    let mut briefed = pod("a", &site);
    briefed.engine.as_mut().unwrap().engine = Some("ollama".into());
    node.brief(vec![briefed]);
    let why = "Ollama publishes no metrics; count requests in a proxy in front of it";
    node.reads(Metric::RequestsWaiting, &Reading::Failed(why.into())).await;
    assert!(site.requests().is_empty());
}

#[tokio::test]
async fn sixteen_are_read_at_a_time() {
    let Answer::Bytes(bytes) = waiting(1) else { unreachable!() };
    let site = Site::start(Answer::Late(Duration::from_millis(30), bytes)).await;
    let node = Node::start();
    node.brief((0..64).map(|place| pod(&format!("pod-{place}"), &site)).collect());
    node.until("all", |engines| {
        engines.len() == 64
            && engines.iter().all(|one| one.readings.value(Metric::RequestsWaiting) == Some(1.0))
    })
    .await;
    // A connection that its client has closed may still be counted for a moment.
    assert!(site.most_at_once() <= 24, "{}", site.most_at_once());
}

#[tokio::test]
async fn what_is_read_reaches_the_gateway_that_asked_for_it() {
    let site = Site::start(waiting(12)).await;
    let mut gateway = Gateway::start().await;
    let mut briefed = pod("vllm-0", &site);
    briefed.engine.as_mut().unwrap().labels = vec!["".into(), "engine=9".into()];
    let brief = Brief { pods: vec![briefed], devices: Vec::new() };
    gateway.brief.send_replace(Some(proto::brief::to_wire(1, &brief)));
    let mut config = RunConfig::new(gateway.url(), "node-a".into(), "sim:gpus=1".parse().unwrap());
    config.interval = Duration::from_millis(100);
    config.engine_interval = Duration::from_millis(100);
    let shutdown = CancellationToken::new();
    let app = tokio::spawn(App::build(config).unwrap().run(shutdown.clone()));
    let mut engines = Vec::new();
    loop {
        match gateway.next().await.1.unwrap() {
            Body::Inventory(inventory) => engines = inventory.engines,
            Body::Sample(sample) if !engines.is_empty() => {
                let named: Vec<_> =
                    engines.iter().map(|one| (one.pod.as_str(), one.labels.as_str())).collect();
                assert_eq!(named, [("vllm-0", ""), ("vllm-0", "engine=9")]);
                let [all, none] = sample.engines.as_slice() else { panic!("{sample:?}") };
                assert!(format!("{all:?}").contains("12.0"), "{all:?}");
                assert!(format!("{none:?}").contains("no series of vLLM has engine=9"), "{none:?}");
                break;
            }
            _ => {}
        }
    }
    shutdown.cancel();
    app.await.unwrap().unwrap();
}
