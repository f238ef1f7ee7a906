//! One page over HTTP, again and again: resolve, check, connect to that very address, read.
//!
//! Guarantees: a look takes at most `WITHIN` and a page at most `MAX_BYTES`; only an address that
//! was checked is connected to, whatever the name resolves to later; redirects are not followed;
//! all pages together take at most `MAX_TOGETHER_KIB`, and lookups that hang at most `MAX_LOOKUPS`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use shared::address::refusal;
use shared::process::VERSION;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::place::Place;

/// How long a look may take, from the name to the last byte.
const WITHIN: Duration = Duration::from_secs(1);
/// Bytes of one page.
const MAX_BYTES: usize = 2 << 20;
/// KiB of all pages that are being read.
const MAX_TOGETHER_KIB: usize = 64 << 10;
/// Name lookups under way: each holds a thread until the system gives up.
const MAX_LOOKUPS: usize = 32;
/// Headers of an answer, and their bytes.
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;

/// What all pages share.
#[derive(Clone, Debug)]
pub struct Limits {
    memory: Arc<Semaphore>,
    lookups: Arc<Semaphore>,
}

/// The text of a page; its share of the memory is free again when it is dropped.
#[derive(Debug)]
pub struct Page {
    bytes: Vec<u8>,
    _memory: Option<OwnedSemaphorePermit>,
}

/// Reads one page.
#[derive(Debug)]
pub struct Reader {
    place: Place,
    limits: Limits,
    link: Option<Link>,
    /// What is being done, for whoever waits too long for it.
    doing: &'static str,
}

/// An open connection; it is closed when it is dropped.
#[derive(Debug)]
struct Link {
    requests: SendRequest<Empty<Bytes>>,
    _connection: AbortOnDropHandle<()>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: Arc::new(Semaphore::new(MAX_TOGETHER_KIB)),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }
}

impl Page {
    /// The page as text.
    ///
    /// # Errors
    /// When it is none.
    pub fn text(&self) -> Result<&str, String> {
        shared::exposition::text(&self.bytes).map_err(|error| error.to_string())
    }
}

impl Reader {
    /// A reader of the page at `place`, within `limits`.
    pub fn new(place: Place, limits: Limits) -> Self {
        Self { place, limits, link: None, doing: "" }
    }

    /// Reads the page as it is now. A connection that its server keeps open is used again, so that
    /// of several servers behind one name the same one goes on answering.
    ///
    /// # Errors
    /// Why it could not be read; the next look then begins with the name again.
    pub async fn read(&mut self) -> Result<Page, String> {
        let read = timeout(WITHIN, self.look()).await;
        let late = || format!("{} takes longer than {} s", self.doing, WITHIN.as_secs());
        let read = read.unwrap_or_else(|_| Err(late()));
        if read.is_err() {
            self.link = None;
        }
        read
    }

    async fn look(&mut self) -> Result<Page, String> {
        self.doing = "the answer";
        if let Some(mut link) = self.link.take()
            && let Ok(answer) = link.ask(&self.place).await
        {
            self.link = Some(link);
            return self.take(answer).await;
        }
        // The server closed it between two looks, which it may.
        let mut link = self.connect().await?;
        self.doing = "the answer";
        let answer = link.ask(&self.place).await?;
        self.link = Some(link);
        self.take(answer).await
    }

