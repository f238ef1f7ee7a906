//! The bearer token that `/api` and `/` may ask for.
//!
//! Guarantees: only its hash under a key of this process is kept, and comparing takes as long for
//! a wrong token as for the right one.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Json, Response};
use ring::hmac;
use ring::rand::SystemRandom;
use serde_json::json;
use std::path::Path;

use crate::reload::Reloaded;

/// Characters that a token has at least; fewer can be guessed.
const LEAST: usize = 16;

/// The token, as far as it is kept.
pub struct Token {
    key: hmac::Key,
    tag: hmac::Tag,
}

/// Reads the token in `file`, without the white space around it.
///
/// # Errors
/// When there is none, or it is short.
pub fn open(file: &Path) -> anyhow::Result<Arc<Reloaded<Token>>> {
    Reloaded::open("http_token", vec![file.to_owned()], Token::of)
}

impl Token {
    fn of(files: &[Vec<u8>]) -> anyhow::Result<Self> {
        let Some(Ok(text)) = files.first().map(|file| std::str::from_utf8(file)) else {
            bail!("the token is not text");
        };
        let token = text.trim();
        if token.len() < LEAST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            bail!("a token has at least {LEAST} characters, without spaces");
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.ok().context("no random numbers")?;
        let tag = hmac::sign(&key, token.as_bytes());
        Ok(Self { key, tag })
    }

    fn is(&self, other: &str) -> bool {
        hmac::verify(&self.key, other.as_bytes(), self.tag.as_ref()).is_ok()
    }
}

/// Answers 401 unless the request has the token; without a token, everyone may ask.
pub async fn check(
    State(token): State<Option<Arc<Reloaded<Token>>>>,
    request: Request,
    next: Next,
) -> Response {
    if let Some(token) = token {
        let header = request.headers().get(header::AUTHORIZATION);
        let given = header.and_then(|value| value.to_str().ok()?.split_once(' '));
        let is_good = given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("bearer") && token.get().is(given.trim())
        });
        if !is_good {
            let wanted = [(header::WWW_AUTHENTICATE, "Bearer")];
            let error = match header {
                None => "this needs authorization: Bearer TOKEN, the one in --http-token-file",
                Some(_) => "that is not Bearer TOKEN with the token in --http-token-file",
            };
            let body = Json(json!({ "error": error }));
            return (StatusCode::UNAUTHORIZED, wanted, body).into_response();
        }
    }
    next.run(request).await
}
