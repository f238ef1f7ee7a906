//! One stream to one address, from connecting to its end.
//!
//! Guarantees: a dead connection is noticed within `PING_EVERY` + `PONG_WITHIN`; connecting
//! gives up after a bounded time; after shutdown the stream has `GOODBYE` to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::uplink::gateway_message::Body;
use proto::uplink::uplink_client::UplinkClient;
use proto::uplink::{GatewayMessage, Welcome};
use shared::brief::Brief;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use super::Uplink;
use super::address::Gateway;
use super::outbound::Outbound;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time a gateway that accepted the connection has to accept the stream.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

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
pub(super) async fn once(uplink: &Uplink, gateway: &Gateway, address: SocketAddr) -> Ended {
    let opening = uplink.shutdown.run_until_cancelled(open(uplink, gateway, address));
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
        error = listen(&mut incoming, &uplink.briefs, |welcome| {
            // Later ones only say that the gateway holds many more sessions by now.
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
    let channel = connect(gateway, address).await.map_err(|error| chain(&error))?;
    let outbound = Outbound::new(uplink.hello(), uplink.newest.clone(), uplink.clock);
    let mut client = UplinkClient::new(channel);
    match timeout(ANSWER_WITHIN, client.push(outbound)).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(said(&status)),
        Err(_) => Err(format!("no answer within {ANSWER_WITHIN:?}")),
    }
}

/// A connection to this very address, under the gateway's name.
async fn connect(
    gateway: &Gateway,
    address: SocketAddr,
) -> Result<Channel, tonic::transport::Error> {
    let name = gateway.to_string().parse().expect("it was parsed from a URI");
    Endpoint::from_shared(format!("http://{address}"))?
        .origin(name)
        .connect_timeout(CONNECT_WITHIN)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .keep_alive_while_idle(true)
        .connect()
        .await
}

/// Hears the gateway out; returns why it fell silent.
async fn listen(
    incoming: &mut Streaming<GatewayMessage>,
    briefs: &watch::Sender<Option<Arc<Brief>>>,
    mut welcomed: impl FnMut(Welcome),
) -> String {
    loop {
        match incoming.message().await {
            Ok(Some(GatewayMessage { body: Some(Body::Welcome(welcome)) })) => welcomed(welcome),
            Ok(Some(GatewayMessage { body: Some(Body::Brief(brief)) })) => take(brief, briefs),
            // From a newer gateway: not for us.
            Ok(Some(GatewayMessage { body: None })) => {}
            Ok(None) => return "the gateway ended the stream".into(),
            Err(status) => return said(&status),
        }
    }
}

/// The newest brief stands, whichever gateway sent it: all of them see one cluster.
fn take(message: proto::uplink::Brief, briefs: &watch::Sender<Option<Arc<Brief>>>) {
    let version = message.version;
    let (brief, refusals) = proto::brief::from_wire(message);
    if let Some(first) = refusals.first() {
        warn!(version, count = refusals.len(), first, "parts of the gateway's brief refused");
    }
    briefs.send_if_modified(|known| {
        let is_new = known.as_deref() != Some(&brief);
        if is_new {
            debug!(version, pods = brief.pods.len(), "brief taken");
            *known = Some(Arc::new(brief));
        }
        is_new
    });
}

fn said(status: &Status) -> String {
    match chain(status) {
        text if text.is_empty() => format!("{:?}", status.code()),
        text => text,
    }
}

/// The error with its causes: transport errors keep what matters in the last of them.
fn chain(error: &dyn std::error::Error) -> String {
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
