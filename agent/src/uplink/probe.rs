//! Whether a gateway takes streams, found out without speaking for a node.
//!
//! Guarantees: the stream is closed before its hello, so that no gateway takes note of a session;
//! every address is given up on after a bounded time.

use std::net::SocketAddr;
use std::sync::Arc;

use proto::uplink::uplink_client::UplinkClient;
use tokio::time::timeout;

use super::address::Gateway;
use super::connection::{ANSWER_WITHIN, connect, why, with_token};
use super::credentials::Credentials;
use super::resolve;

/// What is wrong with a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its name stands for nothing.
    Name(String),
    /// One of its addresses takes no stream.
    Address {
        /// The address.
        address: SocketAddr,
        /// Why.
        why: String,
    },
}

/// The addresses of `gateway`, in order, each of which takes a stream.
///
/// # Errors
/// When its name stands for nothing, or the first address that takes none.
pub async fn probe(
    gateway: &Gateway,
    credentials: &Arc<Credentials>,
) -> Result<Vec<SocketAddr>, Trouble> {
    let found = resolve(gateway).await.map_err(|error| Trouble::Name(error.to_string()))?;
    let mut addresses: Vec<_> = found.into_iter().collect();
    addresses.sort();
    for &address in &addresses {
        let failed = |why| Trouble::Address { address, why };
        match timeout(ANSWER_WITHIN, open_and_close(gateway, credentials, address)).await {
            Ok(closed) => closed.map_err(failed)?,
            Err(_) => return Err(failed(format!("no answer within {ANSWER_WITHIN:?}"))),
        }
    }
    Ok(addresses)
}

async fn open_and_close(
    gateway: &Gateway,
    credentials: &Arc<Credentials>,
    address: SocketAddr,
) -> Result<(), String> {
    let channel = connect(credentials, gateway, address).await?;
    let request = with_token(credentials, tokio_stream::empty()).await?;
    let stream = UplinkClient::new(channel).push(request).await;
    let mut stream = stream.map_err(|status| why(&status))?.into_inner();
    // Whatever it says, its end is to be a good one.
    while stream.message().await.map_err(|status| why(&status))?.is_some() {}
    Ok(())
}
