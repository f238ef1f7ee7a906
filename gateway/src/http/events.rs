//! `GET /api/v1/events`: the fleet and the triggers, live, as server-sent events.
//!
//! * `shape` – nodes, devices and holders, whenever they change; first of all
//! * `spark` – half an hour of every trigger's value, every 10 s
//! * `tick` – readings and decisions, about once a second, in the order of the newest shape
//!
//! Guarantees: made once for all clients, and not at all while there is none; a client that reads
//! slowly skips ticks and is never buffered for; at most `MAX_CLIENTS` are served, each for
//! `STAY`, after which it comes again. A tick is always of the shape sent before it.

/// What a tick and a shape say.
mod picture;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Json, Response};
use futures_util::{StreamExt as _, stream};
use hyper::body::Bytes;
use serde::Serialize;
use serde_json::json;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::answer::Answers;
use crate::timeline::Timelines;
use crate::vital::Vitals;

/// Streams served at once.
pub const MAX_CLIENTS: usize = 64;
/// Time between two ticks.
const TICK: Duration = Duration::from_secs(1);
/// How long a stream lasts: less than its connection may, so that it ends cleanly.
const STAY: Duration = Duration::from_secs(240);
/// Ticks between two sparks.
const SPARK_EVERY: u64 = 10;

/// One moment, ready to be sent.
#[derive(Debug)]
struct Frame {
    shape: (u64, Bytes),
    spark: (u64, Bytes),
    tick: Bytes,
}

/// The stream that every client reads.
#[derive(Debug)]
pub struct Events {
    frames: watch::Sender<Option<Arc<Frame>>>,
    came: Notify,
    room: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(MAX_CLIENTS));
        Self { frames: watch::Sender::new(None), came: Notify::new(), room }
    }
}

/// What one client has got so far.
struct Client {
    frames: watch::Receiver<Option<Arc<Frame>>>,
    shape: u64,
    spark: u64,
    _place: OwnedSemaphorePermit,
}

impl Events {
    /// Makes frames while anybody reads them, until shutdown.
    pub async fn keep(
        self: Arc<Self>,
        answers: Arc<Answers>,
        timelines: Arc<Timelines>,
        vitals: Vitals,
        shutdown: CancellationToken,
    ) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut made = 0;
        loop {
            if self.frames.receiver_count() == 0 {
                self.frames.send_replace(None);
                if shutdown.run_until_cancelled(self.came.notified()).await.is_none() {
                    return;
                }
                continue;
            }
            if shutdown.run_until_cancelled(tick.tick()).await.is_none() {
                return;
            }
            let before = self.frames.borrow().clone();
            let frame = make(&answers, &timelines, &vitals, before.as_deref(), made);
            self.frames.send_replace(Some(Arc::new(frame)));
            made += 1;
        }
    }

    /// Answers one client, until it may not stay any longer.
    pub fn answer(
        &self,
        shutdown: CancellationToken,
        may_stay: impl Fn() -> bool + Send + 'static,
    ) -> Response {
        let Ok(place) = self.room.clone().try_acquire_owned() else {
            let error = format!("{MAX_CLIENTS} streams are open, no more are served");
            let again = [(header::RETRY_AFTER, "10")];
            let body = Json(json!({ "error": error }));
            return (StatusCode::SERVICE_UNAVAILABLE, again, body).into_response();
        };
        let mut frames = self.frames.subscribe();
        frames.mark_changed();
        self.came.notify_one();
        let client = Client { frames, shape: 0, spark: 0, _place: place };
        let pieces = stream::unfold(client, async |mut client| {
            let bytes = client.next().await?;
            Some((Ok::<_, Infallible>(bytes), client))
        });
        let end = async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(STAY) => {}
            }
        };
        let pieces = pieces.take_while(move |_| std::future::ready(may_stay()));
        let kind = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
        (kind, Body::from_stream(pieces.take_until(Box::pin(end)))).into_response()
    }
}

impl Client {
    /// What it has not got yet of the newest frame.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.frames.changed().await.ok()?;
            let frame = self.frames.borrow_and_update().clone();
            let Some(frame) = frame else { continue };
            let mut bytes = Vec::with_capacity(frame.tick.len());
            if std::mem::replace(&mut self.shape, frame.shape.0) != frame.shape.0 {
                bytes.extend_from_slice(&frame.shape.1);
            }
            if std::mem::replace(&mut self.spark, frame.spark.0) != frame.spark.0 {
                bytes.extend_from_slice(&frame.spark.1);
            }
            bytes.extend_from_slice(&frame.tick);
            return Some(bytes.into());
        }
    }
}

fn make(
    answers: &Answers,
    timelines: &Timelines,
    vitals: &Vitals,
    before: Option<&Frame>,
    made: u64,
) -> Frame {
    let nodes = answers.fleet().nodes();
    let shape = event("shape", &picture::shape(answers, &nodes));
    let shape = match before {
        Some(Frame { shape: (version, known), .. }) if *known == shape => (*version, shape),
        Some(Frame { shape: (version, _), .. }) => (version + 1, shape),
        None => (made + 1, shape),
    };
    let spark = match before {
        Some(frame) if !made.is_multiple_of(SPARK_EVERY) => frame.spark.clone(),
        _ => (made + 1, event("spark", &picture::spark(timelines))),
    };
    let tick = event("tick", &picture::tick(answers, timelines, vitals, &nodes));
    Frame { shape, spark, tick }
}

/// One event; JSON has no line ends in it.
fn event(name: &str, data: &impl Serialize) -> Bytes {
    let mut bytes = format!("event: {name}\ndata: ").into_bytes();
    serde_json::to_writer(&mut bytes, data).expect("plain data is written to memory");
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}
