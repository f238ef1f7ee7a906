//! The ledger since this process started.

use axum::extract::State;
use axum::response::{IntoResponse, Json, Response};

use super::Pages;

impl Pages {
    pub(super) async fn ledger(State(pages): State<Self>) -> Response {
        Json(pages.answers.books().report()).into_response()
    }
}
