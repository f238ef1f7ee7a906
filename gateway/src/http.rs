//! The read-only HTTP port.
//!
//! * `GET /healthz` – 200 while the process lives
//! * `GET /readyz` – 200 once this replica answers for everything; 503 before, at shutdown, and
//!   while a part of the gateway is not well, which it names
//! * `GET /metrics` – Prometheus text 0.0.4
//! * `GET /api/v1/nodes`, `/api/v1/pods`, `/api/v1/workloads`
//! * `GET /api/v1/scaledobjects`
//! * `GET /api/v1/scaledobjects/{namespace}/{name}/explain`
//! * `GET /api/v1/scaledobjects/{namespace}/{name}/timeline`
//! * `GET /api/v1/ledger`
//! * `GET /api/v1/events` – server-sent events
//! * `GET /api` – this list
//! * `GET /`, `/assets/…` – the dashboard

/// The dashboard's files.
mod dashboard;
/// What the dashboard shows, live.
pub mod events;
mod ledger;
/// The JSON of nodes, pods and workloads.
pub mod listing;
/// What is scraped.
pub mod metrics;
/// How many series a scrape shows.
pub mod series;
/// The JSON of a decision timeline.
mod timeline;
/// The bearer token that may be asked for.
pub mod token;

use std::sync::Arc;

use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;

use crate::answer::{Answers, Refusal};
use crate::contain::{self, Over};
use crate::explain::{Explanation, explain, sentences};
use crate::reload::Reloaded;
use crate::timeline::Timelines;
use crate::vital::Vitals;
use events::Events;
use metrics::Metrics;
use token::Token;

/// The name of this port in logs and metrics.
pub const PORT: &str = "http";
/// Requests answered at once; more are told to come again.
const MAX_AT_ONCE: usize = 64;

/// What the routes read.
#[derive(Clone)]
pub struct Pages {
    answers: Arc<Answers>,
    metrics: Arc<Metrics>,
    timelines: Arc<Timelines>,
    events: Arc<Events>,
    token: Option<Arc<Reloaded<Token>>>,
    vitals: Vitals,
    contained: contain::Counts,
    shutdown: CancellationToken,
}

/// The same pages, at most [`MAX_AT_ONCE`] of them answered at once; who is turned away is counted.
fn limited<S: Clone + Send + Sync + 'static>(
    pages: Router<S>,
    counts: contain::Counts,
) -> Router<S> {
    let overload = HandleErrorLayer::new(move |_| {
        counts.shed(PORT, Over::Calls);
        async { StatusCode::SERVICE_UNAVAILABLE }
    });
    // Global: a layer is put on each route by itself.
    let limit = GlobalConcurrencyLimitLayer::new(MAX_AT_ONCE);
    pages.layer(ServiceBuilder::new().layer(overload).load_shed().layer(limit))
}

/// An explanation with what it says in words.
#[derive(Serialize)]
struct Explained {
    sentences: Vec<String>,
    #[serde(flatten)]
    explanation: Explanation,
}

impl From<Explanation> for Explained {
    fn from(explanation: Explanation) -> Self {
        Self { sentences: sentences(&explanation), explanation }
    }
}

