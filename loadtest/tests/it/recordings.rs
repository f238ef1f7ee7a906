//! What agents recorded of their drivers, replayed to a gateway.

use std::process::Command;

use tempfile::TempDir;

use crate::fake_nvml::{FakeNvml, gpu, machine};
use crate::nvml::holders;
use crate::processes::{DIRECTORY, NODES};
use crate::support::{Gateway, Process, binaries, run_agent, scaled_object};

/// Records a node's GPUs through its own library; returns the source that replays them.
fn record(agent: Command, node: &str, gpus: &[(&str, f64)], folder: &TempDir) -> String {
    let uuid = |index| format!("GPU-{node}-{index}");
    let loads = gpus.iter().enumerate();
    let fake: Vec<_> = loads.map(|(index, (_, load))| gpu(&uuid(index), *load as u32)).collect();
    let fake = FakeNvml::new(&machine(&fake));
    let pods = gpus.iter().enumerate().map(|(index, (pod, _))| (uuid(index), *pod));
    let holders = holders(folder, node, &pods.collect::<Vec<_>>());
    let file = folder.path().join(format!("{node}.jsonl"));
    let mut agent = agent;
    agent.arg("record").arg(&file).args(["--interval", "100ms", "--for", "250ms"]);
    agent.arg("--nvml-library").arg(fake.path()).args(["--holders", &holders]);
    let output = agent.output().unwrap();
    assert!(output.status.success(), "{node}: {}", String::from_utf8_lossy(&output.stderr));
    format!("replay:{}", file.display())
}

#[tokio::test]
async fn three_agents_that_replay_what_others_recorded_give_the_exact_total() {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    // The drivers are gone before the first recording is replayed.
    let recorded = NODES.map(|(node, gpus)| {
        (node, record(Command::new(binaries.join("gpu-agent")), node, gpus, &folder))
    });
    let gateway = Gateway::start(&binaries, &folder, DIRECTORY);
    let mut processes = recorded.map(|(node, source)| {
        let mut run = run_agent(&binaries, &gateway, node);
        run.args(["--source", &source]);
        Process::start(node, run, &folder)
    });

    let llm = scaled_object("llm-so", &[]);
    let first = gateway.first_answer(&llm, &processes).await;
    assert_eq!((first.metric_value_float, first.metric_value), (110.0, 110), "{first:?}");
    for _ in 0..10 {
        assert_eq!(gateway.ask(&llm).await.unwrap(), first, "every line says the same");
    }
    assert!(gateway.is_active(&llm).await);
    for process in &mut processes {
        let status = process.terminate().await;
        assert!(status.success(), "{} ended with {status}:\n{}", process.name, process.log());
    }
}
