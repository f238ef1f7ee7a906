//! Builds all of it and owns the order of shutdown.
//!
//! Guarantees: what can be found wrong before the start is found in [`App::build`]; the collector
//! ends first, so that every stream ends by itself after the last frame.

use std::time::Duration;

use anyhow::{Context as _, bail};
use proto::convert::MAX_NAME;
use shared::identity::NodeName;
use shared::process::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::collector::Collector;
use crate::config::RunConfig;
use crate::owner::file::HoldersFile;
use crate::uplink::Uplink;
use crate::uplink::address::Gateway;

/// An agent that is ready to run.
pub struct App {
    node: NodeName,
    interval: Duration,
    gateways: Vec<Gateway>,
    collector: Collector,
}

impl App {
    /// Opens every file and checks every setting.
    ///
    /// # Errors
    /// When something of it is wrong, in one sentence.
    pub fn build(config: RunConfig) -> anyhow::Result<Self> {
        let length = config.node.as_str().len();
        if length == 0 || length > MAX_NAME {
            bail!("the node's name has {length} bytes; 1 to {MAX_NAME} are accepted");
        }
        let gateways: Result<Vec<Gateway>, _> =
            config.gateways.iter().map(|url| url.parse()).collect();
        let gateways = gateways?;
        if gateways.is_empty() {
            bail!("no gateway; write --gateway http://HOST:PORT");
        }
        let holders = config.holders.as_deref().map(HoldersFile::open);
        Ok(Self {
            gateways,
            collector: Collector {
                source: config.source.open(&config.node, config.replay_end)?,
                holders: holders.transpose()?,
                interval: config.interval,
            },
            node: config.node,
            interval: config.interval,
        })
    }

    /// Runs until `shutdown` is cancelled or the source has finished.
    ///
    /// # Errors
    /// When the collector or an uplink ended in a way that is a bug.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let clock = Clock::start();
        let (newest, frames) = watch::channel(None);
        let no_more_tries = CancellationToken::new();
        let mut uplinks = JoinSet::new();
        for gateway in self.gateways {
            let uplink = Uplink {
                node: self.node.clone(),
                interval: self.interval,
                newest: frames.clone(),
                clock,
                shutdown: no_more_tries.clone(),
            };
            info!(node = %self.node, %gateway, "agent starts");
            uplinks.spawn(uplink.run(gateway));
        }
        let collector = tokio::spawn(self.collector.run(clock, newest, shutdown));
        let collected = collector.await.context("collector");
        no_more_tries.cancel();
        while let Some(ended) = uplinks.join_next().await {
            ended.context("uplink")?;
        }
        Ok(collected??)
    }
}
