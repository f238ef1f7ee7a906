//! A real gateway and real agents in this process, whose pods' engines are pages on loopback
//! addresses.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use agent::config::RunConfig;
use gateway::config::ServeConfig;
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, IsActiveResponse, ScaledObjectRef};
use serde_json::Value;
use shared::identity::ScaledObjectKey;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::site::{Answer, Site};
use crate::support::PATIENCE;

/// Time between two samples, and between two scrapes of a page.
const INTERVAL: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(20);

/// Gateway and agents at work.
pub(crate) struct Scene {
    keda: Channel,
    http: SocketAddr,
    directory: PathBuf,
    running: JoinSet<anyhow::Result<()>>,
    stop: DropGuard,
    _folder: TempDir,
}

/// What KEDA asks of one trigger.
pub(crate) struct Trigger {
    client: ExternalScalerClient<Channel>,
    reference: ScaledObjectRef,
}

impl Scene {
    /// A gateway whose cluster is `directory`, and an agent on each of `nodes`.
    pub(crate) async fn start(nodes: &[&str], directory: &str) -> Self {
        Self::with_demand(nodes, directory, Vec::new()).await
    }

    /// The same where demand is read at `origins` too.
    pub(crate) async fn with_demand(nodes: &[&str], directory: &str, origins: Vec<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("directory.yaml");
        std::fs::write(&file, directory).unwrap();
        let mut config = ServeConfig::local(file.clone());
        config.demand_allow = origins;
        let app = gateway::app::App::build(config).await.unwrap();
        let keda = Endpoint::from_shared(format!("http://{}", app.keda_addr())).unwrap();
        let uplink = format!("http://{}", app.agent_addr());
        let (http, stop) = (app.http_addr(), CancellationToken::new());
        let mut running = JoinSet::new();
        running.spawn(app.run(stop.clone()));
        for (place, node) in nodes.iter().enumerate() {
            // Other devices than those of the other nodes.
            let source = format!("sim:gpus=1,seed={place}").parse().unwrap();
            let mut config = RunConfig::new(uplink.clone(), (*node).into(), source);
            (config.interval, config.engine_interval) = (INTERVAL, INTERVAL);
            running.spawn(agent::app::App::build(config).unwrap().run(stop.clone()));
        }
        let (keda, stop) = (keda.connect_lazy(), stop.drop_guard());
        Self { keda, http, directory: file, running, stop, _folder: folder }
    }

    /// The cluster is another one from now on.
    pub(crate) fn becomes(&self, directory: &str) {
        let next = self.directory.with_extension("next");
        std::fs::write(&next, directory).unwrap();
        std::fs::rename(next, &self.directory).unwrap();
    }

    /// A trigger of the ScaledObject `ml/NAME`.
    pub(crate) fn trigger(&self, name: &str, metadata: &[(&str, &str)]) -> Trigger {
        let metadata = metadata.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        let reference = ScaledObjectRef {
            namespace: "ml".into(),
            name: name.into(),
            scaler_metadata: metadata.collect(),
        };
        Trigger { client: ExternalScalerClient::new(self.keda.clone()), reference }
    }

    /// Waits until what the first trigger of `ml/NAME` is explained by is as it should be.
    pub(crate) async fn explained(&self, name: &str, is_so: impl Fn(&Value) -> bool) {
        let path = loadtest::explain::path(&ScaledObjectKey::new("ml", name));
        let mut last = Value::Null;
        let waiting = async {
            loop {
                last = loadtest::explain::get(self.http, &path).await.unwrap();
                if is_so(&last["triggers"][0]) {
                    return;
                }
                sleep(PAUSE).await;
            }
        };
        let came = timeout(PATIENCE, waiting).await;
        assert!(came.is_ok(), "{last:#}");
    }

