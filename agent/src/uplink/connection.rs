//! One stream to one address, from connecting to its end.
//!
//! Guarantees: a dead connection is noticed within `PING_EVERY` + `PONG_WITHIN`; connecting
//! gives up after a bounded time; after shutdown the stream has `GOODBYE` to end.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use proto::uplink::gateway_message::Body;
use proto::uplink::uplink_client::UplinkClient;
use proto::uplink::{GatewayMessage, Welcome};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tracing::{debug, info, warn};

use super::address::Gateway;
use super::briefs::Stream;
use super::credentials::{self, Credentials};
use super::outbound::Outbound;
use super::{Heard, Uplink};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time a gateway that accepted the connection has to accept the stream.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

const PING_EVERY: Duration = Duration::from_secs(10);
const PONG_WITHIN: Duration = Duration::from_secs(5);

/// Time for the last frame and the gateway's own end of the stream.
const GOODBYE: Duration = Duration::from_secs(2);

/// A stream that breaks sooner after its welcome counts as one that never came up, so that a
/// gateway which welcomes and drops is not called ever again without growing delays.
const UP_AFTER: Duration = Duration::from_secs(1);

/// How a stream ended.
pub(super) enum Ended {
    /// The agent ends.
    Over,
    /// There was no stream, or not for long.
    NeverUp { error: String },
    /// There was one; the gateway had said how many sessions it held.
    Broke { error: String, held: u32 },
}

/// Connects, pushes, and returns when that has ended.
pub(super) async fn once(uplink: &Uplink, stream: &Stream) -> Ended {
    let (gateway, address) = stream;
    let opening = uplink.shutdown.run_until_cancelled(open(uplink, gateway, *address));
    let mut incoming = match opening.await {
        None => return Ended::Over,
        Some(Err(error)) => return Ended::NeverUp { error },
        Some(Ok(incoming)) => incoming,
    };
    let mut welcomed = None;
    let goodbye = async {
        uplink.shutdown.cancelled().await;
        tokio::time::sleep(GOODBYE).await;
    };
    let error = tokio::select! {
        () = goodbye => return Ended::Over,
        error = listen(&mut incoming, stream, &uplink.briefs, |welcome| {
            // Later ones only say that the gateway holds more sessions by now.
            let since = welcomed.map(|(_, since)| since);
            if since.is_none() {
                info!(
                    %gateway, %address, version = welcome.version, sessions = welcome.sessions,
                    "pushing to the gateway"
                );
            }
            welcomed = Some((welcome.sessions, since.unwrap_or_else(Instant::now)));
        }) => error,
    };
    match welcomed {
        _ if uplink.shutdown.is_cancelled() || uplink.newest.has_changed().is_err() => Ended::Over,
        Some((held, since)) if since.elapsed() >= UP_AFTER => Ended::Broke { error, held },
        _ => Ended::NeverUp { error },
    }
}

async fn open(
    uplink: &Uplink,
    gateway: &Gateway,
    address: SocketAddr,
) -> Result<Streaming<GatewayMessage>, String> {
    let outbound = Outbound::new(uplink.hello(), uplink.newest.clone(), uplink.clock);
    let request = with_token(&uplink.credentials, outbound).await?;
    // The last that is waited for: a connection that breaks before it is used is made a second
    // time at once, and the delays between tries would count for half.
    let channel = connect(&uplink.credentials, gateway, address).await?;
    let mut client = UplinkClient::new(channel);
    match timeout(ANSWER_WITHIN, client.push(request)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(why(&status)),
        Err(_) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
    }
}

/// `messages` with the agent's token, if it has one.
pub(super) async fn with_token<T>(
    credentials: &Arc<Credentials>,
    messages: T,
) -> Result<Request<T>, String> {
    let credentials = credentials.clone();
    let token = blocking(move || credentials.token()).await?;
    let mut request = Request::new(messages);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", token);
    }
    Ok(request)
}

/// A connection to this very address, under the gateway's name.
pub(super) async fn connect(
    credentials: &Arc<Credentials>,
    gateway: &Gateway,
    address: SocketAddr,
) -> Result<Channel, String> {
    let name = gateway.to_string().parse().expect("it was parsed from a URI");
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| chain(&error))?
        .origin(name)
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .keep_alive_while_idle(true);
    let connected = if gateway.is_secure() {
        let credentials = credentials.clone();
        let tls = TlsConnector::from(blocking(move || credentials.tls()).await?);
        let name = credentials::server_name(gateway).map_err(|error| error.to_string())?;
        let secured = tower::service_fn(move |_| secured(tls.clone(), name.clone(), address));
        timeout(CONNECT_WITHIN, endpoint.connect_with_connector(secured)).await
    } else {
        timeout(CONNECT_WITHIN, endpoint.connect()).await
    };
    match connected {
        Ok(connected) => connected.map_err(|error| chain(&error)),
        Err(_) => Err(format!("no connection within {CONNECT_WITHIN:?}")),
    }
}

/// A TLS connection with the gateway of that name, at this very address.
async fn secured(
    tls: TlsConnector,
    name: ServerName<'static>,
    address: SocketAddr,
) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    tls.connect(name, stream).await.map(TokioIo::new)
}

/// Reads files where that keeps no stream waiting.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, String> {
    match tokio::task::spawn_blocking(read).await {
        Ok(read) => read.map_err(|error| format!("{error:#}")),
        Err(_) => Err("credentials could not be read".into()),
    }
}

/// Hears the gateway out; returns why it fell silent.
async fn listen(
    incoming: &mut Streaming<GatewayMessage>,
    stream: &Stream,
    briefs: &Heard,
    mut welcomed: impl FnMut(Welcome),
) -> String {
    loop {
        match incoming.message().await {
            Ok(Some(GatewayMessage { body: Some(Body::Welcome(welcome)) })) => welcomed(welcome),
            Ok(Some(GatewayMessage { body: Some(Body::Brief(brief)) })) => {
                take(brief, stream, briefs)
            }
            // From a newer gateway: not for us.
            Ok(Some(GatewayMessage { body: None })) => {}
            Ok(None) => return "the gateway ended the stream".into(),
            Err(status) => return said(&status),
        }
    }
}

/// What can be understood of a brief counts.
fn take(message: proto::uplink::Brief, stream: &Stream, briefs: &Heard) {
    let version = message.version;
    let (brief, refusals) = proto::brief::from_wire(message);
    if let Some(first) = refusals.first() {
        warn!(version, count = refusals.len(), first, "parts of the gateway's brief refused");
    }
    debug!(version, pods = brief.pods.len(), "brief taken");
    briefs.update(|briefs| briefs.hear(stream, brief));
}

/// Why a stream was not accepted, and what would be right where no gateway answers.
pub(super) fn why(status: &Status) -> String {
    let mut cause = status.source();
    while let Some(deeper) = cause.and_then(Error::source) {
        cause = Some(deeper);
    }
    match (status.code(), cause) {
        (Code::Unimplemented, _) => {
            "another service answers there; name the port of the gateway's --agent-listen".into()
        }
        (_, Some(cause)) => format!(
            "what answers there may speak no gRPC; name the port of the gateway's --agent-listen: {cause}"
        ),
        (_, None) => said(status),
    }
}

fn said(status: &Status) -> String {
    match chain(status) {
        text if text.is_empty() => format!("{:?}", status.code()),
        text => text,
    }
}

/// The error with its causes: transport errors keep what matters in the last of them.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
