//! From demand to the message: how long after a router's page says it StreamIsActive does.
//!
//! `cargo run --release -p loadtest --example demand [RUNS]`
//!
//! Router, gateway and client are on loopback in one process; each run raises the demand at another
//! moment between two looks at the page.

use std::time::Duration;

use anyhow::Context as _;
use gateway::app::App;
use gateway::config::ServeConfig;
use loadtest::router::{Router, SERIES};
use proto::keda::ScaledObjectRef;
use proto::keda::external_scaler_client::ExternalScalerClient;
use shared::process::Clock;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const RUNS: u32 = 200;
/// What a run may take before the measurement is given up.
const PATIENCE: Duration = Duration::from_secs(10);
const DIRECTORY: &str = "
workloads:
  - {namespace: ai, kind: Deployment, name: vllm, replicas: 0}
scaledObjects:
  - {namespace: ai, name: vllm-so, target: {kind: Deployment, name: vllm}}
";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let runs = std::env::args().nth(1).map_or(Ok(RUNS), |runs| runs.parse()).context("RUNS")?;
    let router = Router::start().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, DIRECTORY)?;
    let mut config = ServeConfig::local(file);
    config.demand_allow = vec![router.origin()];
    let app = App::build(config).await?;
    let keda = format!("http://{}", app.keda_addr());
    let stop = CancellationToken::new();
    let gateway = tokio::spawn(app.run(stop.clone()));

    let mut client = ExternalScalerClient::connect(keda).await?;
    let mut stream = client.stream_is_active(reference(&router)).await?.into_inner();
    let clock = Clock::start();
    let mut took = Vec::new();
    for run in 0..runs {
        router.holds(0);
        tokio::time::timeout(PATIENCE, asleep(&mut client, &router)).await.context("asleep")?;
        // Spread over the half second between two looks, in no order.
        sleep(Duration::from_millis(u64::from(run * 197 % 500))).await;
        let start = clock.now();
        router.holds(3);
        let message = tokio::time::timeout(PATIENCE, stream.message()).await;
        message.context("no message")??.context("the stream ended")?;
        took.push(clock.now().since(start));
    }
    stop.cancel();
    gateway.await??;

    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part).round() as usize].as_secs_f64();
    println!("demand to message, {runs} runs, page read every 0.5 s (wanted: median 0.6, p99 1.1)");
    println!("  median {:.3} s   p99 {:.3} s   most {:.3} s", at(0.5), at(0.99), at(1.0));
    Ok(())
}

fn reference(router: &Router) -> ScaledObjectRef {
    let metadata = [
        ("metricType", "gpu_utilization".to_owned()),
        ("demandEndpoint", format!("{}/metrics", router.origin())),
        ("demandMetric", SERIES.to_owned()),
    ];
    ScaledObjectRef {
        namespace: "ai".into(),
        name: "vllm-so".into(),
        scaler_metadata: metadata.map(|(key, value)| (key.to_owned(), value)).into(),
    }
}

/// Waits until the gateway knows of no demand.
async fn asleep(client: &mut ExternalScalerClient<tonic::transport::Channel>, router: &Router) {
    loop {
        let answer = client.is_active(reference(router)).await;
        if answer.is_ok_and(|answer| !answer.into_inner().result) {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
