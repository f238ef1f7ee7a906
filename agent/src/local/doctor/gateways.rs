//! Whether gateways take the streams of agents.

use std::path::Path;
use std::sync::Arc;

use super::{Broken, quoted};
use crate::uplink::address::Gateway;
use crate::uplink::credentials::{Credentials, Files};
use crate::uplink::probe::{Trouble, probe};

/// Whether every address of each of `gateways` takes a stream of who shows what is in `files`.
///
/// # Errors
/// The first one that does not.
pub async fn gateways(gateways: &[Gateway], files: Files) -> Result<String, Broken> {
    let mut said = Vec::new();
    let credentials = Arc::new(Credentials::new(files));
    if let Err(error) = credentials.check(gateways) {
        return Err(Broken::new(format!("{error:#}"), "gpu-agent doctor --help"));
    }
    for gateway in gateways {
        match probe(gateway, &credentials).await {
            Ok(addresses) => {
                let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                said.push(format!("{gateway} takes streams at {}", addresses.join(", ")));
            }
            Err(Trouble::Name(why)) => {
                let said = format!("{gateway}: the name cannot be resolved: {why}");
                let host = quoted(Path::new(gateway.host()));
                return Err(Broken::new(said, format!("getent ahosts {host}")));
            }
            Err(Trouble::Address { address, why }) => {
                let place = match gateway.authority() == address.to_string() {
                    true => String::new(),
                    false => format!(" at {address}"),
                };
                let said = format!("{gateway}{place} takes no stream: {why}");
                let next = format!("curl -sSv --http2-prior-knowledge http://{address}/");
                return Err(Broken::new(said, next));
            }
        }
    }
    Ok(said.join("; "))
}
