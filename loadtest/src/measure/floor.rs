//! Bare tonic services with the product's messages and nothing behind them: the least that an
//! answer, and a message of an agent, can cost.

use std::net::{Ipv4Addr, SocketAddr};

use proto::keda::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use proto::keda::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use proto::uplink::uplink_server::{Uplink, UplinkServer};
use proto::uplink::{AgentMessage, GatewayMessage, Welcome, gateway_message};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// What it always answers.
pub const VALUE: f64 = 50.0;
const TARGET: f64 = 70.0;

/// Both services, each on its port.
#[derive(Debug)]
pub struct Floor {
    scaler: TcpListener,
    uplink: TcpListener,
    /// Where KEDA calls.
    pub keda: SocketAddr,
    /// Where agents push.
    pub agents: SocketAddr,
}

impl Floor {
    /// On free ports of loopback.
    ///
    /// # Errors
    /// When there are none.
    pub async fn bind() -> std::io::Result<Self> {
        let scaler = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let uplink = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (keda, agents) = (scaler.local_addr()?, uplink.local_addr()?);
        Ok(Self { scaler, uplink, keda, agents })
    }

    /// Serves until `stop`.
    ///
    /// # Errors
    /// When a port cannot be served.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let incoming = |listener| TcpIncoming::from(listener).with_nodelay(Some(true));
        let scaler = Server::builder()
            .add_service(ExternalScalerServer::new(Bare))
            .serve_with_incoming(incoming(self.scaler));
        let uplink = Server::builder()
            .add_service(UplinkServer::new(Bare))
            .serve_with_incoming(incoming(self.uplink));
        tokio::select! {
            ended = scaler => ended?,
            ended = uplink => ended?,
            () = stop.cancelled() => {}
        }
        Ok(())
    }
}

struct Bare;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ExternalScaler for Bare {
    async fn get_metrics(&self, request: Request<GetMetricsRequest>) -> Answer<GetMetricsResponse> {
        let metric_name = request.into_inner().metric_name;
        let value = MetricValue { metric_name, metric_value: 50, metric_value_float: VALUE };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }

    async fn is_active(&self, _: Request<ScaledObjectRef>) -> Answer<IsActiveResponse> {
        Ok(Response::new(IsActiveResponse { result: true }))
    }

    async fn get_metric_spec(&self, _: Request<ScaledObjectRef>) -> Answer<GetMetricSpecResponse> {
        let spec = MetricSpec {
            metric_name: "gpu_utilization".into(),
            target_size: 70,
            target_size_float: TARGET,
        };
        Ok(Response::new(GetMetricSpecResponse { metric_specs: vec![spec] }))
    }

    type StreamIsActiveStream = ReceiverStream<Result<IsActiveResponse, Status>>;

    async fn stream_is_active(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Answer<Self::StreamIsActiveStream> {
        let (messages, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            messages.send(Ok(IsActiveResponse { result: true })).await.ok();
            messages.closed().await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    type StreamMetricSpecStream = ReceiverStream<Result<GetMetricSpecResponse, Status>>;

    async fn stream_metric_spec(
        &self,
        _: Request<ScaledObjectRef>,
    ) -> Answer<Self::StreamMetricSpecStream> {
        Err(Status::unimplemented("the floor has no such stream"))
    }
}

#[tonic::async_trait]
impl Uplink for Bare {
    type PushStream = ReceiverStream<Result<GatewayMessage, Status>>;

    async fn push(&self, request: Request<Streaming<AgentMessage>>) -> Answer<Self::PushStream> {
        let (messages, stream) = mpsc::channel(1);
        let mut said = request.into_inner();
        tokio::spawn(async move {
            let body = gateway_message::Body::Welcome(Welcome::default());
            messages.send(Ok(GatewayMessage { body: Some(body) })).await.ok();
            // Taken off the wire as messages, and let go.
            while let Ok(Some(message)) = said.message().await {
                drop(message);
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
