//! The read-only HTTP port.
//!
//! * `GET /healthz` – 200 while the process lives
//! * `GET /readyz` – 200 once this replica answers for everything; 503 before, at shutdown, and
//!   while a part of the gateway is not well, which it names
//! * `GET /metrics` – Prometheus text 0.0.4
//! * `GET /api/v1/nodes`, `/api/v1/pods`, `/api/v1/workloads`
//! * `GET /api/v1/scaledobjects/{namespace}/{name}/explain`
//! * `GET /api/v1/ledger`
//! * `GET /` – this list

mod ledger;
/// The JSON of nodes, pods and workloads.
pub mod listing;
/// What is scraped.
pub mod metrics;
/// The bearer token that may be asked for.
pub mod token;

use std::sync::Arc;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;

use crate::answer::{Answers, Refusal};
use crate::explain::explain;
use crate::reload::Reloaded;
use crate::vital::Vitals;
use metrics::Metrics;
use token::Token;

/// Requests answered at once; more are told to come again.
const MAX_AT_ONCE: usize = 64;

/// What the routes read.
#[derive(Clone)]
pub struct Pages {
    answers: Arc<Answers>,
    metrics: Arc<Metrics>,
    token: Option<Arc<Reloaded<Token>>>,
    vitals: Vitals,
    shutdown: CancellationToken,
}

impl Pages {
    /// Pages about `answers`.
    pub fn new(
        answers: Arc<Answers>,
        metrics: Arc<Metrics>,
        vitals: Vitals,
        shutdown: CancellationToken,
    ) -> Self {
        Self { answers, metrics, vitals, token: None, shutdown }
    }

    /// The same, with a token that `/api` and `/` want; probes and metrics stay open.
    #[must_use]
    pub fn with_token(self, token: Option<Arc<Reloaded<Token>>>) -> Self {
        Self { token, ..self }
    }

    /// The routes.
    pub fn router(self) -> Router {
        let overload = HandleErrorLayer::new(|_| async { StatusCode::SERVICE_UNAVAILABLE });
        let limit =
            ServiceBuilder::new().layer(overload).load_shed().concurrency_limit(MAX_AT_ONCE);
        let check = middleware::from_fn_with_state(self.token.clone(), token::check);
        Router::new()
            .route("/api/v1/nodes", get(Self::nodes))
            .route("/api/v1/pods", get(Self::pods))
            .route("/api/v1/workloads", get(Self::workloads))
            .route("/api/v1/scaledobjects/{namespace}/{name}/explain", get(Self::explain))
            .route("/api/v1/ledger", get(Self::ledger))
            .route("/", get(Self::index))
            .route_layer(check)
            .route("/metrics", get(Self::metrics))
            .layer(limit)
            // Probes are answered however busy it is.
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(Self::ready))
            .with_state(self)
    }

    async fn ready(State(pages): State<Self>) -> Response {
        if pages.shutdown.is_cancelled() {
            return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
        }
        let ailing = pages.vitals.ailing();
        if !ailing.is_empty() {
            return (StatusCode::SERVICE_UNAVAILABLE, ailing).into_response();
        }
        if pages.answers.is_warm() {
            return "ok\n".into_response();
        }
        let directory = pages.answers.directory();
        let waiting = match (directory.snapshot(), directory.waits_for()) {
            (None, what) if what.is_empty() => "waiting for the directory\n".into(),
            (None, what) => format!("waiting for the directory: {what}\n"),
            (Some(_), _) => "waiting for the agents of ready pods\n".into(),
        };
        (StatusCode::SERVICE_UNAVAILABLE, waiting).into_response()
    }

    async fn metrics(State(pages): State<Self>) -> Response {
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
        (kind, pages.metrics.text(&pages.answers)).into_response()
    }

    async fn nodes(State(pages): State<Self>) -> Response {
        Json(listing::nodes(&pages.answers)).into_response()
    }

    async fn pods(State(pages): State<Self>) -> Response {
        Json(listing::pods(&pages.answers)).into_response()
    }

    async fn workloads(State(pages): State<Self>) -> Response {
        Json(listing::workloads(&pages.answers)).into_response()
    }

    async fn explain(
        State(pages): State<Self>,
        Path((namespace, name)): Path<(String, String)>,
    ) -> Response {
        match explain(&pages.answers, &namespace, &name) {
            Ok(explanation) => Json(explanation).into_response(),
            Err(refusal) => {
                let status = match refusal {
                    Refusal::NotFound(_) => StatusCode::NOT_FOUND,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                (status, Json(json!({ "error": refusal.to_string() }))).into_response()
            }
        }
    }

    async fn index() -> Response {
        let page = concat!(
            "keda-gpu-gateway\n\n",
            "/readyz\n/healthz\n/metrics\n/api/v1/nodes\n/api/v1/pods\n/api/v1/workloads\n",
            "/api/v1/scaledobjects/NAMESPACE/NAME/explain\n/api/v1/ledger\n"
        );
        page.into_response()
    }
}
