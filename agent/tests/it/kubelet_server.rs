//! A kubelet of the tests: a tonic server of the real interface on a Unix socket.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use agent::owner::declared::Resources;
use agent::owner::kubelet::Settings;
use prost::Message as _;
use proto::kubelet::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use proto::kubelet::{
    ClaimResource, ContainerDevices, ContainerResources, DynamicResource, ListPodResourcesRequest,
    ListPodResourcesResponse, PodResources,
};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

/// For what no test is to wait for.
const NEVER: Duration = Duration::from_secs(86_400);

/// What the kubelet of the tests does when it is asked.
#[derive(Clone)]
pub(crate) enum Mood {
    Says(Vec<PodResources>),
    Hangs,
    Refuses(Status),
    /// Speaks, but not of pods.
    Babbles,
}

/// A kubelet of the tests; its socket stays when it is dropped, as a kubelet's does.
pub(crate) struct TestKubelet {
    pub(crate) mood: watch::Sender<Mood>,
    asked: Arc<AtomicU64>,
    server: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl TestKubelet {
    pub(crate) fn start(socket: &Path, pods: Vec<PodResources>) -> Self {
        let (mood, moods) = watch::channel(Mood::Says(pods));
        let asked = Arc::new(AtomicU64::new(0));
        let lister = PodResourcesListerServer::new(Lister { moods, asked: asked.clone() })
            .max_encoding_message_size(64 << 20);
        let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let server = tonic::transport::Server::builder().add_service(lister);
        Self { mood, asked, server: tokio::spawn(server.serve_with_incoming(listener)) }
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for TestKubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Lister {
    moods: watch::Receiver<Mood>,
    asked: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mood = self.moods.borrow().clone();
        match mood {
            Mood::Says(pods) => {
                let pods = pods.iter().map(|pod| pod.encode_to_vec().into());
                Ok(Response::new(ListPodResourcesResponse { pod_resources: pods.collect() }))
            }
            Mood::Babbles => {
                let pod_resources = vec![b"\xff\xff\xff".as_slice().into()];
                Ok(Response::new(ListPodResourcesResponse { pod_resources }))
            }
            Mood::Refuses(status) => Err(status),
            Mood::Hangs => std::future::pending().await,
        }
    }
}

/// The service by itself, of a kubelet that has no pods.
pub(crate) fn lister() -> PodResourcesListerServer<impl PodResourcesLister> {
    let (_, moods) = watch::channel(Mood::Says(Vec::new()));
    PodResourcesListerServer::new(Lister { moods, asked: Arc::default() })
}

/// A pod of one container that was given devices of a plugin.
pub(crate) fn pod(name: &str, resource: &str, ids: &[&str]) -> PodResources {
    let devices = ContainerDevices {
        resource_name: resource.into(),
        device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    };
    with(name, ContainerResources { devices: vec![devices], ..ContainerResources::default() })
}

pub(crate) fn with(name: &str, container: ContainerResources) -> PodResources {
    let container = ContainerResources { name: "main".into(), ..container };
    PodResources { name: name.into(), namespace: "ai".into(), containers: vec![container] }
}

pub(crate) fn gpu(name: &str, id: &str) -> PodResources {
    pod(name, "nvidia.com/gpu", &[id])
}

/// A pod that was given a device of NVIDIA's driver of dynamic resource allocation.
pub(crate) fn claiming(name: &str, device: &str) -> PodResources {
    let claim = ClaimResource {
        driver_name: "gpu.nvidia.com".into(),
        pool_name: "node1".into(),
        device_name: device.into(),
        share_id: Some("s".into()),
    };
    let claims = DynamicResource { claim_resources: vec![claim], ..DynamicResource::default() };
    with(
        name,
        ContainerResources { dynamic_resources: vec![claims], ..ContainerResources::default() },
    )
}

/// A folder for a socket, and settings that ask there again only for a reason.
pub(crate) fn place() -> (TempDir, Settings) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(folder.path().join("kubelet.sock"), Resources::default());
    settings.soonest = Duration::ZERO;
    settings.look = Duration::from_millis(10);
    for never in
        [&mut settings.every, &mut settings.quiet, &mut settings.retry, &mut settings.longest]
    {
        *never = NEVER;
    }
    (folder, settings)
}
