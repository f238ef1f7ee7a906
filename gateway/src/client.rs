//! `gpu-gateway explain` and `ledger`: ask a gateway over HTTP.

use std::io;

use anyhow::{Context as _, anyhow, bail};
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::uri::Authority;
use hyper::{Request, StatusCode, Uri};
use hyper_util::client;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

use crate::explain::Explanation;
use crate::ledger::report::Report;

/// Bytes an answer may have.
const MAX_BYTES: usize = 64 << 20;
/// What to look at when nobody listens there.
const IS_IT_RUNNING: &str = "is it running? In a cluster: kubectl -n gpu-scaler port-forward \
    service/gpu-gateway 8080:http";
/// Characters of an error that are shown.
const MAX_CHARS: usize = 300;
/// How long a gateway may take for the whole of its answer.
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
    let path = format!("/api/v1/scaledobjects/{namespace}/{name}/explain");
    let text = get(server, token, &path).await?;
    is_said_by_gateway::<Explanation>(server, &text)?;
    Ok(text)
}

/// Every ScaledObject as JSON text, from the gateway at `server`, which may want the token in a
/// file.
///
/// # Errors
/// When the gateway cannot be reached or does not answer; the message says which.
pub async fn scaled_objects(server: &Uri, token: Option<&Path>) -> anyhow::Result<String> {
    let text = get(server, token, "/api/v1/scaledobjects").await?;
    is_said_by_gateway::<Vec<serde_json::Value>>(server, &text)?;
    Ok(text)
}

/// The ledger as JSON text, from the gateway at `server`, which may want the token in a file.
///
/// # Errors
/// When the gateway cannot be reached or does not answer; the message says which.
pub async fn ledger(server: &Uri, token: Option<&Path>) -> anyhow::Result<String> {
    let text = get(server, token, "/api/v1/ledger").await?;
    is_said_by_gateway::<Report>(server, &text)?;
    Ok(text)
}

/// Fails where `text`, the answer of `server`, is no `T`.
fn is_said_by_gateway<T: DeserializeOwned>(server: &Uri, text: &str) -> anyhow::Result<()> {
    let foreign = || {
        format!(
            "http://{} answers, but not this API",
            server.authority().map_or("", Authority::as_str)
        )
    };
    serde_json::from_str::<T>(text).map(drop).with_context(foreign)
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
    let end = Instant::now() + WITHIN;
    let answer = tokio::time::timeout(WITHIN, client.request(request))
        .await
        .with_context(|| format!("{server} did not answer within {} s", WITHIN.as_secs()))?
        .map_err(|error| unanswered(&server, error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MAX_BYTES).collect();
    let body = tokio::time::timeout_at(end, body)
        .await
        .with_context(|| format!("{server} did not end its answer within {} s", WITHIN.as_secs()))?
        .map_err(|error| anyhow::anyhow!("{server}: {}", broken_off(&*error)))?
        .to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    match status {
        StatusCode::OK => Ok(text),
        StatusCode::UNAUTHORIZED => bail!("{server} wants a token: {}", refusal(token)),
        status => bail!("{server} answers {status}: {}", error_in(&text, path)),
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
        it.is_parse()
            || it.is_incomplete_message()
            || it.to_string().starts_with("received unexpected message")
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

/// Why an answer has no end.
fn broken_off(error: &(dyn Error + Send + Sync + 'static)) -> String {
    if error.is::<LengthLimitError>() {
        return format!("the answer is longer than {} MiB", MAX_BYTES >> 20);
    }
    format!("the answer breaks off: {error}")
}

/// The message in `{"error": …}`, or the text itself, fit for a terminal; what says nothing is
/// from something that does not know `path`.
fn error_in(text: &str, path: &str) -> String {
    let json: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let error = json.as_ref().and_then(|json| json.get("error")?.as_str()).unwrap_or(text);
    let is_odd = |c: char| c.is_control() || c.is_whitespace();
    let words: Vec<_> = error.split(is_odd).filter(|word| !word.is_empty()).collect();
    let words = words.join(" ");
    match words.char_indices().nth(MAX_CHARS) {
        _ if words.is_empty() => format!("it has no {path}; is it a gateway, and as new as this?"),
        None => words,
        Some((end, _)) => format!("{}…", &words[..end]),
    }
}
