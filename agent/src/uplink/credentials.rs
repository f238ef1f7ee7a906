//! What the agent shows a gateway, and by what it knows a gateway.
//!
//! Guarantees: files are read again for every connection and every stream, so that what is renewed
//! is used without a restart; certificates that have become unusable leave those before in use. A
//! token never goes over a network in plaintext, nor into a log or an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};
use tonic::metadata::{Ascii, MetadataValue};
use tracing::warn;

use super::address::Gateway;

/// Bytes that one file may have.
const MAX_BYTES: u64 = 1 << 20;

/// The flags that name the files, as errors name them.
const CA: &str = "--gateway-ca";
const CERTIFICATE: &str = "--tls-cert";
const KEY: &str = "--tls-key";
const TOKEN: &str = "--token-file";

/// Where credentials are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The CAs of the gateways' certificates, PEM.
    pub gateway_ca: Option<PathBuf>,
    /// The agent's own certificate and its private key, PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The token that is sent with every stream.
    pub token: Option<PathBuf>,
}

/// What is in those files now.
#[derive(Default)]
pub struct Credentials {
    files: Files,
    last: Mutex<Option<Arc<ClientConfig>>>,
}

impl Credentials {
    /// The credentials in `files`.
    pub fn new(files: Files) -> Self {
        Self { files, last: Mutex::default() }
    }

    /// Finds out whether they fit `gateways`, and can be read now.
    ///
    /// # Errors
    /// When they do not, in one sentence.
    pub fn check(&self, gateways: &[Gateway]) -> anyhow::Result<()> {
        let Files { gateway_ca, certificate, token } = &self.files;
        for gateway in gateways {
            match gateway.is_secure() {
                true if gateway_ca.is_none() => {
                    bail!("{gateway}: https needs --gateway-ca FILE, the CA of its certificate");
                }
                true => drop(server_name(gateway)?),
                false if certificate.is_some() => {
                    bail!("{gateway}: a client certificate needs https://");
                }
                false if token.is_some() && !gateway.is_local() => {
                    bail!("{gateway}: a token needs https://, or who reads it can use it");
                }
                false => {}
            }
        }
        if gateways.iter().any(Gateway::is_secure) {
            *self.last.lock() = Some(Arc::new(self.read()?));
        }
        self.token().map(drop)
    }

    /// What a connection is set up with; what is wrong with the files is logged as long as older
    /// ones can be used.
    ///
    /// # Errors
    /// When there was nothing usable yet.
    pub(super) fn tls(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let mut last = self.last.lock();
        match (self.read(), &*last) {
            (Ok(config), _) => Ok(last.insert(Arc::new(config)).clone()),
            (Err(error), Some(last)) => {
                let error = format!("{error:#}");
                warn!(error, "certificates are not usable: those read before stay");
                Ok(last.clone())
            }
            (Err(error), None) => Err(error),
        }
    }

    fn read(&self) -> anyhow::Result<ClientConfig> {
        let Some(ca) = &self.files.gateway_ca else { bail!("{CA} is not given") };
        let mut roots = RootCertStore::empty();
        for ca_certificate in certificates(CA, ca)? {
            let added = roots.add(ca_certificate);
            added.with_context(|| format!("{CA} {}: not a CA", ca.display()))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_root_certificates(roots);
        let mut config = match &self.files.certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key_file)) => {
                let chain = certificates(CERTIFICATE, certificate)?;
                // An error of the parser may quote the line it stumbled over.
                let key = PrivateKeyDer::from_pem_slice(&read(KEY, key_file)?)
                    .map_err(|_| anyhow!("{KEY} {}: no PEM private key", key_file.display()))?;
                let with = builder.with_client_auth_cert(chain, key);
                with.with_context(|| {
                    format!("{CERTIFICATE} {} and its key", certificate.display())
                })?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// The value of `authorization` for a stream; `None` without a token file.
    ///
    /// # Errors
    /// When the file cannot be read, or has no token.
    pub(super) fn token(&self) -> anyhow::Result<Option<MetadataValue<Ascii>>> {
        let Some(path) = &self.files.token else { return Ok(None) };
        let not_one = || anyhow!("{TOKEN} {}: not a token", path.display());
        let text = String::from_utf8(read(TOKEN, path)?).map_err(|_| not_one())?;
        let token = text.trim();
        if token.is_empty() || token.contains(char::is_whitespace) {
            return Err(not_one());
        }
        let value = MetadataValue::try_from(format!("Bearer {token}"));
        let mut value: MetadataValue<Ascii> = value.map_err(|_| not_one())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// The name that a gateway's certificate must have.
pub(super) fn server_name(gateway: &Gateway) -> anyhow::Result<ServerName<'static>> {
    let name = ServerName::try_from(gateway.host().to_owned());
    name.with_context(|| format!("{gateway}: no certificate can be for this host"))
}

fn certificates(flag: &str, path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let pem = read(flag, path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => bail!("{flag} {}: no PEM certificate, or one that is cut off", path.display()),
    }
}

fn read(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = || format!("{flag} {}", path.display());
    if std::fs::metadata(path).with_context(name)?.len() > MAX_BYTES {
        bail!("{flag} {}: more than {MAX_BYTES} bytes", path.display());
    }
    std::fs::read(path).with_context(name)
}
