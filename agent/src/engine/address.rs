//! Where a page is when a person names it: `http://IP:PORT/PATH`.
//!
//! Guarantees: what parses names one address; no name is ever resolved.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use hyper::Uri;
use shared::brief::EnginePage;

/// A page of metrics at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAddress {
    /// Where the engine is.
    pub ip: IpAddr,
    /// Its page.
    pub page: EnginePage,
}

/// Why an address was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("engine page {address:?}: {why}; write http://IP:PORT/PATH")]
pub struct Error {
    address: String,
    why: &'static str,
}

impl Error {
    /// What is wrong with the address.
    pub fn why(&self) -> &'static str {
        self.why
    }
}

impl FromStr for PageAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |why| Error { address: text.to_owned(), why };
        let uri: Uri = text.parse().map_err(|_| refused("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(refused("it does not begin with http://"));
        }
        let authority = uri.authority().ok_or_else(|| refused("it has no address"))?;
        let address: SocketAddr = authority
            .as_str()
            .parse()
            .map_err(|_| refused("it does not name an IP address and a port"))?;
        if address.port() == 0 {
            return Err(refused("0 is no port"));
        }
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" => "/metrics",
            path => path,
        };
        Ok(Self { ip: address.ip(), page: EnginePage { port: address.port(), path: path.into() } })
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", SocketAddr::new(self.ip, self.page.port), self.page.path)
    }
}
