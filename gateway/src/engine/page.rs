//! Where engines publish, by engine and by what a pod says of itself.
//!
//! Guarantees: pages come in the order of how surely they are meant: the trigger's own endpoint,
//! the pod's `prometheus.io` annotations, its ports for metrics. Only where none of them says where
//! the page is are guesses made: its ports for HTTP, the engine's usual page, and where no engine is
//! named the usual pages of all, the likelier first. So a page that is declared and answers with an
//! error is never given up for whatever else listens in the pod. Each page is there once.

use proto::brief::{MAX_PAGES, MAX_PATH};
use shared::brief::EnginePage;

use crate::directory::Pod;
use crate::trigger::engine::Engine;
use crate::trigger::spec::EngineEndpoint;

/// Names of ports that say that they show metrics, the likelier first.
const PORTS: &[&str] = &["metrics", "http-metrics", "prom", "prometheus", "http-prometheus"];
/// Names of ports that may show metrics, too.
const PERHAPS: &[&str] = &["http", "http1", "api"];
const METRICS: &str = "/metrics";

/// Where each engine publishes unless told otherwise, the likelier first where there are two.
const USUAL: &[(Engine, u16, &str)] = &[
    (Engine::Vllm, 8000, METRICS),
    (Engine::Sglang, 30_000, METRICS),
    (Engine::Triton, 8002, METRICS),
    // In containers, and by itself.
    (Engine::Tgi, 80, METRICS),
    (Engine::Tgi, 3000, METRICS),
    (Engine::Trtllm, 8000, "/prometheus/metrics"),
    // It publishes none; the agent says so.
    (Engine::Ollama, 11_434, METRICS),
];

/// Where to look where no engine is named: those above, NIM (older ones publish as vLLM does) and
/// llama.cpp.
const ANY: &[(u16, &str)] = &[
    (8000, METRICS),
    (30_000, METRICS),
    (8002, METRICS),
    (8080, METRICS),
    (80, METRICS),
    (8000, "/v1/metrics"),
    (8000, "/prometheus/metrics"),
    (3000, METRICS),
];

/// What a pod's annotations say to Prometheus.
struct Annotated<'a> {
    port: Option<u16>,
    path: Option<&'a str>,
}

/// The pages to try for `pod`.
pub(super) fn of(
    pod: &Pod,
    endpoints: &[EngineEndpoint],
    engine: Option<Engine>,
) -> Vec<EnginePage> {
    let mut pages = Pages(Vec::new());
    for EngineEndpoint { engine, port, path } in endpoints {
        match port {
            Some(port) => pages.add(*port, path),
            None => usual(*engine).for_each(|(port, _)| pages.add(port, path)),
        }
    }
    // Who does not want to be scraped is read only where a trigger says it expressly.
    if pod.annotation("prometheus.io/scrape").is_some_and(|text| text.trim() == "false") {
        return pages.0;
    }
    let annotated = annotated(pod);
    let path = engine.and_then(|engine| usual(engine).next()).map_or(METRICS, |(_, path)| path);
    let path = annotated.path.unwrap_or(path);
    annotated.port.into_iter().for_each(|port| pages.add(port, path));
    let ports = |names: &[&str]| -> Vec<_> { names.iter().filter_map(|n| pod.port(n)).collect() };
    ports(PORTS).into_iter().for_each(|port| pages.add(port, path));
    if !pages.0.is_empty() {
        return pages.0;
    }
    ports(PERHAPS).into_iter().for_each(|port| pages.add(port, path));
    match engine {
        Some(engine) => usual(engine).for_each(|(port, path)| pages.add(port, path)),
        None => ANY.iter().for_each(|(port, path)| pages.add(*port, path)),
    }
    pages.0
}

fn usual(engine: Engine) -> impl Iterator<Item = (u16, &'static str)> {
    USUAL.iter().filter(move |(of, ..)| *of == engine).map(|(_, port, path)| (*port, *path))
}

fn annotated(pod: &Pod) -> Annotated<'_> {
    // A page behind TLS is not read.
    let plain = pod.annotation("prometheus.io/scheme").is_none_or(|scheme| scheme == "http");
    let port = pod.annotation("prometheus.io/port").and_then(|port| port.trim().parse().ok());
    let path = pod.annotation("prometheus.io/path").map(str::trim);
    let is_path = |path: &&str| {
        path.starts_with('/')
            && path.len() <= MAX_PATH
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#')
    };
    Annotated { port: port.filter(|port| plain && *port > 0), path: path.filter(is_path) }
}

struct Pages(Vec<EnginePage>);

