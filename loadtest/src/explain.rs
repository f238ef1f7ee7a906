//! The gateway's own words for the value it gives: one HTTP request to its explain page.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use shared::identity::ScaledObjectKey;
use tokio::net::TcpStream;

/// An explanation that takes longer is left out.
const PATIENCE: Duration = Duration::from_secs(1);

/// The path of a ScaledObject's explain page.
pub fn path(key: &ScaledObjectKey) -> String {
    format!("/api/v1/scaledobjects/{}/{}/explain", key.namespace, key.name)
}

/// Why the first trigger's value is what it is, if the gateway says so in time.
pub async fn reason(gateway: SocketAddr, key: &ScaledObjectKey) -> Option<String> {
    let page = tokio::time::timeout(PATIENCE, get(gateway, &path(key))).await;
    let page = page.ok()?.ok()?;
    let reason = page.pointer("/triggers/0/reason")?.as_str()?;
    Some(reason.to_owned())
}

/// A page of the gateway's HTTP port.
///
/// # Errors
/// When there is none, or it is not JSON.
pub async fn get(server: SocketAddr, path: &str) -> anyhow::Result<Value> {
    let socket = TcpStream::connect(server).await.context("connecting")?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header(HOST, server.to_string()).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let body = response.into_body().collect().await?.to_bytes();
    connection.abort();
    serde_json::from_slice(&body).context("not JSON")
}
