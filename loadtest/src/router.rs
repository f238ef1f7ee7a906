//! What stands in front of the pods: a real HTTP server that says how many requests wait there, as
//! routers and queue exporters do.
//!
//! Guarantees: the page says what was set last; it is closed when this is dropped.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use axum::extract::State;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// The series on its page.
pub const SERIES: &str = "router_requests_pending";

/// A router.
#[derive(Debug)]
pub struct Router {
    address: SocketAddr,
    pending: Arc<AtomicU64>,
    _server: AbortOnDropHandle<()>,
}

impl Router {
    /// A router with nothing in its queue, on a free port of loopback.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the router")?;
        let address = listener.local_addr().context("the router")?;
        let pending = Arc::new(AtomicU64::new(0));
        let pages = axum::Router::new().route("/metrics", get(page)).with_state(pending.clone());
        let server = tokio::spawn(async move {
            // It goes on until it is dropped.
            axum::serve(listener, pages).await.ok();
        });
        Ok(Self { address, pending, _server: AbortOnDropHandle::new(server) })
    }

    /// Its origin, as `--demand-allow` wants it.
    pub fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    /// So many requests wait from now on.
    pub fn holds(&self, requests: u64) {
        self.pending.store(requests, Ordering::Relaxed);
    }
}

async fn page(State(pending): State<Arc<AtomicU64>>) -> String {
    let pending = pending.load(Ordering::Relaxed);
    format!("# TYPE {SERIES} gauge\n{SERIES}{{model=\"m\"}} {pending}\n")
}