impl Pages {
    fn add(&mut self, port: u16, path: &str) {
        let is_known = self.0.iter().any(|page| page.port == port && *page.path == *path);
        if !is_known && self.0.len() < MAX_PAGES {
            self.0.push(EnginePage { port, path: path.into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use shared::identity::PodKey;
    use shared::time::Timestamp;

    use crate::directory::Phase;

    use super::*;

    fn pod(ports: &[(&str, u16)], annotations: &[(&str, &str)]) -> Pod {
        Pod {
            containers: Box::default(),
            key: PodKey::new("ai", "vllm-0"),
            uid: None,
            node: None,
            ip: Some("10.0.0.1".into()),
            ports: ports.iter().map(|(name, port)| ((*name).into(), *port)).collect(),
            annotations: annotations
                .iter()
                .map(|(name, text)| (format!("prometheus.io/{name}").into(), (*text).into()))
                .collect(),
            group: None,
            beside: false,
            terminating: false,
            phase: Phase::Running,
            ready: true,
            since: Timestamp::START,
            unscheduled: None,
        }
    }

    fn pages(pod: &Pod, endpoint: Option<&str>, engine: Option<Engine>) -> Vec<String> {
        let endpoint = endpoint.map(|url| EngineEndpoint::parse(Engine::Vllm, url).unwrap());
        let endpoints: Vec<_> = endpoint.into_iter().collect();
        let pages = of(pod, &endpoints, engine).into_iter();
        pages.map(|page| format!("{}{}", page.port, page.path)).collect()
    }

    #[test]
    fn a_named_engine_has_its_usual_page() {
        for (engine, usual) in [
            (Engine::Vllm, &["8000/metrics"][..]),
            (Engine::Sglang, &["30000/metrics"]),
            (Engine::Tgi, &["80/metrics", "3000/metrics"]),
            (Engine::Triton, &["8002/metrics"]),
            (Engine::Trtllm, &["8000/prometheus/metrics"]),
            (Engine::Ollama, &["11434/metrics"]),
        ] {
            assert_eq!(pages(&pod(&[], &[]), None, Some(engine)), usual);
        }
    }

    #[test]
    fn endpoint_annotations_and_ports_for_metrics_come_in_this_order_and_nothing_is_guessed() {
        let annotations = [("scrape", "true"), ("port", "9000"), ("path", "/m")];
        let pod = pod(&[("http", 8080), ("metrics", 9100)], &annotations);
        assert_eq!(
            pages(&pod, Some("http://svc:7000/x"), Some(Engine::Vllm)),
            ["7000/x", "9000/m", "9100/m"]
        );
        let endpoint = pages(&pod, Some("http://svc/x"), Some(Engine::Vllm));
        assert_eq!(endpoint[0], "8000/x", "the engine's port where the URL has none");
    }

    #[test]
    fn what_is_declared_is_never_given_up_for_a_guess() {
        let http = ("http", 8080);
        let annotated = pod(&[http], &[("port", "9000")]);
        let (named, neither) = (pod(&[http, ("prom", 9100)], &[]), pod(&[http], &[]));
        for engine in [None, Some(Engine::Vllm)] {
            assert_eq!(pages(&neither, Some("http://svc:7000"), engine), ["7000/metrics"]);
            assert_eq!(pages(&annotated, None, engine), ["9000/metrics"]);
            assert_eq!(pages(&named, None, engine), ["9100/metrics"]);
            assert_eq!(pages(&neither, None, engine)[..2], ["8080/metrics", "8000/metrics"]);
        }
    }

    #[test]
    fn named_ports_have_the_engines_path() {
        let pod = pod(&[("http", 9000)], &[]);
        let trtllm = pages(&pod, None, Some(Engine::Trtllm));
        assert_eq!(trtllm, ["9000/prometheus/metrics", "8000/prometheus/metrics"]);
    }

    #[test]
    fn who_does_not_want_to_be_scraped_is_read_at_the_endpoint_only() {
        let pod = pod(&[("metrics", 9100)], &[("scrape", "false"), ("port", "9000")]);
        assert!(pages(&pod, None, Some(Engine::Vllm)).is_empty());
        assert_eq!(pages(&pod, Some("http://svc:7000"), Some(Engine::Vllm)), ["7000/metrics"]);
    }

    #[test]
    fn bad_annotations_say_nothing() {
        for bad in [
            [("port", "0"), ("path", "m")],
            [("port", "http"), ("path", "/a b")],
            [("port", "9000"), ("scheme", "https")],
        ] {
            assert_eq!(pages(&pod(&[], &bad), None, Some(Engine::Vllm)), ["8000/metrics"]);
        }
    }

    #[test]
    fn without_an_engine_the_usual_pages_of_all_are_tried() {
        let all = pages(&pod(&[], &[]), None, None);
        assert_eq!((all.len(), &*all[0]), (MAX_PAGES, "8000/metrics"));
        for (_, port, path) in USUAL.iter().filter(|(engine, ..)| *engine != Engine::Ollama) {
            assert!(all.contains(&format!("{port}{path}")), "{port}{path}");
        }
        let crowded = pod(&[("http", 1), ("api", 2)], &[]);
        let crowded = pages(&crowded, None, None);
        assert_eq!(
            (crowded.len(), &crowded[..2]),
            (MAX_PAGES, &["1/metrics", "2/metrics"].map(String::from)[..])
        );
    }
}
