//! What goes up one stream: hello, then an inventory whenever it changed, then samples.
//!
//! Guarantees: a message is made when the connection has room for it and not before, from the
//! newest frame there is at that moment; so ages are right when it leaves and nothing queues up
//! here. The stream ends when the collector has ended and its last frame is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use proto::convert::{inventory_to_wire, sample_to_wire};
use proto::uplink::agent_message::Body;
use proto::uplink::{AgentMessage, Hello};
use shared::frame::Inventory;
use shared::process::Clock;
use tokio::sync::watch;
use tokio_stream::Stream;
use tokio_stream::wrappers::WatchStream;

use crate::collector::Newest;
use crate::frame::Taken;

/// The messages of one stream.
pub(super) struct Outbound {
    hello: Option<Hello>,
    frames: WatchStream<Newest>,
    /// The inventory that was sent last, and its number.
    inventory: Option<Arc<Inventory>>,
    generation: u64,
    /// The frame whose inventory has just gone and whose sample is next.
    next: Option<Arc<Taken>>,
    clock: Clock,
}

impl Outbound {
    pub(super) fn new(hello: Hello, newest: watch::Receiver<Newest>, clock: Clock) -> Self {
        Self {
            hello: Some(hello),
            frames: WatchStream::new(newest),
            inventory: None,
            generation: 0,
            next: None,
            clock,
        }
    }

    /// The message that `taken` calls for now.
    fn message(&mut self, taken: Arc<Taken>) -> Body {
        let inventory = &taken.frame.inventory;
        let sent = self.inventory.as_ref();
        if sent.is_some_and(|sent| Arc::ptr_eq(sent, inventory)) {
            let waited = self.clock.now().since(taken.at);
            Body::Sample(sample_to_wire(self.generation, &taken.frame.sample, waited))
        } else {
            self.generation += 1;
            self.inventory = Some(inventory.clone());
            let body = Body::Inventory(inventory_to_wire(self.generation, inventory));
            self.next = Some(taken);
            body
        }
    }
}

impl Stream for Outbound {
    type Item = AgentMessage;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<AgentMessage>> {
        let body = if let Some(hello) = self.hello.take() {
            Body::Hello(hello)
        } else if let Some(taken) = self.next.take() {
            self.message(taken)
        } else {
            loop {
                match ready!(Pin::new(&mut self.frames).poll_next(cx)) {
                    Some(Some(taken)) => break self.message(taken),
                    Some(None) => {} // before the first tick
                    None => return Poll::Ready(None),
                }
            }
        };
        Poll::Ready(Some(AgentMessage { body: Some(body) }))
    }
}