    async fn connect(&mut self) -> Result<Link, String> {
        self.doing = "looking up the name";
        let addresses = self.addresses().await?;
        self.doing = "connecting";
        let mut trouble = None;
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return Link::over(stream).await,
                Err(error) => trouble = Some(format!("{address}: {error}")),
            }
        }
        Err(trouble.unwrap_or_else(|| format!("{} has no address", self.place.name)))
    }

    /// The addresses that may be connected to, in a fixed order.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let Place { name, port, allowed, .. } = &self.place;
        let mut addresses = self.lookup(name.clone(), *port).await?;
        addresses.sort_unstable();
        let refused = addresses.iter().find_map(|at| Some((at.ip(), refusal(at.ip())?)));
        match refused {
            Some((address, why)) if !allowed => {
                Err(format!("{name} is {address}, which is {why}: not connected to"))
            }
            _ => Ok(addresses),
        }
    }

    /// Looks the name up in a task of its own: a lookup that hangs cannot be ended, only counted.
    async fn lookup(&self, name: String, port: u16) -> Result<Vec<SocketAddr>, String> {
        let turn = self.limits.lookups.clone().acquire_owned().await;
        let turn = turn.map_err(|error| error.to_string())?;
        let lookup = tokio::spawn(async move {
            let _turn = turn;
            let found = lookup_host((name.as_str(), port)).await;
            found.map(Iterator::collect).map_err(|error| format!("{name}: {error}"))
        });
        lookup.await.map_err(|error| error.to_string())?
    }

    async fn take(&mut self, answer: Response<Incoming>) -> Result<Page, String> {
        self.doing = "the page";
        acceptable(answer.status(), answer.headers())?;
        let mut body = answer.into_body();
        let mut page = Page { bytes: Vec::new(), _memory: None };
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("in the page: {error}"))?;
            let Ok(data) = frame.into_data() else { continue };
            if page.bytes.len() + data.len() > MAX_BYTES {
                return Err(format!("the page has more than {MAX_BYTES} bytes"));
            }
            page.grow(&data, &self.limits)?;
        }
        Ok(page)
    }
}

impl Page {
    fn grow(&mut self, data: &[u8], limits: &Limits) -> Result<(), String> {
        let kib = |bytes: usize| bytes.div_ceil(1 << 10);
        let more = kib(self.bytes.len() + data.len()) - kib(self.bytes.len());
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let memory = limits.memory.clone().try_acquire_many_owned(more);
            let memory = memory.map_err(|_| "too many large pages are being read at once")?;
            match &mut self._memory {
                Some(held) => held.merge(memory),
                none => *none = Some(memory),
            }
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl Link {
    async fn over(stream: TcpStream) -> Result<Self, String> {
        let handshake = http1::Builder::new()
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES)
            .handshake(TokioIo::new(stream));
        let (requests, connection) = handshake.await.map_err(|error| error.to_string())?;
        let connection = tokio::spawn(async move {
            // Whoever asks hears of it too.
            connection.await.ok();
        });
        Ok(Self { requests, _connection: AbortOnDropHandle::new(connection) })
    }

    async fn ask(&mut self, place: &Place) -> Result<Response<Incoming>, String> {
        let Place { name, port, path, .. } = place;
        let host = name.trim_end_matches('.');
        let host =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let request = Request::get(path)
            .header(header::HOST, host)
            .header(header::ACCEPT, "text/plain;version=0.0.4")
            .header(header::USER_AGENT, format!("gpu-gateway/{VERSION}"))
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        self.requests.ready().await.map_err(|error| error.to_string())?;
        self.requests.send_request(request).await.map_err(|error| whole(&error))
    }
}

/// An error of hyper's with what is behind it, as in `invalid HTTP version parsed`.
fn whole(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn acceptable(status: StatusCode, headers: &HeaderMap) -> Result<(), String> {
    if status.is_redirection() {
        return Err(format!("it answers {status}: redirects are not followed"));
    }
    if status != StatusCode::OK {
        return Err(format!("it answers {status}"));
    }
    let word = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    if let Some(encoding) = word(header::CONTENT_ENCODING).filter(|word| *word != "identity") {
        return Err(format!("the page is encoded as {encoding:?}, which was not asked for"));
    }
    match word(header::CONTENT_TYPE) {
        Some(kind) if !is_text(&kind) => {
            Err(format!("the page is {kind:?}; text/plain is Prometheus text"))
        }
        _ => Ok(()),
    }
}

fn is_text(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    ["text/plain", "application/openmetrics-text", "application/octet-stream"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known))
}
