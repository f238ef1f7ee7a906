//! Engine triggers end to end: KEDA's question, the agent's brief, pages that are really scraped,
//! and KEDA's answer.

use std::time::Duration;

use serde_json::json;
use tonic::Code;

use crate::scene::{Scene, ip, is_asked, is_left_alone, sites};
use crate::site::{Answer, Site, page, response};

/// A directory with the Deployment and ScaledObject `ml/NAME`, its pods on n1 and n2 in turn.
/// `pods` are what each has beside its name; `triggers` are declared metadata.
fn deployment(name: &str, pods: &[String], triggers: &[serde_json::Value]) -> [String; 2] {
    let pods = pods.iter().enumerate().map(|(place, pod)| {
        let (letter, node) = (char::from(b'a' + u8::try_from(place).unwrap()), 1 + place % 2);
        format!(
            "{{name: {name}-{letter}, uid: uid-{name}-{letter}, node: n{node}, ready: true, {pod}}}"
        )
    });
    let pods: Vec<String> = pods.collect();
    let (replicas, pods) = (pods.len(), pods.join(", "));
    let triggers: Vec<_> =
        triggers.iter().map(|metadata| json!({"type": "external", "metadata": metadata})).collect();
    let triggers = json!(triggers);
    [
        format!(
            "  - {{namespace: ml, kind: Deployment, name: {name}, replicas: {replicas}, pods: [{pods}]}}\n"
        ),
        format!(
            "  - {{namespace: ml, name: {name}, target: {{kind: Deployment, name: {name}}}, \
             minReplicas: 0, maxReplicas: 9, triggers: {triggers}}}\n"
        ),
    ]
}

fn directory(deployments: &[[String; 2]]) -> String {
    let all = |at: usize| deployments.iter().map(|texts| texts[at].as_str()).collect::<String>();
    format!("workloads:\n{}scaledObjects:\n{}", all(0), all(1))
}

/// Pods at the addresses of pages that [`sites`] started.
fn at_sites(count: u8) -> Vec<String> {
    (1..=count).map(|place| format!("ip: {}", ip(place))).collect()
}

fn has(why: &serde_json::Value, part: &str) -> bool {
    why.as_str().is_some_and(|why| why.contains(part))
}

fn waiting(count: u32) -> Answer {
    page(&format!("vllm:num_requests_waiting{{engine=\"0\",model_name=\"m1\"}} {count}.0\n"))
}

