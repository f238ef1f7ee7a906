//! The dashboard: a page and its parts, embedded in the binary.
//!
//! Guarantees: nothing is fetched from anywhere else, and the browser is told to refuse it; the
//! files hold no data of the cluster, so they are served without the token that the API may want.

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use ring::digest::{SHA256, digest};

/// What the page may load and do: its own files and the gateway's API.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! assets {
    ($($name:literal: $kind:expr,)*) => {
        /// The parts, by name.
        const ASSETS: &[(&str, &str, &str)] =
            &[$(($name, $kind, include_str!(concat!("../../assets/", $name))),)*];
    };
}

assets! {
    "style.css": CSS,
    "charts.css": CSS,
    "icon.svg": SVG,
    "main.js": JS,
    "live.js": JS,
    "api.js": JS,
    "dom.js": JS,
    "format.js": JS,
    "heat.js": JS,
    "fleet.js": JS,
    "gpu.js": JS,
    "workloads.js": JS,
    "workload.js": JS,
    "axis.js": JS,
    "chart.js": JS,
    "limit.js": JS,
    "agents.js": JS,
    "energy.js": JS,
}

const PAGE: &str = include_str!("../../assets/index.html");

/// The list of routes, for people without a browser.
const ROUTES: &str = "keda-gpu-gateway\n\n\
    /readyz\n/healthz\n/metrics\n/api/v1/nodes\n/api/v1/pods\n/api/v1/workloads\n/api/v1/ledger\n/api/v1/events\n\
    /api/v1/scaledobjects\n\
    /api/v1/scaledobjects/NAMESPACE/NAME/explain\n\
    /api/v1/scaledobjects/NAMESPACE/NAME/timeline\n\n\
    The dashboard is at / for a browser.\n";

/// `GET /`: the page for a browser, the list of routes for anything else.
pub(super) async fn page(headers: HeaderMap) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let is_browser =
        accepts.filter_map(|value| value.to_str().ok()).any(|value| value.contains("text/html"));
    if is_browser { file(&headers, HTML, PAGE) } else { routes().await }
}

/// `GET /api`: the list of routes.
pub(super) async fn routes() -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::VARY, "accept")];
    (kind, ROUTES).into_response()
}

/// `GET /assets/{name}`.
pub(super) async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => file(&headers, kind, text),
        None => super::nothing_there().await,
    }
}

/// Whether a browser that has `known` has what has `tag`, which is strong and has no comma.
fn is_same(known: &str, tag: &str) -> bool {
    known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag
}

/// A file that may be kept as long as it is asked for whether it is still the same.
fn file(headers: &HeaderMap, kind: &'static str, text: &'static str) -> Response {
    let hash = digest(&SHA256, text.as_bytes());
    let tag: String = hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut known = known.filter_map(|value| value.to_str().ok()).flat_map(|it| it.split(','));
    let is_known = known.any(|known| is_same(known.trim(), &tag));
    let said = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::VARY, "accept"),
    ];
    let tag = [(header::ETAG, tag)];
    if is_known {
        return (StatusCode::NOT_MODIFIED, said, tag).into_response();
    }
    (said, tag, text).into_response()
}
