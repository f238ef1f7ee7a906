//! The agent's own HTTP port: read-only, for one node.
//!
//! * `GET /healthz` – 200 while frames are taken, with a line for each device that is not well
//! * `GET /metrics` – Prometheus text 0.0.4
//! * `GET /api/v1/devices` – one line of the replay format
//! * `GET /` – this list
//!
//! Guarantees: nothing here waits for hardware; every page is of the newest frame.

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

use super::view::{View, plain};
use super::{json, metrics, stale_after};
use crate::collector::Newest;

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

    /// The newest frame's page, of `kind`.
    fn page(&self, kind: &'static str, write: impl FnOnce(&View<'_>) -> String) -> Response {
        let Some(taken) = self.newest.borrow().clone() else { return unread() };
        let view = View::of(&taken, self.clock.now(), self.stale_after);
        ([(header::CONTENT_TYPE, kind)], write(&view)).into_response()
    }

    async fn health(State(pages): State<Self>) -> Response {
        let Some(taken) = pages.newest.borrow().clone() else { return unread() };
        let now = pages.clock.now();
        let since = now.since(taken.at);
        if since > pages.stale_after {
            let said = format!("no frame was taken for {} s\n", since.as_secs());
            return (StatusCode::SERVICE_UNAVAILABLE, said).into_response();
        }
        troubles(&View::of(&taken, now, pages.stale_after)).into_response()
    }

    async fn metrics(State(pages): State<Self>) -> Response {
        pages.page("text/plain; version=0.0.4; charset=utf-8", metrics::render)
    }

    async fn devices(State(pages): State<Self>) -> Response {
        pages.page("application/json", |view| json::line(view, 0) + "\n")
    }

    async fn index() -> &'static str {
        "gpu-agent\n\n/healthz\n/metrics\n/api/v1/devices\n"
    }
}

fn unread() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "nothing was read yet\n").into_response()
}

/// `ok`, and a line for whatever is not: a restart would help none of it.
fn troubles(view: &View<'_>) -> String {
    let nothing = view.reason.map(str::to_owned);
    let devices = view.devices.iter().filter_map(|view| {
        let age = view.age.unwrap_or_default().as_secs();
        let old = if age > 0 { format!(" (read {age} s ago)") } else { String::new() };
        Some(format!("{}: {}{old}", view.device.uuid, view.reason()?))
    });
    let lines = std::iter::once("ok".to_owned()).chain(nothing).chain(devices);
    lines.map(|line| plain(&line) + "\n").collect()
}