fn loading() -> Answer {
    response("503 Service Unavailable", "text/plain", "loading")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o03_one_of_four_pages_answers_503() {
    let (pages, port) = sites(vec![waiting(8), waiting(8), waiting(8), loading()]).await;
    let endpoint = format!("http://vllm:{port}/metrics");
    let metadata = [("metricType", "vllm:num_requests_waiting:5"), ("vllmEndpoint", &endpoint)];
    let declared = json!({"metricType": metadata[0].1, "vllmEndpoint": endpoint});
    for triggers in [vec![declared], Vec::new()] {
        let cluster = directory(&[deployment("llm", &at_sites(4), &triggers)]);
        let scene = Scene::start(&["n1", "n2"], &cluster).await;
        pages[..3].iter().for_each(|page| page.says(waiting(8)));
        let trigger = scene.trigger("llm", &metadata);
        trigger.becomes(24.0).await;
        let is = |reporting: u32, desired: u32| {
            move |seen: &serde_json::Value| {
                seen["coverage"]["reporting"] == reporting && seen["hpa"]["desired"] == desired
            }
        };
        scene.explained("llm", is(3, 5)).await;
        let why = format!(":{port}/metrics: HTTP 503 Service Unavailable");
        scene.explained("llm", |seen| has(&seen["pods"][3]["why"], &why)).await;
        pages[..3].iter().for_each(|page| page.says(waiting(1)));
        trigger.becomes(8.0).await;
        scene.explained("llm", is(3, 2)).await;
        trigger.turns(true).await;
        scene.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o07_idle_is_zero_and_a_page_that_fails_is_unknown() {
    let idle = "vllm:num_requests_waiting 0.0\nvllm:num_requests_running 0.0\n\
                vllm:kv_cache_usage_perc 0.0\nvllm:request_success_total 5\n\
                vllm:request_queue_time_seconds_sum 2\nvllm:request_queue_time_seconds_count 5\n";
    let (pages, port) = sites(vec![page(idle)]).await;
    let scene = Scene::start(&["n1"], &directory(&[deployment("llm", &at_sites(1), &[])])).await;
    let endpoint = format!("http://vllm:{port}/metrics");
    let triggers = ["requests_waiting", "queue_wait_ms", "request_rate"].map(|metric| {
        let window = ("activationWindow", "1s");
        let target = [("metricType", metric), ("targetValue", "5"), ("vllmEndpoint", &endpoint)];
        scene.trigger("llm", &[target[0], target[1], target[2], window])
    });
    for trigger in &triggers {
        trigger.becomes(0.0).await;
        trigger.turns(false).await;
    }
    pages[0].says(response("500 Internal Server Error", "text/plain", ""));
    for trigger in &triggers {
        trigger.fails(Code::Unavailable, &["HTTP 500 Internal Server Error"]).await;
    }
    pages[0].says(page(idle));
    for trigger in &triggers {
        trigger.becomes(0.0).await;
        trigger.turns(false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o11_a_gauge_that_changes_its_name() {
    let old = "vllm:gpu_cache_usage_perc{model_name=\"m1\"} 0.42\n";
    let both = "vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.42\n\
                vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.42\n";
    let new = "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.42\n";
    let unset = "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} NaN\n";
    let neither = "vllm:num_requests_running{engine=\"0\",model_name=\"m1\"} 3.0\n";
    let (_pages, port) = sites([old, both, new, unset, neither].map(page).to_vec()).await;
    let names = ["a", "b", "c", "d", "e"];
    let cluster = names.iter().zip(at_sites(5)).map(|(name, pod)| deployment(name, &[pod], &[]));
    let scene = Scene::start(&["n1"], &directory(&Vec::from_iter(cluster))).await;
    let endpoint = format!("http://vllm:{port}/metrics");
    let metadata =
        [("metricType", "kv_cache_usage"), ("targetValue", "80"), ("vllmEndpoint", &endpoint)];
    let [a, b, c, d, e] = names.map(|name| scene.trigger(name, &metadata));
    for trigger in [a, b, c] {
        trigger.becomes(42.0).await;
    }
    d.fails(Code::Unavailable, &["vllm:kv_cache_usage_perc is NaN"]).await;
    let looked_for = ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"];
    e.fails(Code::Unavailable, &looked_for).await;
    e.fails(Code::Unavailable, &["found vllm:num_requests_running"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o12_several_engines_in_either_order_and_several_models() {
    let lines = [
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"m1\"} 3.0\n",
        "vllm:num_requests_waiting{engine=\"1\",model_name=\"m1\"} 7.0\n",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m1\"} 0.30\n",
        "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m1\"} 0.90\n",
    ];
    let there: String = lines.concat();
    let back: String = lines.iter().rev().copied().collect();
    let models = "vllm:num_requests_waiting{model_name=\"a\"} 9.0\n\
                  vllm:num_requests_waiting{model_name=\"b\"} 3.0\n";
    let (_pages, port) = sites(vec![page(&there), page(&back), page(models)]).await;
    let names = ["there", "back", "models"];
    let cluster = names.iter().zip(at_sites(3)).map(|(name, pod)| deployment(name, &[pod], &[]));
    let scene = Scene::start(&["n1"], &directory(&Vec::from_iter(cluster))).await;
    let endpoint = format!("http://vllm:{port}/metrics");
    let with = |name, metric, labels: Option<&'static str>| {
        let base = [("metricType", metric), ("targetValue", "5"), ("vllmEndpoint", &endpoint)];
        let labels = labels.map(|labels| ("engineLabels", labels));
        scene.trigger(name, &base.into_iter().chain(labels).collect::<Vec<_>>())
    };
    for name in ["there", "back"] {
        with(name, "requests_waiting", None).becomes(10.0).await;
        with(name, "kv_cache_usage", None).becomes(60.0).await;
    }
    with("models", "requests_waiting", Some("model_name=a")).becomes(9.0).await;
    with("models", "requests_waiting", Some("model_name=b")).becomes(3.0).await;
    with("models", "requests_waiting", None).becomes(12.0).await;
    let none = with("models", "requests_waiting", Some("model_name=z"));
    none.fails(Code::Unavailable, &["model_name is one of: a, b"]).await;
}

/// Triton at a moment: so many steps, each 40 requests that waited 10 ms and 10 that waited 60.
fn triton(steps: u64) -> Answer {
    let line = |name, model, value| format!("nv_inference_{name}{{model=\"{model}\"}} {value}\n");
    page(
        &[
            line("count", "x", 100 + 40 * steps),
            line("request_success", "x", 100 + 40 * steps),
            line("queue_duration_us", "x", 500_000 + 400_000 * steps),
            line("count", "y", 50 + 10 * steps),
            line("request_success", "y", 50 + 10 * steps),
            line("queue_duration_us", "y", 100_000 + 600_000 * steps),
        ]
        .concat(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o12_counters_of_two_models_become_one_mean_and_a_rate() {
    let (pages, port) = sites(vec![triton(0)]).await;
    let scene = Scene::start(&["n1"], &directory(&[deployment("llm", &at_sites(1), &[])])).await;
    let endpoint = format!("http://triton:{port}/metrics");
    let with = |metric| {
        let target = ("targetValue", "50");
        scene.trigger("llm", &[("metricType", metric), target, ("tritonEndpoint", &endpoint)])
    };
    let (wait, rate) = (with("triton_queue_wait_ms"), with("triton_request_rate"));
    // Nothing has happened yet, which is known.
    wait.becomes(0.0).await;
    rate.becomes(0.0).await;
    let counting = async {
        for steps in 1_u64.. {
            pages[0].says(triton(steps));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let asking = async {
        // (40 × 10 + 10 × 60) / 50, whichever steps a window has.
        wait.becomes(20.0).await;
        rate.turns(true).await;
    };
    tokio::select! {
        () = counting => unreachable!(),
        () = asking => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_read_where_annotations_say_and_not_where_they_forbid_it() {
    let (pages, port) = sites(vec![waiting(4), waiting(4)]).await;
    let annotated = |place, annotations: &[(&str, &str)]| {
        let annotations: serde_json::Map<_, _> = annotations
            .iter()
            .map(|(name, text)| (format!("prometheus.io/{name}"), json!(text)))
            .collect();
        vec![format!("ip: {}, annotations: {}", ip(place), json!(annotations))]
    };
    let port = port.to_string();
    let open = annotated(1, &[("scrape", "true"), ("port", &port), ("path", "/stats/prom")]);
    let shy = annotated(2, &[("scrape", "false"), ("port", &port)]);
    let cluster = directory(&[deployment("open", &open, &[]), deployment("shy", &shy, &[])]);
    let scene = Scene::start(&["n1"], &cluster).await;
    let metadata = [("metricType", "requests_waiting"), ("targetValue", "5")];
    let shy = scene.trigger("shy", &metadata);
    shy.value().await.unwrap_err();
    scene.trigger("open", &metadata).becomes(4.0).await;
    assert!(pages[0].requests().iter().all(|head| head.starts_with("GET /stats/prom ")));
    shy.fails(Code::Unavailable, &[]).await;
    assert_eq!(pages[1].requests(), Vec::<String>::new());
    // A trigger that names the page says otherwise.
    let endpoint = format!("http://vllm:{port}/metrics");
    let named = [metadata[0], metadata[1], ("vllmEndpoint", endpoint.as_str())];
    scene.trigger("shy", &named).becomes(4.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_the_directory_is_not_read_any_more() {
    let (pages, port) = sites(vec![waiting(4), waiting(3)]).await;
    let declared = json!({
        "metricType": "requests_waiting", "targetValue": "5",
        "vllmEndpoint": format!("http://vllm:{port}/metrics"),
    });
    let cluster = |pods: u8| {
        directory(&[deployment("llm", &at_sites(pods), std::slice::from_ref(&declared))])
    };
    let scene = Scene::start(&["n1", "n2"], &cluster(2)).await;
    is_asked(&pages[0], 3).await;
    is_asked(&pages[1], 3).await;
    scene.becomes(&cluster(1));
    is_left_alone(&pages[1]).await;
    is_asked(&pages[0], 3).await;
    scene.becomes(&cluster(2));
    is_asked(&pages[1], 3).await;
    scene.becomes(&directory(&[deployment("llm", &at_sites(2), &[])]));
    is_left_alone(&pages[0]).await;
    is_left_alone(&pages[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_trigger_means_another_page() {
    let one = Site::start_on(&format!("{}:0", ip(1)), waiting(4)).await.unwrap();
    let other = Site::start_on(&format!("{}:0", ip(1)), waiting(6)).await.unwrap();
    let cluster = |site: &Site| {
        let declared = json!({
            "metricType": "requests_waiting", "targetValue": "5",
            "vllmEndpoint": format!("http://vllm:{}/metrics", site.address.port()),
        });
        directory(&[deployment("llm", &at_sites(1), &[declared])])
    };
    let scene = Scene::start(&["n1"], &cluster(&one)).await;
    // Asked without an endpoint: where the page is, the directory says.
    let trigger = scene.trigger("llm", &[("metricType", "requests_waiting"), ("targetValue", "5")]);
    trigger.becomes(4.0).await;
    scene.becomes(&cluster(&other));
    trigger.becomes(6.0).await;
    is_left_alone(&one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_pages_cost_their_neighbour_nothing() {
    let text = |body: &[u8]| response("200 OK", "text/plain", body);
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n".to_vec();
    let many: String =
        (0..100_000).map(|n| format!("vllm:num_requests_waiting{{m=\"{n}\"}} 1\n")).collect();
    let twice = "vllm:num_requests_waiting 1\nvllm:num_requests_waiting 2\n";
    let bad: [(Answer, &str); 9] = [
        (
            Answer::Endless(head.clone(), b"vllm:num_requests_waiting 3\n".repeat(999)),
            "longer than",
        ),
        (Answer::Drip(head), "it took longer than 1s"),
        (response("200 OK", "text/html", "<html>"), "content type \"text/html\""),
        (text(b"vllm:num_requests_waiting \xff\xfe\n"), "UTF-8"),
        (text(many.as_bytes()), "longer than"),
        (page(twice), "on the page twice, with two values"),
        (page("vllm:num_requests_waiting 1e999\n"), "vllm:num_requests_waiting is inf"),
        (
            page("vllm:num_requests_waiting{a=\"\\\"}{\\n\" 3\n"),
            "line 1: there is no comma between two labels",
        ),
        (response("302 Found", "text/plain", ""), "redirects are not followed"),
    ];
    let answers = bad.iter().map(|(answer, _)| answer.clone()).chain([waiting(4)]);
    let (pages, port) = sites(answers.collect()).await;
    let names: Vec<String> = (0..10).map(|place| format!("w{place}")).collect();
    let cluster = names.iter().zip(at_sites(10)).map(|(name, pod)| deployment(name, &[pod], &[]));
    let scene = Scene::start(&["n1"], &directory(&Vec::from_iter(cluster))).await;
    let endpoint = format!("http://vllm:{port}/metrics");
    let metadata =
        [("metricType", "requests_waiting"), ("targetValue", "5"), ("vllmEndpoint", &endpoint)];
    let triggers: Vec<_> = names.iter().map(|name| scene.trigger(name, &metadata)).collect();
    for (trigger, (_, why)) in triggers.iter().zip(&bad) {
        trigger.fails(Code::Unavailable, &[why]).await;
    }
    pages[9].says(page("vllm:num_requests_waiting{a=\"\\\"}{ \\n#\",b=\"},=\"} 3 1717171717\n"));
    triggers[9].becomes(3.0).await;
    for count in [4, 5, 6] {
        pages[9].says(waiting(count));
        triggers[9].becomes(f64::from(count)).await;
    }
    // Another engine from one scrape to the next.
    pages[9].says(page("tgi_queue_size 8\n"));

    triggers[9]
        .fails(Code::Unavailable, &["it has no series of vLLM; it has tgi_queue_size"])
        .await;

    pages[9].says(waiting(7));
    triggers[9].becomes(7.0).await;
}
