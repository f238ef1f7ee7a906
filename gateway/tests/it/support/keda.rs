//! A KEDA that asks: one connection, one trigger, or over and over.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{
    GetMetricSpecResponse, GetMetricsRequest, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::{endpoint, eventually, soon};

/// A connection to the port KEDA calls.
#[derive(Clone)]
pub(crate) struct Keda {
    pub(crate) client: ExternalScalerClient<Channel>,
    pub(crate) channel: Channel,
}

impl Keda {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let channel = soon("KEDA connects", endpoint(address).connect()).await;
        let channel = channel.expect("KEDA can connect");
        Self { client: ExternalScalerClient::new(channel.clone()), channel }
    }

    /// One trigger of `object` (`namespace/name`), with `scalerAddress` added as KEDA does.
    pub(crate) fn trigger(&self, object: &str, metadata: &[(&str, &str)]) -> Trigger {
        let (namespace, name) = object.split_once('/').expect("namespace/name");
        let scaler = ("scalerAddress", "gpu-gateway.gpu:6000");
        Trigger {
            client: self.client.clone(),
            reference: ScaledObjectRef {
                name: name.into(),
                namespace: namespace.into(),
                scaler_metadata: metadata
                    .iter()
                    .chain([&scaler])
                    .map(|&(key, value)| (key.into(), value.into()))
                    .collect(),
            },
        }
    }
}

/// One trigger of one ScaledObject, asked about as KEDA asks.
#[derive(Clone)]
pub(crate) struct Trigger {
    pub(crate) client: ExternalScalerClient<Channel>,
    pub(crate) reference: ScaledObjectRef,
}

impl Trigger {
    /// GetMetricSpec, with everything that must hold of every answer checked.
    pub(crate) async fn spec(&self) -> Result<MetricSpec, Status> {
        let call = async { self.client.clone().get_metric_spec(self.reference.clone()).await };
        let answer = soon("GetMetricSpec", call).await?.into_inner();
        Ok(only_spec(answer))
    }

    /// GetMetrics for `name`, with everything that must hold of every answer checked.
    pub(crate) async fn metric(&self, name: &str) -> Result<MetricValue, Status> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(self.reference.clone()),
            metric_name: name.into(),
        };
        let call = async { self.client.clone().get_metrics(request).await };
        let mut values = soon("GetMetrics", call).await?.into_inner().metric_values;
        assert_eq!(values.len(), 1, "exactly one value: {values:?}");
        let value = values.remove(0);
        let float = value.metric_value_float;
        assert_eq!(value.metric_name, name, "for the name that was asked");
        assert!(float.is_finite() && float >= 0.0, "{value:?}");
        #[expect(clippy::cast_precision_loss, reason = "values in tests are small")]
        let int = value.metric_value as f64;
        assert_eq!(int, float.ceil(), "int = ceil(float): {value:?}");
        Ok(value)
    }

    /// The value for the HPA: GetMetricSpec, then GetMetrics.
    pub(crate) async fn value(&self) -> Result<f64, Status> {
        let spec = self.spec().await?;
        let value = self.metric(&spec.metric_name).await?;
        Ok(value.metric_value_float)
    }

    pub(crate) async fn is_active(&self) -> Result<bool, Status> {
        let call = async { self.client.clone().is_active(self.reference.clone()).await };
        Ok(soon("IsActive", call).await?.into_inner().result)
    }

    pub(crate) async fn stream(&self) -> Result<Streaming<IsActiveResponse>, Status> {
        let call = async { self.client.clone().stream_is_active(self.reference.clone()).await };
        Ok(soon("StreamIsActive", call).await?.into_inner())
    }

    pub(crate) async fn spec_stream(&self) -> Result<Streaming<GetMetricSpecResponse>, Status> {
        let call = async { self.client.clone().stream_metric_spec(self.reference.clone()).await };
        Ok(soon("StreamMetricSpec", call).await?.into_inner())
    }

    /// Waits until the value is `expected`.
    pub(crate) async fn becomes(&self, expected: f64) {
        eventually(&format!("the value is {expected}"), async || match self.value().await {
            Ok(value) if value == expected => Ok(()),
            other => Err(other),
        })
        .await;
    }

    /// Waits until GetMetrics fails with `code`, and returns the message.
    pub(crate) async fn fails(&self, code: Code) -> String {
        eventually(&format!("the value is {code:?}"), async || match self.value().await {
            Err(status) if status.code() == code => Ok(status.message().to_owned()),
            other => Err(other),
        })
        .await
    }

    /// Checks that GetMetrics, IsActive and StreamIsActive all refuse with INVALID_ARGUMENT and
    /// all of `words`.
    pub(crate) async fn is_refused(&self, words: &[&str]) {
        let spec = self.spec().await;
        let name = spec.map_or_else(|_| "gpu_utilization".into(), |spec| spec.metric_name);
        refused(self.metric(&name).await, Code::InvalidArgument, words);
        refused(self.is_active().await, Code::InvalidArgument, words);
        self.stream_is_refused(words).await;
    }

    async fn stream_is_refused(&self, words: &[&str]) {
        let end = match self.stream().await {
            Err(status) => Err(status),
            Ok(mut stream) => soon("the stream ends", stream.message()).await,
        };
        refused(end, Code::InvalidArgument, words);
    }
}

/// The one spec of an answer.
pub(crate) fn only_spec(mut answer: GetMetricSpecResponse) -> MetricSpec {
    assert_eq!(answer.metric_specs.len(), 1, "exactly one spec: {answer:?}");
    let spec = answer.metric_specs.remove(0);
    let name = &spec.metric_name;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    assert!(!name.is_empty() && name.len() <= 63, "{spec:?}");
    assert!(name.chars().all(fits), "{spec:?}");
    let float = spec.target_size_float;
    assert!(float.is_finite() && float >= 0.001, "{spec:?}");
    #[expect(clippy::cast_precision_loss, reason = "targets in tests are small")]
    let int = spec.target_size as f64;
    assert_eq!(int, float.round().max(1.0), "{spec:?}");
    spec
}

/// Checks that `result` is an error of that code whose message has all of `words`.
pub(crate) fn refused<T: Debug>(result: Result<T, Status>, code: Code, words: &[&str]) {
    let status = result.expect_err("it is refused");
    assert_eq!(status.code(), code, "{status:?}");
    for word in words {
        assert!(status.message().contains(word), "{word:?} in {status:?}");
    }
}

/// Asks about one trigger over and over, to find the one wrong answer in between.
pub(crate) struct Steady {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Steady {
    /// From now on the value is `expected` at every call.
    pub(crate) fn watch(trigger: Trigger, expected: f64) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut asked = 0;
            while !stopped.is_cancelled() || asked < 5 {
                match trigger.value().await {
                    Ok(value) => assert_eq!(value, expected, "after {asked} right answers"),
                    Err(status) => panic!("after {asked} right answers: {status:?}"),
                }
                asked += 1;
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self { stop, task }
    }

    /// The value is `expected` at every call for that long.
    pub(crate) async fn watch_for(trigger: Trigger, expected: f64, time: Duration) {
        let steady = Self::watch(trigger, expected);
        sleep(time).await;
        steady.held().await;
    }

    /// It was so all the time.
    pub(crate) async fn held(self) {
        self.stop.cancel();
        self.task.await.expect("the value did not change");
    }
}
