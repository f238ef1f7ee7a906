//! What keeps the ports closed to those who may not come in.
//!
//! Guarantees: everything that can be found wrong with certificates and tokens is found before a
//! port is bound.

use std::sync::Arc;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::accept::Entrance;
use crate::config::ServeConfig;
use crate::config::identity::{AgentAuth, IdentityConfig};
use crate::directory::kube;
use crate::http::token::{self, Token};
use crate::identity::Guard;
use crate::identity::token::Reviews;
use crate::ingest::{self, Door};
use crate::refusal::Refusals;
use crate::reload::{self, Look, Reloaded};
use crate::tls::Server;

/// The name of KEDA's port in logs and metrics.
const KEDA: &str = "keda";

/// The locks of all ports, and what is counted at them.
pub(super) struct Locks {
    keda: Option<Arc<Reloaded<Server>>>,
    agents: Option<Arc<Reloaded<Server>>>,
    guard: Arc<Guard>,
    pub(super) http_token: Option<Arc<Reloaded<Token>>>,
    pub(super) refusals: Refusals,
    pub(super) reloads: reload::Counts,
}

impl Locks {
    pub(super) async fn open(config: &ServeConfig) -> anyhow::Result<Self> {
        let IdentityConfig { keda_tls, agent_tls, agent_auth, http_token } = &config.identity;
        let keda = keda_tls.as_ref().map(|files| files.open(KEDA)).transpose();
        let agents = agent_tls.as_ref().map(|files| files.open(ingest::PORT)).transpose();
        let http_token = http_token.as_deref().map(token::open).transpose();
        let guard = match agent_auth {
            AgentAuth::None => {
                if !config.agent_listen.ip().is_loopback() {
                    warn!(
                        "agents are not authenticated: whoever reaches their port can scale any \
                         workload, and read which pods are on which node"
                    );
                }
                Guard::Open
            }
            AgentAuth::Mtls => Guard::Certificates,
            AgentAuth::Token(rules) => {
                let client = kube::client(config.kube.kubeconfig.as_deref()).await;
                let client = client.context("--agent-auth token")?;
                Guard::Tokens(Arc::new(Reviews::new(client, rules.clone())))
            }
        };
        Ok(Self {
            keda: keda.context("--keda-tls-cert, --keda-tls-key, --keda-client-ca")?,
            agents: agents.context("--agent-tls-cert, --agent-tls-key, --agent-client-ca")?,
            guard: Arc::new(guard),
            http_token: http_token.context("--http-token-file")?,
            refusals: Refusals::default(),
            reloads: reload::Counts::default(),
        })
    }

    /// How KEDA's port takes connections.
    pub(super) fn keda_entrance(&self) -> Entrance {
        Entrance { name: KEDA, tls: self.keda.clone(), refusals: self.refusals.clone() }
    }

    /// How the agents' port takes connections.
    pub(super) fn agent_entrance(&self) -> Entrance {
        Entrance { name: ingest::PORT, tls: self.agents.clone(), refusals: self.refusals.clone() }
    }

    /// Whom of them ingest lets push.
    pub(super) fn door(&self) -> Door {
        Door { guard: self.guard.clone(), refusals: self.refusals.clone() }
    }

    /// The certificates of ports, by the ports' names.
    pub(super) fn certificates(&self) -> Vec<(&'static str, Arc<Reloaded<Server>>)> {
        let ports = [(KEDA, &self.keda), (ingest::PORT, &self.agents)];
        ports.into_iter().filter_map(|(name, tls)| Some((name, tls.clone()?))).collect()
    }

    /// Reads again what changes, until `shutdown`.
    pub(super) fn watch(&self, shutdown: CancellationToken) -> impl Future<Output = ()> + use<> {
        let tls = [&self.keda, &self.agents].into_iter().flatten().cloned();
        let mut files: Vec<Arc<dyn Look>> = tls.map(|tls| tls as Arc<dyn Look>).collect();
        files.extend(self.http_token.clone().map(|token| token as Arc<dyn Look>));
        reload::watch(files, self.reloads.clone(), shutdown)
    }
}
