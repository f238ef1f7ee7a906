//! The uplink as a service, with buffers as large as its messages.
//!
//! Guarantees: what the generated service does. That one gives every stream two buffers of 8 KiB
//! and keeps them as long as it lasts, which with thousands of agents is most of their memory.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use proto::uplink::uplink_server::{SERVICE_NAME, Uplink};
use proto::uplink::{AgentMessage, GatewayMessage};
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec};
use tonic::codegen::http::{Request, Response};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Status, Streaming};
use tonic_prost::{ProstDecoder, ProstEncoder};
use tower::Service;

/// Bytes of a sample of a dozen devices; larger messages make their buffer grow.
const OF_AGENT: usize = 2 << 10;
/// Bytes of a brief of a few pods.
const OF_GATEWAY: usize = 512;
/// Bytes that are put together before they are sent.
const SENT_AT_ONCE: usize = 32 << 10;

/// The agents' service.
pub(super) struct UplinkService<T> {
    uplink: Arc<T>,
    max_message: usize,
}

impl<T> UplinkService<T> {
    /// `uplink`, of whose messages each has at most `max_message` bytes.
    pub(super) fn new(uplink: T, max_message: usize) -> Self {
        Self { uplink: uplink.into(), max_message }
    }
}

impl<T> Clone for UplinkService<T> {
    fn clone(&self) -> Self {
        Self { uplink: self.uplink.clone(), max_message: self.max_message }
    }
}

impl<T> NamedService for UplinkService<T> {
    const NAME: &'static str = SERVICE_NAME;
}

impl<T: Uplink> Service<Request<Body>> for UplinkService<T> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().strip_prefix('/').and_then(|path| path.split_once('/'));
        if method != Some((SERVICE_NAME, "Push")) {
            let status = Status::unimplemented("the uplink has no such method");
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let Self { uplink, max_message } = self.clone();
        Box::pin(async move {
            let grpc = Grpc::new(Lean);
            let mut grpc = grpc.max_decoding_message_size(max_message);
            Ok(grpc.streaming(Push(uplink), request).await)
        })
    }
}

struct Push<T>(Arc<T>);

impl<T: Uplink> StreamingService<AgentMessage> for Push<T> {
    type Response = GatewayMessage;
    type ResponseStream = T::PushStream;
    type Future = BoxFuture<'static, Result<tonic::Response<T::PushStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<AgentMessage>>) -> Self::Future {
        let uplink = self.0.clone();
        Box::pin(async move { uplink.push(request).await })
    }
}

/// Messages as protobuf, with small buffers.
struct Lean;

impl Codec for Lean {
    type Encode = GatewayMessage;
    type Decode = AgentMessage;
    type Encoder = ProstEncoder<GatewayMessage>;
    type Decoder = ProstDecoder<AgentMessage>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(OF_GATEWAY, SENT_AT_ONCE))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(BufferSettings::new(OF_AGENT, SENT_AT_ONCE))
    }
}
