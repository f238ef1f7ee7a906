//! One question to the kubelet, over a connection of its own.
//!
//! Guarantees: it ends within its deadline; what is no GPU is not kept; names and ids are bounded.
//! The socket is opened anew each time, so that a kubelet which was replaced is not missed.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use prost::{DecodeError, Message as _};
use proto::convert::MAX_NAME;
use proto::kubelet::pod_resources_lister_client::PodResourcesListerClient;
use proto::kubelet::{
    ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use shared::brief::Brief;
use shared::identity::{PodKey, PodUid};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::service_fn;

use super::Settings;
use crate::owner::declared::{Grant, Granted, Listing};

/// Bytes an answer may have. Large nodes pass gRPC's usual 4 MiB.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// Devices that may be given away on one node: 16 GPUs in 256 replicas each, twice.
const MAX_GRANTS: usize = 8_192;

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The socket is not there.
    Missing,
    /// Something else is where the socket should be.
    NoSocket,
    /// Nobody listens on the socket.
    Refused,
    /// The agent may not use the socket.
    Denied,
    /// There was no answer in time.
    Timeout,
    /// The kubelet has too many requests.
    Exhausted,
    /// The answer is larger than is read.
    TooLarge,
    /// Anything else.
    Other,
}

impl Fault {
    /// All of them, in the order of their counts.
    pub const ALL: [Self; 8] = [
        Self::Missing,
        Self::NoSocket,
        Self::Refused,
        Self::Denied,
        Self::Timeout,
        Self::Exhausted,
        Self::TooLarge,
        Self::Other,
    ];

    /// The word it is counted under.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::NoSocket => "no_socket",
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::Timeout => "timeout",
            Self::Exhausted => "exhausted",
            Self::TooLarge => "too_large",
            Self::Other => "other",
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    /// What is wrong, in one sentence.
    pub(super) said: Arc<str>,
}

/// What the kubelet says now; pods get the UIDs that they have in `brief`.
pub(super) async fn list(settings: &Settings, brief: Option<&Brief>) -> Result<Listing, Failure> {
    let Settings { socket, deadline, .. } = settings;
    let answer = match tokio::time::timeout(*deadline, answer(socket)).await {
        Ok(answer) => answer?,
        Err(_) => {
            let said = format!("the kubelet does not answer within {deadline:?}").into();
            return Err(Failure { fault: Fault::Timeout, said });
        }
    };
    let grants = grants(answer, settings, brief).map_err(|error| Failure {
        fault: Fault::Other,
        said: format!("the kubelet's list is broken: {error}").into(),
    })?;
    if grants.len() > MAX_GRANTS {
        let count = grants.len();
        let said = format!("the kubelet lists {count} devices; at most {MAX_GRANTS} are read");
        return Err(Failure { fault: Fault::TooLarge, said: said.into() });
    }
    Ok(Listing { grants })
}

async fn answer(socket: &Path) -> Result<ListPodResourcesResponse, Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|error| unconnected(socket, &error))?;
    let channel = over(stream).await.map_err(|error| Failure {
        fault: Fault::Other,
        said: format!("the kubelet's socket {} does not speak gRPC: {error}", socket.display())
            .into(),
    })?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_ANSWER);
    let answer =
        client.list(ListPodResourcesRequest {}).await.map_err(|status| refused(&status))?;
    Ok(answer.into_inner())
}

async fn over(stream: UnixStream) -> Result<Channel, tonic::transport::Error> {
    let mut stream = Some(TokioIo::new(stream));
    let connect = service_fn(move |_| {
        let stream = stream.take().ok_or(io::ErrorKind::NotConnected);
        async move { stream.map_err(io::Error::from) }
    });
    // The name is never resolved.
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await
}

fn unconnected(socket: &Path, error: &io::Error) -> Failure {
    if let Ok(there) = std::fs::metadata(socket)
        && !there.file_type().is_socket()
    {
        return no_socket(socket, there.is_dir());
    }
    let (fault, what) = match error.kind() {
        io::ErrorKind::NotFound => (Fault::Missing, "is missing".to_owned()),
        io::ErrorKind::ConnectionRefused => (Fault::Refused, "refuses connections".to_owned()),
        io::ErrorKind::PermissionDenied => (Fault::Denied, "may only be used by root".to_owned()),
        _ => (Fault::Other, format!("cannot be used: {error}")),
    };
    Failure { fault, said: format!("the kubelet's socket {} {what}", socket.display()).into() }
}

/// Something else is at the socket's path; the system only says that nobody listens there.
fn no_socket(path: &Path, is_folder: bool) -> Failure {
    let at = path.display();
    let said = match is_folder {
        true => {
            let within = path.join("kubelet.sock");
            format!(
                "the kubelet's socket {at} is a folder, not a socket; write {}",
                within.display()
            )
        }
        false => format!("the kubelet's socket {at} is no socket"),
    };
    Failure { fault: Fault::NoSocket, said: said.into() }
}

fn refused(status: &Status) -> Failure {
    let fault = match status.code() {
        Code::ResourceExhausted => Fault::Exhausted,
        Code::OutOfRange => Fault::TooLarge,
        _ => Fault::Other,
    };
    let message = match status.message() {
        "" => status.code().description(),
        message => cut(message),
    };
    Failure { fault, said: format!("the kubelet says: {message}").into() }
}

/// The answer without what is no GPU; each pod is let go before the next one is read.
fn grants(
    answer: ListPodResourcesResponse,
    settings: &Settings,
    brief: Option<&Brief>,
) -> Result<Vec<Grant>, DecodeError> {
    let briefed = brief.map_or(&[][..], |brief| &brief.pods);
    let uids: HashMap<&PodKey, &PodUid> = briefed.iter().map(|pod| (&pod.key, &pod.uid)).collect();
    let mut grants = Vec::new();
    for pod in answer.pod_resources {
        let pod = PodResources::decode(pod)?;
        let mut given = Vec::new();
        for container in &pod.containers {
            let name = name(&container.name);
            given.extend(of(container, settings).map(|what| (name.clone(), what)));
        }
        if given.is_empty() {
            continue;
        }
        let pod = PodKey::new(name(&pod.namespace), name(&pod.name));
        let uid = uids.get(&pod).map(|uid| (*uid).clone());
        for (container, what) in given {
            grants.push(Grant { pod: pod.clone(), container, what, uid: uid.clone() });
        }
    }
    // The kubelet's order means nothing and changes.
    grants.sort_unstable();
    Ok(grants)
}

/// The GPUs that the container was given.
fn of(container: &ContainerResources, settings: &Settings) -> impl Iterator<Item = Granted> {
    let resources = &settings.resources;
    let plugged = container.devices.iter().filter(|devices| resources.has(&devices.resource_name));
    let plugged = plugged.flat_map(|devices| {
        let resource = name(&devices.resource_name);
        let ids = devices.device_ids.iter();
        ids.map(move |id| Granted::Id { resource: resource.clone(), id: name(id) })
    });
    let claims = container.dynamic_resources.iter().flat_map(|claim| &claim.claim_resources);
    let claims = claims.filter(|claim| resources.has_driver(&claim.driver_name));
    let claimed = claims.map(|claim| Granted::Claimed {
        driver: name(&claim.driver_name),
        pool: name(&claim.pool_name),
        device: name(&claim.device_name),
    });
    plugged.chain(claimed)
}

/// A text cut to what a name may have. No id that is understood is that long.
fn name(text: &str) -> Arc<str> {
    cut(text).into()
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME)]
}
