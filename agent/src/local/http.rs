//! The agent's own HTTP port: read-only, for one node.
//!
//! * `GET /healthz` – 200 while frames are taken, with a line for each device that is not well
//! * `GET /metrics` – Prometheus text 0.0.4
//! * `GET /api/v1/devices` – one line of the replay format
//! * `GET /` – this list
//!
//! Guarantees: nothing here waits for hardware; every page is of the newest frame.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use shared::process::Clock;
use tokio::sync::watch;
use tower::ServiceBuilder;

use super::view::View;
use super::{json, metrics, stale_after};
use crate::collector::Newest;
use crate::frame::Taken;

/// Requests answered at once; more are told to come again.
const MAX_AT_ONCE: usize = 16;

/// What the routes read.
#[derive(Clone)]
pub struct Pages {
    newest: watch::Receiver<Newest>,
    clock: Clock,
    stale_after: Duration,
}

impl Pages {
    /// Pages about the frames of `newest`, which are taken every `interval`.
    pub fn new(newest: watch::Receiver<Newest>, clock: Clock, interval: Duration) -> Self {
        Self { newest, clock, stale_after: stale_after(interval) }
    }

    /// The routes.
    pub fn router(self) -> Router {
        let overload = HandleErrorLayer::new(|_| async { StatusCode::SERVICE_UNAVAILABLE });
        let limit =
            ServiceBuilder::new().layer(overload).load_shed().concurrency_limit(MAX_AT_ONCE);
        Router::new()
            .route("/metrics", get(Self::metrics))
            .route("/api/v1/devices", get(Self::devices))
            .route("/", get(Self::index))
            .layer(limit)
            // Probes are answered however busy it is.
            .route("/healthz", get(Self::health))
            .with_state(self)
    }

    fn newest(&self) -> Result<Arc<Taken>, Response> {
        let newest = self.newest.borrow().clone();
        newest.ok_or_else(|| {
            (StatusCode::SERVICE_UNAVAILABLE, "nothing was read yet\n").into_response()
        })
    }

    async fn health(State(pages): State<Self>) -> Response {
        let (taken, now) = match pages.newest() {
            Ok(taken) => (taken, pages.clock.now()),
            Err(nothing) => return nothing,
        };
        let since = now.since(taken.at);
        if since > pages.stale_after {
            let said = format!("no frame was taken for {} s\n", since.as_secs());
            return (StatusCode::SERVICE_UNAVAILABLE, said).into_response();
        }
        let view = View::of(&taken, now, pages.stale_after);
        let mut said = String::from("ok\n");
        if let Some(reason) = view.reason {
            writeln!(said, "{reason}").expect("writing to a String does not fail");
        }
        for device in &view.devices {
            if let Some(reason) = device.reason() {
                writeln!(said, "{}: {reason}", device.device.uuid)
                    .expect("writing to a String does not fail");
            }
        }
        said.into_response()
    }

    async fn metrics(State(pages): State<Self>) -> Response {
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
        match pages.newest() {
            Ok(taken) => {
                let view = View::of(&taken, pages.clock.now(), pages.stale_after);
                (kind, metrics::render(&view)).into_response()
            }
            Err(nothing) => nothing,
        }
    }

    async fn devices(State(pages): State<Self>) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        match pages.newest() {
            Ok(taken) => {
                let view = View::of(&taken, pages.clock.now(), pages.stale_after);
                (kind, json::line(&view, 0) + "\n").into_response()
            }
            Err(nothing) => nothing,
        }
    }

    async fn index() -> &'static str {
        "gpu-agent\n\n/healthz\n/metrics\n/api/v1/devices\n"
    }
}
