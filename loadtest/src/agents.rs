//! The nodes' agents, real ones, in this process: each replays its node's file and can be stopped
//! and started again.

use std::path::PathBuf;
use std::time::Duration;

use agent::app::App;
use agent::config::RunConfig;
use anyhow::Context as _;
use shared::identity::NodeName;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// One node's agent, running or not.
#[derive(Debug)]
pub struct Agent {
    gateway_url: String,
    node: NodeName,
    replay: PathBuf,
    interval: Duration,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<()>>,
}

impl Agent {
    /// An agent that has not been started.
    pub fn new(gateway_url: String, node: NodeName, replay: PathBuf, interval: Duration) -> Self {
        Self { gateway_url, node, replay, interval, running: None }
    }

    /// Its node.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Starts it, unless it runs.
    ///
    /// # Errors
    /// When the agent cannot be built.
    pub fn start(&mut self) -> anyhow::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let source = format!("replay:{}", self.replay.display());
        let source = source.parse().context("the replay source")?;
        let mut config = RunConfig::new(self.gateway_url.clone(), self.node.clone(), source);
        (config.interval, config.engine_interval) = (self.interval, self.interval);
        let app = App::build(config).with_context(|| format!("agent of {}", self.node))?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(app.run(stop.clone()));
        self.running = Some(Running { stop, task });
        Ok(())
    }

    /// Stops it, if it runs, and waits until it is gone.
    ///
    /// # Errors
    /// When it ended badly.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let Some(Running { stop, task }) = self.running.take() else {
            return Ok(());
        };
        stop.cancel();
        task.await.context("the agent panicked")?.with_context(|| format!("agent of {}", self.node))
    }
}
