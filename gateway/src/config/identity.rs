//! Flags about who may connect.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::identity::token::{Rules, ServiceAccount};
use crate::tls::Files;

/// Flags of `serve` about who may connect.
#[derive(Debug, Args)]
pub struct IdentityArgs {
    /// Certificate for --keda-listen, PEM; with it KEDA must use TLS. Files are read again when they change
    #[arg(long, env = "GPU_GATEWAY_KEDA_TLS_CERT", value_name = "FILE")]
    pub keda_tls_cert: Option<PathBuf>,
    /// Private key of --keda-tls-cert, PEM
    #[arg(long, env = "GPU_GATEWAY_KEDA_TLS_KEY", value_name = "FILE")]
    pub keda_tls_key: Option<PathBuf>,
    /// KEDA must show a certificate of one of these CAs (tlsClientCert and tlsClientKey of a
    /// TriggerAuthentication), PEM
    #[arg(long, env = "GPU_GATEWAY_KEDA_CLIENT_CA", value_name = "FILE")]
    pub keda_client_ca: Option<PathBuf>,
    /// Certificate for --agent-listen, PEM; with it agents must use TLS
    #[arg(long, env = "GPU_GATEWAY_AGENT_TLS_CERT", value_name = "FILE")]
    pub agent_tls_cert: Option<PathBuf>,
    /// Private key of --agent-tls-cert, PEM
    #[arg(long, env = "GPU_GATEWAY_AGENT_TLS_KEY", value_name = "FILE")]
    pub agent_tls_key: Option<PathBuf>,
    /// How agents prove who they are; required unless --agent-listen is a loopback address
    #[arg(long, env = "GPU_GATEWAY_AGENT_AUTH")]
    pub agent_auth: Option<Proof>,
    /// With --agent-auth mtls: the CAs of the agents' certificates, PEM. The node's name is a DNS
    /// name of the certificate, or ends a URI name after /node/
    #[arg(long, env = "GPU_GATEWAY_AGENT_CLIENT_CA", value_name = "FILE")]
    pub agent_client_ca: Option<PathBuf>,
    /// With --agent-auth token: the audience of the agents' tokens
    #[arg(long, env = "GPU_GATEWAY_AGENT_TOKEN_AUDIENCE", default_value = "gpu-gateway")]
    pub agent_token_audience: String,
    /// With --agent-auth token: the agents' service account
    #[arg(long, env = "GPU_GATEWAY_AGENT_SERVICE_ACCOUNT", value_name = "NAMESPACE/NAME")]
    pub agent_service_account: Option<ServiceAccount>,
    /// /api wants the bearer token in this file; probes, /metrics and the dashboard page stay open
    #[arg(long, env = "GPU_GATEWAY_HTTP_TOKEN_FILE", value_name = "FILE")]
    pub http_token_file: Option<PathBuf>,
}

/// How agents prove who they are, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Proof {
    /// Not at all: whoever reaches the port can scale any workload
    None,
    /// A service-account token that the API server reviews
    Token,
    /// A client certificate with the node's name
    Mtls,
}

/// How agents prove who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AgentAuth {
    /// Not at all: whoever reaches the port can scale any workload.
    #[default]
    None,
    /// A service-account token like this.
    Token(Rules),
    /// A client certificate; the CAs are those of the port.
    Mtls,
}

/// Who may connect where.
#[derive(Clone, Debug, Default)]
pub struct IdentityConfig {
    /// TLS of KEDA's port.
    pub keda_tls: Option<Files>,
    /// TLS of the agents' port.
    pub agent_tls: Option<Files>,
    /// How agents prove who they are.
    pub agent_auth: AgentAuth,
    /// The token of the HTTP port.
    pub http_token: Option<PathBuf>,
}

impl IdentityArgs {
    /// The checked form, for agents at `agent_listen`.
    pub(super) fn resolve(self, agent_listen: SocketAddr) -> Result<IdentityConfig, String> {
        let is_local = agent_listen.ip().is_loopback();
        let keda = (self.keda_tls_cert, self.keda_tls_key, self.keda_client_ca);
        let agent = (self.agent_tls_cert, self.agent_tls_key, self.agent_client_ca);
        let keda_tls = files("keda", keda)?;
        let agent_tls = files("agent", agent)?;
        let has_client_ca = agent_tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        let proof = match self.agent_auth {
            Some(proof) => proof,
            None if is_local => Proof::None,
            None => {
                return Err(format!(
                    "--agent-auth is required because --agent-listen {agent_listen} is not a loopback \
                     address: whoever reaches that port can scale any workload; to try it out, \
                     --agent-listen 127.0.0.1:6001"
                ));
            }
        };
        let agent_auth = match proof {
            Proof::Mtls if !has_client_ca => {
                return Err("--agent-auth mtls needs --agent-tls-cert, --agent-tls-key and \
                            --agent-client-ca"
                    .into());
            }
            Proof::Mtls => AgentAuth::Mtls,
            _ if has_client_ca => {
                return Err("--agent-client-ca is for --agent-auth mtls".into());
            }
            Proof::None => AgentAuth::None,
            Proof::Token if agent_tls.is_none() && !is_local => {
                return Err(format!(
                    "--agent-auth token needs --agent-tls-cert and --agent-tls-key because \
                     --agent-listen {agent_listen} is not a loopback address: whoever reads a token \
                     on its way can use it"
                ));
            }
            Proof::Token => {
                let account = self.agent_service_account.ok_or(
                    "--agent-auth token needs --agent-service-account NAMESPACE/NAME: otherwise \
                     every pod could speak for its node",
                )?;
                if self.agent_token_audience.is_empty() {
                    return Err("--agent-token-audience is empty".into());
                }
                AgentAuth::Token(Rules { audience: self.agent_token_audience, account })
            }
        };
        Ok(IdentityConfig { keda_tls, agent_tls, agent_auth, http_token: self.http_token_file })
    }
}

/// Certificate, key and the CAs of clients.
type Given = (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>);

fn files(port: &str, given: Given) -> Result<Option<Files>, String> {
    match given {
        (Some(certificate), Some(key), client_ca) => {
            Ok(Some(Files { certificate, key, client_ca }))
        }
        (None, None, None) => Ok(None),
        (None, None, Some(_)) => {
            Err(format!("--{port}-client-ca needs --{port}-tls-cert and --{port}-tls-key"))
        }
        _ => Err(format!("--{port}-tls-cert and --{port}-tls-key go together")),
    }
}
