//! `gpu-gateway explain` and `ledger`: ask a gateway over HTTP.

use std::io;

use anyhow::{Context as _, anyhow, bail};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::path::Path;
use std::time::Duration;

/// Bytes an answer may have.
const MAX_BYTES: usize = 64 << 20;
/// What to look at when nobody listens there.
const IS_IT_RUNNING: &str = "is it running? In a cluster: kubectl -n gpu-scaler port-forward \
    service/gpu-gateway 8080:http";
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

/// Every ScaledObject as JSON text, from the gateway at `server`, which may want the token in a
/// file.
///
/// # Errors
/// When the gateway cannot be reached or does not answer; the message says which.
pub async fn scaled_objects(server: &Uri, token: Option<&Path>) -> anyhow::Result<String> {
    get(server, token, "/api/v1/scaledobjects").await
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
        let name = || format!("--token-file: {}", file.display());
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
        .map_err(|error| unanswered(&server, error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("{server}: {error}"))?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    match status {
        StatusCode::OK => Ok(text),
        StatusCode::UNAUTHORIZED => bail!("{server} wants a token: {}", refusal(token)),
        status => bail!("{server} answers {status}: {}", error_in(&text)),
    }
}

/// What a gateway that wants a token misses.
fn refusal(token: Option<&Path>) -> String {
    match token {
        None => "give --token-file FILE".into(),
        Some(file) => {
            format!("the one in --token-file {} is not the gateway's", file.display())
        }
    }
}

/// Why there is no answer, and what to do about it.
fn unanswered(server: &str, error: client::legacy::Error) -> anyhow::Error {
    let error = anyhow::Error::new(error).context(format!("{server} cannot be reached"));
    // What arrives before the request was sent has no predicate of its own.
    let is_foreign = |it: &hyper::Error| {
        it.is_parse() || it.to_string().starts_with("received unexpected message")
    };
    // gRPC's ports take HTTP/2 alone.
    if error.chain().filter_map(|it| it.downcast_ref()).any(is_foreign) {
        return anyhow!(
            "{server} answers, but not HTTP; name the port of --http-listen (8080 unless set)"
        );
    }
    let is_refusal = |it: &io::Error| it.kind() == io::ErrorKind::ConnectionRefused;
    match error.chain().filter_map(|it| it.downcast_ref()).any(is_refusal) {
        true => anyhow!("{error:#}; {IS_IT_RUNNING}"),
        false => error,
    }
}

/// The message in `{"error": …}`, or the text itself.
fn error_in(text: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let error = json.as_ref().and_then(|json| json.get("error")?.as_str());
    error.unwrap_or(text).to_owned()
}
