//! Certificate authorities of these tests, and what they issue.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};

/// A CA that somebody trusts.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a CA"))
    }

    /// Writes its certificate to `folder/file`.
    pub(crate) fn write(&self, folder: &Path, file: &str) -> PathBuf {
        let path = folder.join(file);
        replace(&path, &self.0.pem());
        path
    }

    /// A certificate for DNS names, addresses and URIs.
    pub(crate) fn issue(&self, names: &[&str]) -> Pair {
        self.issue_until(names, 4000)
    }

    /// One that ended with the year before `year`.
    pub(crate) fn issue_until(&self, names: &[&str], year: i32) -> Pair {
        let (uris, others): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.contains("://"));
        let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(others).expect("names");
        let uris = uris.into_iter().map(|uri| SanType::URI(uri.try_into().expect("ASCII")));
        params.subject_alt_names.extend(uris);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Pair {
    /// Writes both to `folder`, as `name.crt` and `name.key`.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let paths = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        replace(&paths.0, &self.certificate);
        replace(&paths.1, &self.key);
        paths
    }
}

/// Replaces a file in one step, as the kubelet does.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("the file can be written");
    fs::rename(&new, path).expect("the file can be replaced");
}