/// The answer to a path that is none.
async fn nothing_there() -> Response {
    let error = "there is nothing here; /api lists what there is";
    (StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response()
}

/// What the API says is kept by no cache, and is nothing but what it is said to be.
async fn keep_private(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

impl Pages {
    /// Pages about `answers`.
    pub fn new(
        answers: Arc<Answers>,
        metrics: Arc<Metrics>,
        vitals: Vitals,
        shutdown: CancellationToken,
    ) -> Self {
        let (timelines, events) = Default::default();
        let contained = contain::Counts::default();
        Self { answers, metrics, timelines, events, vitals, token: None, contained, shutdown }
    }

    /// The same, with requests turned away counted in `contained`.
    #[must_use]
    pub fn contained(self, contained: contain::Counts) -> Self {
        Self { contained, ..self }
    }

    /// The same, with these timelines and events.
    #[must_use]
    pub fn with_live(self, timelines: Arc<Timelines>, events: Arc<Events>) -> Self {
        Self { timelines, events, ..self }
    }

    /// The same, with a token that `/api` wants; probes, metrics and the dashboard's files, which
    /// hold nothing, stay open.
    #[must_use]
    pub fn with_token(self, token: Option<Arc<Reloaded<Token>>>) -> Self {
        Self { token, ..self }
    }

    /// The routes.
    pub fn router(self) -> Router {
        let check = middleware::from_fn_with_state(self.token.clone(), token::check);
        let pages = Router::new()
            .route("/api/v1/nodes", get(Self::nodes))
            .route("/api/v1/pods", get(Self::pods))
            .route("/api/v1/workloads", get(Self::workloads))
            .route("/api/v1/scaledobjects", get(Self::scaled_objects))
            .route("/api/v1/scaledobjects/{namespace}/{name}/explain", get(Self::explain))
            .route("/api/v1/scaledobjects/{namespace}/{name}/timeline", get(Self::timeline))
            .route("/api/v1/ledger", get(Self::ledger))
            .route("/api/v1/events", get(Self::events))
            .route("/api", get(dashboard::routes))
            .route_layer(check)
            .route_layer(middleware::map_response(keep_private))
            .route("/", get(dashboard::page))
            .route("/assets/{name}", get(dashboard::asset))
            .route("/metrics", get(Self::metrics))
            .fallback(nothing_there);
        limited(pages, self.contained.clone())
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
        let waiting = pages.waits_for_directory();
        let waiting = waiting.unwrap_or_else(|| "waiting for the agents of ready pods".into());
        (StatusCode::SERVICE_UNAVAILABLE, waiting + "\n").into_response()
    }

    /// What there is no directory yet for want of.
    fn waits_for_directory(&self) -> Option<String> {
        let directory = self.answers.directory();
        match (directory.snapshot(), directory.waits_for()) {
            (Some(_), _) => None,
            (None, what) if what.is_empty() => Some("waiting for the directory".into()),
            (None, what) => Some(format!("waiting for the directory: {what}")),
        }
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

    async fn scaled_objects(State(pages): State<Self>) -> Response {
        Json(listing::scaled_objects(&pages.answers)).into_response()
    }

    async fn explain(
        State(pages): State<Self>,
        Path((namespace, name)): Path<(String, String)>,
    ) -> Response {
        match explain(&pages.answers, &namespace, &name) {
            Ok(explanation) => Json(Explained::from(explanation)).into_response(),
            Err(refusal) => {
                let status = match refusal {
                    Refusal::NotFound(_) => StatusCode::NOT_FOUND,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                (status, Json(json!({ "error": refusal.to_string() }))).into_response()
            }
        }
    }

    async fn timeline(
        State(pages): State<Self>,
        Path((namespace, name)): Path<(String, String)>,
    ) -> Response {
        let clock = pages.answers.clock();
        match timeline::timeline(&pages.timelines, clock, &namespace, &name) {
            Some(timeline) => Json(timeline).into_response(),
            None => {
                let error = timeline::missing(&pages.timelines, &namespace, &name);
                (StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response()
            }
        }
    }

    async fn events(State(pages): State<Self>) -> Response {
        // Who came with a token that counts no longer comes again with one that does.
        let token = pages.token.map(|token| (token.get(), token));
        let may_stay =
            move || token.as_ref().is_none_or(|(known, token)| Arc::ptr_eq(known, &token.get()));
        pages.events.answer(pages.shutdown.clone(), may_stay)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use futures_util::FutureExt as _;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_request_too_many_is_told_to_come_again_and_counted() {
        let counts = contain::Counts::default();
        let slow = || get(std::future::pending::<()>);
        let slow = Router::new().route("/a", slow()).route("/b", slow());
        let pages: Router = limited(slow, counts.clone());
        let mut path = ["/a", "/b"].into_iter().cycle();
        let mut ask = || {
            let request = Request::get(path.next().unwrap()).body(Body::empty()).unwrap();
            pages.clone().oneshot(request)
        };
        let mut held: Vec<_> = (0..MAX_AT_ONCE).map(|_| ask()).collect();
        for request in &mut held {
            assert!(request.now_or_never().is_none());
        }
        let Ok(refused) = ask().await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(counts.sheds(PORT, Over::Calls), 1);
        drop(held);
        assert!(ask().now_or_never().is_none(), "taken on");
    }
}
