//! The ledger since this process started.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde_json::json;

use super::Pages;

impl Pages {
    pub(super) async fn ledger(State(pages): State<Self>) -> Response {
        // Without a directory nothing is counted.
        if let Some(waiting) = pages.waits_for_directory() {
            let error = Json(json!({ "error": waiting }));
            return (StatusCode::SERVICE_UNAVAILABLE, error).into_response();
        }
        Json(pages.answers.books().report()).into_response()
    }
}
