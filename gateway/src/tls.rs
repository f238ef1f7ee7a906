//! PEM files → what a TLS server needs, and what a client certificate says of its holder.
//!
//! Guarantees: TLS 1.2 and 1.3 with ALPN `h2`; a key that does not fit its certificate is refused
//! when it is read; a connection is never resumed, so that every one of them is checked against
//! what is valid now. No message quotes a file.

/// How long a certificate is valid.
pub mod validity;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use webpki::EndEntityCert;

use crate::reload::Reloaded;

/// The files of one TLS server, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Its certificate, with those between it and the CA.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// Where given, clients must have a certificate of one of these CAs.
    pub client_ca: Option<PathBuf>,
}

/// What connections to one port are set up with.
pub struct Server {
    /// For the handshake.
    pub config: Arc<ServerConfig>,
    /// When the certificate ends, in seconds since 1970; `None` where it does not tell.
    pub ends: Option<i64>,
}

impl Files {
    /// Reads them; `port` names them in logs and metrics.
    ///
    /// # Errors
    /// When one of them is not what it should be.
    pub fn open(&self, port: &'static str) -> anyhow::Result<Arc<Reloaded<Server>>> {
        let own = [self.certificate.clone(), self.key.clone()];
        let files = own.into_iter().chain(self.client_ca.clone()).collect();
        Reloaded::open(port, files, server)
    }
}

/// Certificate, key and, if there are three, the CAs of clients.
fn server(files: &[Vec<u8>]) -> anyhow::Result<Server> {
    let [certificate, key, client_ca @ ..] = files else { bail!("two or three files are needed") };
    let chain = certificates(certificate).context("the certificate")?;
    let ends = chain.first().and_then(|first| validity::ends(first));
    // An error of the parser may quote the line it stumbled over.
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| anyhow!("the key file has no PEM private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13, &TLS12])?;
    let builder = match client_ca.first() {
        None => builder.with_no_client_auth(),
        Some(client_ca) => {
            let mut roots = RootCertStore::empty();
            for ca in certificates(client_ca).context("the CA of clients")? {
                roots.add(ca).context("the CA of clients")?;
            }
            let roots = Arc::new(roots);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| anyhow!("certificate and key cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Server { config: Arc::new(config), ends })
}

fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => bail!("no PEM certificate in its file, or one that is cut off"),
    }
}

/// The DNS and URI names that a certificate was issued for.
pub fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let dns = certificate.valid_dns_names();
    dns.chain(certificate.valid_uri_names()).map(str::to_owned).collect()
}

/// What went wrong in a handshake, as a reason to be counted and as a sentence; `None` if the client
/// just left.
pub fn refused(error: &std::io::Error) -> Option<(&'static str, String)> {
    use rustls::CertificateError as Bad;
    use rustls::Error;
    let reason = match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>())? {
        Error::InvalidMessage(_) => "not_tls",
        Error::NoCertificatesPresented => "no_certificate",
        Error::InvalidCertificate(bad) => match bad {
            Bad::Expired | Bad::ExpiredContext { .. } => "expired_certificate",
            Bad::UnknownIssuer | Bad::BadSignature => "unknown_issuer",
            _ => "bad_certificate",
        },
        // It does not like our certificate.
        Error::AlertReceived(_) => "refused_by_peer",
        Error::NoApplicationProtocol => "not_h2",
        _ => "handshake",
    };
    Some((reason, error.to_string()))
}