    /// Ends agents and gateway.
    pub(crate) async fn end(mut self) {
        drop(self.stop);
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}

impl Trigger {
    pub(crate) async fn value(&self) -> Result<f64, Status> {
        let mut client = self.client.clone();
        let specs = client.get_metric_spec(self.reference.clone()).await?.into_inner().metric_specs;
        let request = GetMetricsRequest {
            scaled_object_ref: Some(self.reference.clone()),
            metric_name: specs[0].metric_name.clone(),
        };
        let values = client.get_metrics(request).await?.into_inner().metric_values;
        assert_eq!((specs.len(), values.len()), (1, 1), "the HPA adds up whatever it gets");
        Ok(values[0].metric_value_float)
    }

    pub(crate) async fn is_active(&self) -> Result<bool, Status> {
        let answer = self.client.clone().is_active(self.reference.clone()).await?;
        Ok(answer.into_inner().result)
    }

    pub(crate) async fn stream(&self) -> Streaming<IsActiveResponse> {
        let stream = self.client.clone().stream_is_active(self.reference.clone()).await;
        stream.unwrap().into_inner()
    }

    /// Waits until the value is exactly `expected`.
    pub(crate) async fn becomes(&self, expected: f64) {
        self.until(|seen| seen.as_ref().is_ok_and(|value| *value == expected)).await;
    }

    /// Waits until GetMetrics and IsActive both fail so, each for all of `reasons`.
    pub(crate) async fn fails(&self, code: Code, reasons: &[&str]) {
        let so = |status: &Status| {
            status.code() == code && reasons.iter().all(|why| status.message().contains(why))
        };
        self.until(|seen| seen.as_ref().is_err_and(so)).await;
        let active = self.is_active().await;
        assert!(active.as_ref().is_err_and(so), "GetMetrics fails, but IsActive: {active:?}");
    }

    /// Waits until IsActive says `expected`.
    pub(crate) async fn turns(&self, expected: bool) {
        let mut last = None;
        let waiting = async {
            loop {
                let seen = self.is_active().await;
                if seen.as_ref().is_ok_and(|active| *active == expected) {
                    return;
                }
                last = Some(seen);
                sleep(PAUSE).await;
            }
        };
        let came = timeout(PATIENCE, waiting).await;
        assert!(came.is_ok(), "never {expected}: {last:?}");
    }

    async fn until(&self, is_so: impl Fn(&Result<f64, Status>) -> bool) {
        let mut last = None;
        let waiting = async {
            loop {
                let seen = self.value().await;
                if is_so(&seen) {
                    return;
                }
                last = Some(seen);
                sleep(PAUSE).await;
            }
        };
        let came = timeout(PATIENCE, waiting).await;
        assert!(came.is_ok(), "not as expected: {last:?} of {:?}", self.reference);
    }
}

/// The n-th pod's address: every pod has its own, as in a cluster.
pub(crate) fn ip(place: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 7, place)
}

/// A page for each of `answers` on addresses of their own, all on the same port, as pods of one
/// Deployment have it.
pub(crate) async fn sites(answers: Vec<Answer>) -> (Vec<Site>, u16) {
    loop {
        let mut sites: Vec<Site> = Vec::new();
        for (place, answer) in answers.iter().enumerate() {
            let port = sites.first().map_or(0, |first| first.address.port());
            let place = u8::try_from(place + 1).unwrap();
            match Site::start_on(&format!("{}:{port}", ip(place)), answer.clone()).await {
                Ok(site) => sites.push(site),
                // Somebody else has this port there: another port, then.
                Err(_) => break,
            }
        }
        if sites.len() == answers.len() {
            let port = sites[0].address.port();
            return (sites, port);
        }
    }
}

/// Waits until `site` is not asked any more: for several intervals there is no request.
pub(crate) async fn is_left_alone(site: &Site) {
    let waiting = async {
        loop {
            let before = site.requests().len();
            sleep(INTERVAL * 5).await;
            if site.requests().len() == before {
                return;
            }
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "it is asked on and on");
}

/// Waits until `site` is asked `more` often.
pub(crate) async fn is_asked(site: &Site, more: usize) {
    let enough = site.requests().len() + more;
    let waiting = async {
        while site.requests().len() < enough {
            sleep(PAUSE).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "it is not asked");
}
