//! KEDA's calls to the gateway, over real gRPC: which, in which order, and how an answer is read.
//!
//! Guarantees: one fetch is GetMetricSpec, GetMetrics, IsActive in that order, each failing part
//! tried once more at once, as KEDA does. Meaning is left to `crate::keda` and `crate::hpa`.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use proto::keda::external_scaler_client::ExternalScalerClient;
use proto::keda::{GetMetricsRequest, MetricSpec, MetricValue, ScaledObjectRef};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// KEDA sets no deadline on a poll; a demo should end nevertheless.
const PATIENCE: Duration = Duration::from_secs(5);
/// Waits between streams: doubled from the first to the last, back to the first by a clean end.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// What one fetch brought.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// From GetMetricSpec.
    pub target: f64,
    /// From GetMetrics; `None` for an empty list, which KEDA takes for health.
    pub value: Option<f64>,
    /// From IsActive.
    pub active: bool,
}

/// A ScaledObject's trigger, called as KEDA calls it.
#[derive(Clone, Debug)]
pub struct Caller {
    client: ExternalScalerClient<Channel>,
    reference: ScaledObjectRef,
}

impl Caller {
    /// A caller of the scaler at `address`; it connects when it first calls.
    ///
    /// # Errors
    /// When `address` cannot be made a URL.
    pub fn new(address: SocketAddr, reference: ScaledObjectRef) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .context("the scaler's address")?
            .timeout(PATIENCE);
        let client = ExternalScalerClient::new(endpoint.connect_lazy());
        Ok(Self { client, reference })
    }

    /// What a poll, and an HPA sync, ask.
    ///
    /// # Errors
    /// The status of the call that failed twice.
    pub async fn fetch(&self) -> Result<Observation, Status> {
        let spec = match self.spec().await {
            Ok(spec) => spec,
            Err(_) => self.spec().await?,
        };
        let (value, active) = match self.value_and_activity(&spec).await {
            Ok(answers) => answers,
            Err(_) => self.value_and_activity(&spec).await?,
        };
        let target = float_or_int(spec.target_size_float, spec.target_size);
        Ok(Observation { target, value, active })
    }

    /// Keeps `StreamIsActive` open and passes on every `true`, until nobody listens.
    pub async fn listen(self, activations: mpsc::Sender<()>) {
        let mut pause = FIRST_PAUSE;
        while !activations.is_closed() {
            let ended = self.listen_once(&activations).await;
            if ended.is_ok() {
                pause = FIRST_PAUSE;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = activations.closed() => {}
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn listen_once(&self, activations: &mpsc::Sender<()>) -> Result<(), Status> {
        let call = self.client.clone().stream_is_active(self.reference.clone()).await;
        let mut stream = call?.into_inner();
        loop {
            let message = tokio::select! {
                message = stream.message() => message?,
                () = activations.closed() => return Ok(()),
            };
            match message {
                Some(message) if message.result => {
                    if activations.send(()).await.is_err() {
                        return Ok(());
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            }
        }
    }

    async fn spec(&self) -> Result<MetricSpec, Status> {
        let call = self.client.clone().get_metric_spec(self.reference.clone()).await;
        let specs = call?.into_inner().metric_specs;
        let none = || Status::unknown("got empty metric spec");
        specs.into_iter().next().ok_or_else(none)
    }

    async fn value_and_activity(&self, spec: &MetricSpec) -> Result<(Option<f64>, bool), Status> {
        let mut client = self.client.clone();
        let request = GetMetricsRequest {
            scaled_object_ref: Some(self.reference.clone()),
            metric_name: spec.metric_name.clone(),
        };
        let values = client.get_metrics(request).await?.into_inner().metric_values;
        let activity = client.is_active(self.reference.clone()).await?.into_inner();
        Ok((total(&values), activity.result))
    }
}

/// The HPA adds up whatever came back.
fn total(values: &[MetricValue]) -> Option<f64> {
    let number = |value: &MetricValue| float_or_int(value.metric_value_float, value.metric_value);
    (!values.is_empty()).then(|| values.iter().map(number).sum())
}

/// The float field wins when it is positive.
fn float_or_int(float: f64, int: i64) -> f64 {
    if float > 0.0 { float } else { int as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_float_wins_when_positive_and_several_values_are_added_up() {
        assert_eq!(float_or_int(1.5, 2), 1.5);
        assert_eq!(float_or_int(0.0, 2), 2.0);
        assert_eq!(float_or_int(f64::NAN, 0), 0.0);
        let value =
            |metric_value_float| MetricValue { metric_value_float, ..MetricValue::default() };
        assert_eq!(total(&[]), None);
        assert_eq!(total(&[value(0.0)]), Some(0.0));
        assert_eq!(total(&[value(1.5), value(2.0)]), Some(3.5));
    }
}
