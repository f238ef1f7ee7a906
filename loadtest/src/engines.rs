//! The pods' inference engines: for each GPU a real HTTP server whose page is that of the pod which
//! serves there, as vLLM writes it.
//!
//! Guarantees: a page says what was shown last; where no pod serves, it is 503, as while a model
//! loads; pages are closed when this is dropped.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Cluster, Requests};

/// The pages, by slot; none where engines have no requests to count.
#[derive(Debug, Default)]
pub struct Engines(Vec<Engine>);

#[derive(Debug)]
struct Engine {
    address: SocketAddr,
    shown: Arc<Shown>,
    _server: AbortOnDropHandle<()>,
}

/// Requests as the bits of a float; one that waits for a model has none.
#[derive(Debug)]
struct Shown {
    running: AtomicU64,
    waiting: AtomicU64,
}

const NOBODY: u64 = f64::NAN.to_bits();

impl Engines {
    /// A page for each of `slots`, on free ports of loopback.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn start(slots: usize) -> anyhow::Result<Self> {
        let mut engines = Vec::with_capacity(slots);
        for _ in 0..slots {
            let listener =
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("an engine")?;
            let address = listener.local_addr().context("an engine")?;
            let shown = Arc::new(Shown { running: NOBODY.into(), waiting: NOBODY.into() });
            let pages = axum::Router::new().route("/metrics", get(page)).with_state(shown.clone());
            let server = tokio::spawn(async move {
                // It goes on until it is dropped.
                axum::serve(listener, pages).await.ok();
            });
            engines.push(Engine { address, shown, _server: AbortOnDropHandle::new(server) });
        }
        Ok(Self(engines))
    }

    /// Where the page of a slot is.
    pub fn address(&self, slot: usize) -> Option<SocketAddr> {
        self.0.get(slot).map(|engine| engine.address)
    }

    /// Shows the requests of every pod.
    pub fn show(&self, cluster: &Cluster) {
        for (slot, engine) in self.0.iter().enumerate() {
            let pod = cluster.pods().iter().find(|pod| pod.slot == slot);
            let bits = |part: fn(&Requests) -> f64| {
                pod.and_then(|pod| pod.requests.as_ref()).map_or(NOBODY, |all| part(all).to_bits())
            };
            engine.shown.running.store(bits(|all| all.running), Ordering::Relaxed);
            engine.shown.waiting.store(bits(|all| all.waiting), Ordering::Relaxed);
        }
    }
}

async fn page(State(shown): State<Arc<Shown>>) -> (StatusCode, String) {
    let read = |number: &AtomicU64| f64::from_bits(number.load(Ordering::Relaxed));
    let (running, waiting) = (read(&shown.running), read(&shown.waiting));
    if running.is_nan() || waiting.is_nan() {
        return (StatusCode::SERVICE_UNAVAILABLE, "loading the model\n".to_owned());
    }
    let line = |name, value: f64| {
        format!(
            "# TYPE vllm:num_requests_{name} gauge\n\
             vllm:num_requests_{name}{{engine=\"0\",model_name=\"m\"}} {value:.2}\n"
        )
    };
    (StatusCode::OK, line("running", running) + &line("waiting", waiting))
}
