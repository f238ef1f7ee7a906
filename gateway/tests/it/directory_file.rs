//! The directory in a file: what it may say, what it may not, and what happens when it changes.

use std::time::Duration;

use gateway::config::ServeConfig;
use tokio::time::sleep;
use tonic::Code;

use crate::support::{Node, ONE_POD, Steady, TestGateway, eventually, gpu, refused};

/// [`ONE_POD`] with so many replicas ordered, all that exist at 60 %.
fn ordered(replicas: u32) -> String {
    ONE_POD.replace("replicas: 1", &format!("replicas: {replicas}"))
}

async fn one_pod_at_60() -> (TestGateway, crate::support::TestAgent) {
    let gateway = TestGateway::start(ONE_POD).await;
    let agent = gateway.agent(Node::new("n1").with(gpu("u1", "ai/vllm-0", 60.0))).await;
    gateway.is_ready().await;
    (gateway, agent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_in_the_answers_soon() {
    let (gateway, _agent) = one_pod_at_60().await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    assert_eq!(trigger.value().await.unwrap(), 60.0);
    // In one step, and as an editor that writes in place does it.
    gateway.rewrite(&ordered(2));
    trigger.becomes(140.0).await;
    std::fs::write(gateway.file(), ordered(3)).unwrap();
    trigger.becomes(220.0).await;
    gateway.rewrite("{}");
    trigger.fails(Code::NotFound).await;
    gateway.rewrite(ONE_POD);
    trigger.becomes(60.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_the_same_length_and_time_is_a_changed_file_too() {
    let (gateway, _agent) = one_pod_at_60().await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    let time = std::fs::metadata(gateway.file()).unwrap().modified().unwrap();
    gateway.rewrite(&ordered(2));
    let file = std::fs::File::options().write(true).open(gateway.file()).unwrap();
    file.set_modified(time).unwrap();
    trigger.becomes(140.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_in_place_of_the_file_stops_nothing() {
    let (gateway, _agent) = one_pod_at_60().await;
    let steady = Steady::watch(gateway.trigger("ai/vllm-so", &[]).await, 60.0);
    std::fs::remove_file(gateway.file()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(gateway.file()).status().unwrap();
    assert!(made.success());
    sleep(Duration::from_millis(700)).await;
    steady.held().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_written_over_and_over_is_never_taken_half() {
    let (gateway, _agent) = one_pod_at_60().await;
    let steady = Steady::watch(gateway.trigger("ai/vllm-so", &[]).await, 60.0);
    let half = &ONE_POD[..ONE_POD.find("scaledObjects:").unwrap()];
    for _ in 0..100 {
        // Mostly half there, and always at the same place.
        std::fs::write(gateway.file(), half).unwrap();
        sleep(Duration::from_millis(20)).await;
        std::fs::write(gateway.file(), ONE_POD).unwrap();
    }
    steady.held().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_one_group_are_one_replica_of_the_status() {
    let gateway = TestGateway::start(
        "
workloads:
  - namespace: ai
    kind: Deployment
    name: vllm
    replicas: 2
    pods:
      - {name: a-0, ready: true, group: a}
      - {name: a-1, ready: true, group: a}
      - {name: b-0, ready: true, group: b}
      - {name: b-1, ready: true, group: b, terminating: true}
      - {name: a, ready: true}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {name: vllm}, triggers: [{metadata: {targetValue: 70}}]}
",
    )
    .await;
    gateway.is_ready().await;
    let explained = gateway.explain("ai/vllm-so").await;
    assert_eq!(explained["statusReplicas"], 3, "{explained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_scaled_objects_load() {
    let mut text = String::from("workloads:\n");
    for n in 0..10_000 {
        let pods = format!("{{name: p{n}, ready: true}}");
        let line = format!("{{namespace: ai, kind: D, name: w{n}, replicas: 1, pods: [{pods}]}}");
        text += &format!("  - {line}\n");
    }
    text += "scaledObjects:\n";
    for n in 0..10_000 {
        text += &format!("  - {{namespace: ai, name: s{n}, target: {{kind: D, name: w{n}}}}}\n");
    }
    let gateway = TestGateway::start(&text).await;
    gateway.trigger("ai/s9999", &[]).await.fails(Code::Unavailable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_reload_keeps_the_last_good_state() {
    let (gateway, _agent) = one_pod_at_60().await;
    let trigger = gateway.trigger("ai/vllm-so", &[]).await;
    let steady = Steady::watch(trigger.clone(), 60.0);
    for broken in [
        "workloads: [",
        "workloads: {a: b}",
        "nonsense: true",
        "",
        " \n# being saved\n",
        "null",
        &ONE_POD[..ONE_POD.len() / 2],
        &ONE_POD.replace("replicas: 1", "replicas: -1"),
        "\u{0}\u{1}",
    ] {
        gateway.rewrite(broken);
        sleep(Duration::from_millis(400)).await;
    }
    std::fs::remove_file(gateway.file()).unwrap();
    sleep(Duration::from_millis(400)).await;
    std::fs::write(gateway.file(), [0xff, 0xfe, 0x00]).unwrap();
    sleep(Duration::from_millis(400)).await;
    steady.held().await;
    assert_eq!(gateway.get("/readyz").await.0, 200);
    gateway.rewrite(&ordered(2));
    trigger.becomes(140.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_that_changes_nothing_for_a_pod_does_not_restart_its_clock() {
    let starting = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 1, pods: [{name: vllm-0, ready: false}]}
  - {namespace: ai, kind: Deployment, name: other, replicas: 0}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
";
    let gateway = TestGateway::start(starting).await;
    gateway.is_ready().await;
    let trigger = gateway.trigger("ai/vllm-so", &[("coldStartTimeout", "2s")]).await;
    assert_eq!(trigger.value().await.unwrap(), 80.0, "it is starting");
    for other in 1..100 {
        let text = starting
            .replace("name: other, replicas: 0", &format!("name: other, replicas: {other}"));
        gateway.rewrite(&text);
        sleep(Duration::from_millis(100)).await;
        if trigger.value().await.is_err() {
            break;
        }
    }
    refused(trigger.value().await, Code::Unavailable, &["coldStartTimeout"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_at_the_start_name_the_place() {
    let pods = |pods: &str| {
        format!(
            "workloads: [{{namespace: ai, kind: Deployment, name: vllm, replicas: 1, pods: [{pods}]}}]"
        )
    };
    let object = |more: &str| {
        format!("scaledObjects: [{{namespace: ai, name: vllm-so, target: {{name: vllm}}{more}}}]")
    };
    for (text, words) in [
        ("workload: []".into(), ["workload", "line 1"]),
        (pods("{name: a, ready: true, nod: n1}"), ["nod", "node"]),
        (pods("{name: a}"), ["ready", "missing"]),
        (pods("{ready: true}"), ["name", "missing"]),
        (pods("{name: a, ready: maybe}"), ["maybe", "line 1"]),
        (pods("{name: a, ready: true, phase: Sleeping}"), ["Sleeping", "Running"]),
        (pods("{name: a, ready: true, readyForSeconds: -1}"), ["ai/vllm", "seconds"]),
        (pods("{name: a, ready: false, readyForSeconds: 5}"), ["pod a", "not ready"]),
        (pods("{name: a, ready: true, unreadyForSeconds: 5}"), ["pod a", "the other"]),
        (pods("{name: '', ready: true}"), ["ai/vllm", "empty"]),
        (pods("{name: a, ready: true, ageSeconds: .nan}"), ["ai/vllm", "seconds"]),
        (pods("{name: a, ready: true}, {name: a, ready: false}"), ["pod a", "twice"]),
        (pods("{name: a, ready: true, ports: {metrics: 70000}}"), ["70000", "line 1"]),
        (object(", metricType: Utilization"), ["Utilization", "AverageValue"]),
        (object(", minReplicas: 5, maxReplicas: 2"), ["ai/vllm-so", "minReplicas"]),
        (object(", maxReplica: 2"), ["maxReplica", "maxReplicas"]),
        (object(", triggers: [{type: cron}]"), ["cron", "external"]),
        (object(", triggers: [{metadat: {}}]"), ["metadat", "metadata"]),
        (
            "scaledObjects: [{namespace: ai, name: a, target: {name: b}}, {namespace: ai, name: a, target: {name: c}}]".into(),
            ["ai/a", "twice"],
        ),
        (
            "workloads: [{namespace: ai, kind: D, name: a, replicas: 1}, {namespace: ai, kind: D, name: a, replicas: 2}]".into(),
            ["D ai/a", "twice"],
        ),
        (
            "workloads: [{namespace: ai, kind: D, name: w, replicas: 1, pods: [{name: p, ready: true, unscheduled: no GPU}]}]".into(),
            ["pod p is ready", "unscheduled"],
        ),
        (
            "workloads: [{namespace: ai, kind: D, name: w, replicas: 1, pods: [{name: p, ready: false, node: n1, unscheduled: no GPU}]}]".into(),
            ["pod p is on a node", "unscheduled"],
        ),
        ("workloads: []\nworkloads: []".into(), ["workloads", "line 2"]),
        (String::new(), ["it is empty", "{} for none"]),
        ("# nothing yet\n\n".into(), ["it is empty", "{} for none"]),
        ("null".into(), ["it is empty", "{} for none"]),
        (pods("{name: a, ready: true, ip: 10.0.0}"), ["pod a", "\"10.0.0\" is no IP address"]),
    ] {
        let error = match TestGateway::try_start(&text).await {
            Ok(_) => panic!("it is refused: {text}"),
            Err(error) => format!("{error:#}"),
        };
        assert!(error.contains("directory.yaml"), "the file: {error}");
        for word in words {
            assert!(error.contains(word), "{word} in {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_never_end_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, ONE_POD).unwrap();
    for odd in [&*pipe, "/dev/zero".as_ref()] {
        let of_directory = ServeConfig::local(odd.into());
        let profiles = Some(odd.into());
        let of_profiles = ServeConfig { profiles, ..ServeConfig::local(file.clone()) };
        for config in [of_directory, of_profiles] {
            let folder = tempfile::tempdir().unwrap();
            let started = TestGateway::try_start_with(folder, config).await;
            let error = format!("{:#}", started.err().expect("it is refused"));
            assert!(error.contains(&format!("{}: is no regular file", odd.display())), "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_may_be_empty_if_it_says_so() {
    for text in ["{}", "workloads: []\nscaledObjects: []\n"] {
        let gateway = TestGateway::start(text).await;
        gateway.is_ready().await;
        assert_eq!(gateway.json("/api/v1/workloads").await, serde_json::json!([]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_may_be_numbers_and_booleans_without_quotes() {
    let gateway = TestGateway::start(
        "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 1, pods: [{name: vllm-0, ready: true}]}
scaledObjects:
  - namespace: ai
    name: vllm-so
    target: {kind: Deployment, name: vllm}
    metricType: AverageValue
    triggers:
      - metadata: {targetValue: 70, gpuIndex: -1, activationThreshold: 1.5, enableTLS: true}
        metricType: Value
",
    )
    .await;
    let explained = gateway.explain("ai/vllm-so").await;
    assert_eq!(explained["target"], 70.0, "{explained}");
    assert_eq!(explained["status"], "UNAVAILABLE", "{explained}");
    assert_eq!(explained["metricType"], "Value", "{explained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_triggers_own_metric_type_wins_over_the_top_level_one() {
    let gateway = TestGateway::start(
        "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 2, pods: [{name: vllm-0, ready: true}, {name: vllm-1, ready: true}]}
scaledObjects:
  - namespace: ai
    name: vllm-so
    target: {kind: Deployment, name: vllm}
    metricType: AverageValue
    triggers:
      - {name: load, type: external, metadata: {scalerAddress: 'gpu-gateway.gpu:6000', targetValue: '50'}, metricType: Value}
      - {type: external-push, metadata: {scalerAddress: 'gpu-gateway.gpu:6000', targetValue: '60'}}
      - {metadata: {targetValue: '65'}, metricType: Value}
  - {namespace: ai, name: other, target: {name: vllm}, metricType: Value}
",
    )
    .await;
    let node =
        Node::new("n1").with(gpu("u0", "ai/vllm-0", 90.0)).with(gpu("u1", "ai/vllm-1", 90.0));
    let _agent = gateway.agent(node).await;
    gateway.is_ready().await;
    let keda = gateway.connect().await;
    for (object, target, value) in [
        ("ai/vllm-so", "50", 90.0),
        ("ai/vllm-so", "60", 180.0),
        ("ai/vllm-so", "65", 90.0),
        ("ai/vllm-so", "70", 180.0),
        ("ai/other", "50", 90.0),
    ] {
        let trigger = keda.trigger(object, &[("targetValue", target)]);
        assert_eq!(trigger.value().await.unwrap(), value, "{object} {target}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_is_taken_from_the_file_as_it_is_written() {
    let gateway = TestGateway::start(
        "
workloads:
  - namespace: ai
    kind: Deployment
    name: vllm
    replicas: 5
    statusReplicas: 7
    pods:
      - {name: fresh, ready: true, readyForSeconds: 5}
      - {name: group-0, ready: true, group: g}
      - {name: group-1, ready: true, group: g}
      - {name: old, ready: true}
      - {name: young, ready: false, ageSeconds: 30}
      - {name: stuck, ready: false, ageSeconds: 99999}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {name: vllm}}
",
    )
    .await;
    let mut node = Node::new("n1");
    for (at, pod) in ["fresh", "group-0", "group-1", "old"].iter().enumerate() {
        node = node.with(gpu(&format!("u{at}"), &format!("ai/{pod}"), 40.0));
    }
    let _agent = gateway.agent(node).await;
    gateway.is_ready().await;
    let trigger = gateway.trigger("ai/vllm-so", &[("startupGrace", "60s")]).await;
    eventually("it has a value", async || trigger.value().await).await;
    let explained = gateway.explain("ai/vllm-so").await;
    let states = explained["pods"].as_array().unwrap().iter();
    let states: Vec<_> = states.map(|pod| format!("{} {}", pod["name"], pod["state"])).collect();
    assert_eq!(
        states.join(", ").replace('"', ""),
        "fresh starting, group-0 reporting, old reporting, stuck stuck, young starting"
    );
    assert_eq!(explained["statusReplicas"], 7);
    assert_eq!(explained["s"], 80.0);
}
