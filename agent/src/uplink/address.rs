//! Where a gateway is: `http://HOST:PORT` or `https://HOST:PORT`.
//!
//! Guarantees: what parses has a host and a port and asks for nothing this build does not do.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tonic::transport::Uri;

/// A gateway's address, whose host may stand for many replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    is_secure: bool,
    host: String,
    port: u16,
}

/// Why an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("gateway {address:?}: {why}; write http://HOST:PORT or https://HOST:PORT")]
pub struct Error {
    address: String,
    why: &'static str,
}

impl FromStr for Gateway {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |why| Error { address: text.to_owned(), why };
        let uri: Uri = text.parse().map_err(|_| refused("not a URL"))?;
        let is_secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refused("it does not begin with http:// or https://")),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(refused("it has a path"));
        }
        let host = uri.host().filter(|host| !host.is_empty());
        Ok(Self {
            is_secure,
            host: host.ok_or_else(|| refused("it has no host"))?.to_owned(),
            port: uri.port_u16().ok_or_else(|| refused("it has no port"))?,
        })
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl Gateway {
    /// Its host: a name, or an address without brackets.
    pub fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether it is on this machine, by what is written.
    pub fn is_here(&self) -> bool {
        let ip = self.host().parse::<IpAddr>();
        self.host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }

    /// `HOST:PORT`, for resolving.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Whether it is spoken to over TLS.
    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Whether it is on this machine: a loopback address or `localhost`.
    pub fn is_local(&self) -> bool {
        let address: Result<IpAddr, _> = self.host().parse();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}
