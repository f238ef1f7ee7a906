//! Where a gateway is: `http://HOST:PORT`.
//!
//! Guarantees: what parses has a host and a port and asks for nothing this build does not do.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tonic::transport::Uri;

/// A gateway's address, whose host may stand for many replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    host: String,
    port: u16,
}

/// Why an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("gateway {address:?}: {why}; write http://HOST:PORT")]
pub struct Error {
    address: String,
    why: &'static str,
}

impl FromStr for Gateway {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |why| Error { address: text.to_owned(), why };
        let uri: Uri = text.parse().map_err(|_| refused("not a URL"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refused("TLS is not in this build")),
            _ => return Err(refused("it does not begin with http://")),
        }
        if uri.path() != "/" || uri.query().is_some() {
            return Err(refused("it has a path"));
        }
        let host = uri.host().filter(|host| !host.is_empty());
        Ok(Self {
            host: host.ok_or_else(|| refused("it has no host"))?.to_owned(),
            port: uri.port_u16().ok_or_else(|| refused("it has no port"))?,
        })
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl Gateway {
    /// The host's name or address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether it is on this machine, by what is written.
    pub fn is_here(&self) -> bool {
        let ip = self.host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// `HOST:PORT`, for resolving.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}
