//! A gateway, as a process of its own, that has heard all of a site.
//!
//! Guarantees: once it is started every answer is the expected one.

use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::measure::round::Target;
use crate::measure::server::Server;
use crate::measure::site::{Ask, Site};

/// A gateway that knows a site and has heard all of it.
#[derive(Debug)]
pub struct Told {
    /// The gateway.
    pub server: Server,
    /// A question about each workload.
    pub asks: Vec<Ask>,
    _folder: TempDir,
    _speakers: JoinSet<()>,
}

impl Told {
    /// Starts it, and speaks for every node.
    ///
    /// # Errors
    /// When it does not answer as it must.
    pub async fn start(site: &Site) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("directory.yaml");
        std::fs::write(&file, site.directory())?;
        let server = Server::gateway(&file)?;
        let speakers = site.speak(server.agents).await?;
        site.settle(server.keda).await?;
        Ok(Self { server, asks: site.asks(), _folder: folder, _speakers: speakers })
    }

    /// All of it, asked about in turn.
    pub fn target<'a>(&'a self, name: &'a str) -> Target<'a> {
        Target { name, server: &self.server, asks: self.asks.clone().into() }
    }
}
