//! Many nodes in one process, each with a real agent and simulated GPUs: `nodes GATEWAY NODES GPUS`.

use std::time::Duration;

use agent::app::App;
use agent::config::RunConfig;
use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

/// A load that moves, from one node to the next by another seed.
const SHAPE: &str = "shape=sine:5-95:2m,noise=12";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let gateway = arguments.next().context("the first argument is the gateway's URL")?;
    let mut number = |name: &str| -> anyhow::Result<u32> {
        let word = arguments.next().with_context(|| format!("the number of {name} is missing"))?;
        word.parse().with_context(|| format!("the number of {name}"))
    };
    let (nodes, gpus) = (number("nodes")?, number("GPUs of a node")?);
    let mut agents = tokio::task::JoinSet::new();
    for node in 0..nodes {
        let pods: Vec<_> = (1..gpus).map(|gpu| format!("ai/vllm-{node}-{gpu}")).collect();
        let source =
            format!("sim:gpus={gpus},model=H100,pods={},{SHAPE},seed={node}", pods.join("+"));
        let source = source.parse().map_err(anyhow::Error::msg).context("the source")?;
        let name = format!("gpu-node-{node:04}").into();
        let mut config = RunConfig::new(gateway.clone(), name, source);
        config.interval = Duration::from_secs(1);
        agents.spawn(App::build(config)?.run(CancellationToken::new()));
    }
    while let Some(ended) = agents.join_next().await {
        ended??;
    }
    Ok(())
}
