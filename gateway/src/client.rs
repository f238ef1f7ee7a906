//! `gpu-gateway explain` and `ledger`: ask a gateway over HTTP.

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::path::Path;
use std::time::Duration;

/// Bytes an answer may have.
const MAX_BYTES: usize = 64 << 20;
/// How long a gateway may take.
const WITHIN: Duration = Duration::from_secs(10);

/// The explanation of `namespace/name` as JSON text, from the gateway at `server`, which may want
/// the token in a file.
///
/// # Errors
/// When the gateway cannot be reached or has no explanation; the message says which.
pub async fn explanation(
    server: &Uri,
    token: Option<&Path>,
    (namespace, name): (&str, &str),
) -> anyhow::Result<String> {
    get(server, token, &format!("/api/v1/scaledobjects/{namespace}/{name}/explain")).await
}

/// The ledger as JSON text, from the gateway at `server`, which may want the token in a file.
///
/// # Errors
/// When the gateway cannot be reached or does not answer; the message says which.
pub async fn ledger(server: &Uri, token: Option<&Path>) -> anyhow::Result<String> {
    get(server, token, "/api/v1/ledger").await
}

async fn get(server: &Uri, token: Option<&Path>, path: &str) -> anyhow::Result<String> {
    let authority = server.authority().context("the server has no host")?.as_str();
    let uri = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
    let server = format!("http://{authority}");
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let mut request = Request::get(uri);
    if let Some(file) = token {
        let name = || file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(name)?;
        let mut value = HeaderValue::from_str(&format!("Bearer {}", text.trim()))
            .map_err(|_| anyhow::anyhow!("{}: not a token", name()))?;
        value.set_sensitive(true);
        request = request.header(AUTHORIZATION, value);
    }
    let request = request.body(Empty::new())?;
    let answer = tokio::time::timeout(WITHIN, client.request(request))
        .await
        .with_context(|| format!("{server} did not answer within {} s", WITHIN.as_secs()))?
        .with_context(|| format!("{server} cannot be reached"))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{server}: {error}"))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    match status {
        StatusCode::OK => Ok(text),
        status => bail!("{server} answers {status}: {}", error_in(&text)),
    }
}

/// The message in `{"error": …}`, or the text itself.
fn error_in(text: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let error = json.as_ref().and_then(|json| json.get("error")?.as_str());
    error.unwrap_or(text).to_owned()
}
