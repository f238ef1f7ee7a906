//! One HTTP/1.1 GET of one page in one pod.
//!
//! Guarantees: it ends within the limits whatever the server does: time from connecting to the
//! last byte, bytes before and after decompression, size of the head. No redirect is followed and
//! no name is resolved. Every failure is one sentence.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, LOCATION,
    USER_AGENT,
};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use shared::brief::EnginePage;
use shared::exposition::text;
use shared::process::VERSION;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// What a scrape may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From connecting to the last byte.
    pub within: Duration,
    /// Bytes of a page, also once it is unpacked.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { within: Duration::from_secs(1), bytes: 2 << 20 }
    }
}

/// Bytes a response's head may have, its least size for hyper, and lines.
const HEAD_BYTES: usize = 16 << 10;
const HEAD_LINES: usize = 100;

/// The format without name mangling: as OpenMetrics the Python library writes `vllm:` as `vllm_`.
/// Compression is not asked for: the page crosses no network, and engines are short of CPU time.
const FORMAT: &str = "text/plain;version=0.0.4, text/plain;q=0.5, */*;q=0.1";

/// The text of `page` in the pod at `ip`.
///
/// # Errors
/// Why there is none.
pub async fn fetch(ip: IpAddr, page: &EnginePage, limits: Limits) -> Result<String, String> {
    let taken = tokio::time::timeout(limits.within, get(ip, page, limits));
    taken.await.unwrap_or_else(|_| Err(format!("it took longer than {:?}", limits.within)))
}

async fn get(ip: IpAddr, page: &EnginePage, limits: Limits) -> Result<String, String> {
    let address = SocketAddr::new(ip, page.port);
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES);
    let (mut sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Ends with this scrape, so a server that keeps sending is not listened to.
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let request = Request::get(&*page.path)
        .header(HOST, address.to_string())
        .header(ACCEPT, FORMAT)
        .header(USER_AGENT, format!("gpu-agent/{VERSION}"))
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| format!("path {:?}: {error}", page.path))?;
    let response = sender.send_request(request).await.map_err(|error| chain(&error))?;
    check(&response)?;
    let packed = packing(&response)?;
    let body = body(response, limits.bytes).await?;
    let body = if packed { unpacked(&body, limits.bytes)? } else { body };
    text(&body).map(str::to_owned).map_err(|error| error.to_string())
}

/// Refuses what is no page of metrics.
fn check(response: &Response<Incoming>) -> Result<(), String> {
    let status = response.status();
    if status.is_redirection() {
        let to = shown(header(response, LOCATION).unwrap_or("nowhere"));
        return Err(format!("HTTP {status} to {to}; redirects are not followed"));
    }
    if status != 200 {
        return Err(format!("HTTP {status}"));
    }
    let Some(kind) = header(response, CONTENT_TYPE) else { return Ok(()) };
    let plain = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    // JSON may be llama.cpp's quoted page; what else it is, its reader says.
    match plain.as_str() {
        "" | "text/plain" | "application/openmetrics-text" | "application/json" => Ok(()),
        _ => Err(format!("content type {}, which is no page of metrics", shown(kind))),
    }
}

fn packing(response: &Response<Incoming>) -> Result<bool, String> {
    match header(response, CONTENT_ENCODING).map(str::to_ascii_lowercase).as_deref() {
        None | Some("" | "identity") => Ok(false),
        Some("gzip" | "x-gzip") => Ok(true),
        Some(other) => Err(format!("content encoding {}; only gzip is read", shown(other))),
    }
}

fn header(response: &Response<Incoming>, name: HeaderName) -> Option<&str> {
    response.headers().get(name)?.to_str().ok()
}

/// What a server says of itself, cut to what fits a sentence.
fn shown(text: &str) -> String {
    const MOST: usize = 100;
    format!("{:?}", &text[..text.floor_char_boundary(MOST)])
}

async fn body(response: Response<Incoming>, most: usize) -> Result<Vec<u8>, String> {
    let too_long = || Err(format!("the page is longer than {most} bytes"));
    let announced = header(&response, CONTENT_LENGTH).and_then(|length| length.parse().ok());
    if announced.is_some_and(|length: usize| length > most) {
        return too_long();
    }
    let mut body = response.into_body();
    let mut page = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| format!("the page broke off: {}", chain(&error)))?;
        let Some(data) = frame.data_ref() else { continue };
        if page.len() + data.len() > most {
            return too_long();
        }
        page.extend_from_slice(data);
    }
    Ok(page)
}

/// Unpacks at most `most` bytes: a small body can stand for a very long page.
fn unpacked(body: &[u8], most: usize) -> Result<Vec<u8>, String> {
    let mut page = Vec::new();
    let mut decoder = MultiGzDecoder::new(body).take(most as u64 + 1);
    decoder.read_to_end(&mut page).map_err(|error| format!("the page is no gzip: {error}"))?;
    if page.len() > most {
        return Err(format!("the page is longer than {most} bytes once it is unpacked"));
    }
    Ok(page)
}

/// hyper's errors keep the cause to themselves.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
