//! KEDA's side of one ScaledObject, asked all the time, and everything it was told.

use std::error::Error as _;
use std::net::SocketAddr;
use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, IsActiveResponse, ScaledObjectRef};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use crate::support::{PATIENCE, eventually};

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// KEDA waits for ever; a test does not.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What is asked, over a connection that is made when it is needed.
#[derive(Clone)]
pub(crate) struct Client {
    client: ExternalScalerClient<Channel>,
    reference: ScaledObjectRef,
}

impl Client {
    pub(crate) fn new(gateway: SocketAddr, reference: ScaledObjectRef) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{gateway}")).unwrap();
        let channel = endpoint.timeout(ANSWER_WITHIN).connect_lazy();
        Self { client: ExternalScalerClient::new(channel), reference }
    }

    /// The value for the HPA: GetMetricSpec, then GetMetrics.
    pub(crate) async fn value(&self) -> Result<f64, Status> {
        let mut client = self.client.clone();
        let specs = client.get_metric_spec(self.reference.clone()).await?.into_inner();
        let request = GetMetricsRequest {
            scaled_object_ref: Some(self.reference.clone()),
            metric_name: specs.metric_specs[0].metric_name.clone(),
        };
        let values = client.get_metrics(request).await?.into_inner().metric_values;
        assert_eq!(values.len(), 1, "the HPA adds up whatever it gets");
        Ok(values[0].metric_value_float)
    }

    pub(crate) async fn is_active(&self) -> Result<bool, Status> {
        let call = self.client.clone().is_active(self.reference.clone()).await;
        Ok(call?.into_inner().result)
    }

    /// Opens `StreamIsActive`.
    pub(crate) async fn stream(&self) -> Result<Streaming<IsActiveResponse>, Status> {
        Ok(self.client.clone().stream_is_active(self.reference.clone()).await?.into_inner())
    }

    /// Keeps `StreamIsActive` open; returns if it said `false`.
    async fn has_a_stream_said_false(&self) {
        loop {
            if let Ok(mut stream) = self.stream().await {
                while let Ok(Some(message)) = stream.message().await {
                    if !message.result {
                        return;
                    }
                }
            }
            sleep(ASK_EVERY).await;
        }
    }
}

/// Errors that may come while something is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Excused {
    /// None: nothing is wrong here.
    No,
    /// It is not known now, and that is what is said.
    Unavailable,
    /// The gateway may be away too: a connection it has closed is an error of the client's own,
    /// which KEDA's client also calls UNAVAILABLE and this one does not.
    Away,
    /// The line is broken, and any error comes from there.
    Any,
}

impl Excused {
    fn is(self, status: &Status) -> bool {
        let is_unavailable = status.code() == Code::Unavailable;
        match self {
            Self::No => false,
            Self::Unavailable => is_unavailable,
            Self::Away => {
                let cause = status.source();
                is_unavailable || cause.is_some_and(|cause| cause.is::<tonic::transport::Error>())
            }
            Self::Any => true,
        }
    }
}

/// A ScaledObject whose every answer is looked at.
pub(crate) struct Watched {
    name: String,
    newest: watch::Receiver<Option<Result<f64, Code>>>,
    stop: CancellationToken,
    task: JoinHandle<Vec<String>>,
}

impl Watched {
    /// Asks until it is stopped: every value must be one of `values`, the workload always active,
    /// and every error `excused`.
    pub(crate) fn start(name: &str, client: Client, values: &[f64], excused: Excused) -> Self {
        let (newest_in, newest) = watch::channel(None);
        let stop = CancellationToken::new();
        let (values, stopped) = (values.to_vec(), stop.clone());
        let task = tokio::spawn(async move {
            let streams = client.clone();
            let listening = tokio::spawn(async move { streams.has_a_stream_said_false().await });
            let mut wrong = Vec::new();
            while !stopped.is_cancelled() {
                let value = client.value().await;
                match &value {
                    Ok(value) if values.contains(value) => {}
                    Ok(value) => wrong.push(format!("value {value}")),
                    Err(status) if excused.is(status) => {}
                    Err(status) => wrong.push(format!("GetMetrics {status:?}")),
                }
                newest_in.send_replace(Some(value.map_err(|status| status.code())));
                match &client.is_active().await {
                    Ok(true) => {}
                    Ok(false) => wrong.push("inactive".into()),
                    Err(status) if excused.is(status) => {}
                    Err(status) => wrong.push(format!("IsActive {status:?}")),
                }
                stopped.run_until_cancelled(sleep(ASK_EVERY)).await;
            }
            if listening.is_finished() {
                wrong.push("a stream said false".into());
            }
            listening.abort();
            wrong
        });
        Self { name: name.into(), newest, stop, task }
    }

    /// Waits for an answer that was asked for after now and has a value.
    pub(crate) async fn is_known(&mut self) {
        self.next("known", |newest| newest.is_ok()).await;
    }

    /// Waits until the value is not known, or nobody answers.
    pub(crate) async fn is_missing(&mut self) {
        self.next("missing", |newest| newest.is_err()).await;
    }

    async fn next(&mut self, what: &str, wanted: impl Fn(Result<f64, Code>) -> bool) {
        for _ in 0..2 {
            // The answer of now may be to a question of before.
            self.newest.mark_unchanged();
            timeout(PATIENCE, self.newest.changed()).await.unwrap().unwrap();
        }
        let name = &self.name;
        let newest = &self.newest;
        eventually(&format!("{name} is {what}"), async || match *newest.borrow() {
            Some(newest) if wanted(newest) => Ok(()),
            newest => Err(newest),
        })
        .await;
    }

    /// Whether the last answer had a value.
    pub(crate) fn newest(&self) -> Option<Result<f64, Code>> {
        *self.newest.borrow()
    }

    /// Stops asking.
    ///
    /// # Panics
    /// When anything was wrong.
    pub(crate) async fn was_never_wrong(self) {
        self.stop.cancel();
        let wrong = self.task.await.unwrap();
        let few = &wrong[..wrong.len().min(5)];
        assert!(wrong.is_empty(), "{}: {} times wrong: {few:#?}", self.name, wrong.len());
    }
}
