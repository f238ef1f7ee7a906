//! The ports at work.
//!
//! Guarantees: accepting and serving are watched, a port by a port: one that panicked or hangs is
//! named and leaves the others at work. All of them end after shutdown.

use axum::Router;
use futures_util::{FutureExt as _, StreamExt as _};
use shared::process::pages::{self, Closed};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::Layer as _;

use crate::accept::{self, Entrance};
use crate::contain::{self, Contain};
use crate::http::PORT as HTTP;
use crate::limit::guarded::Guarded;
use crate::limit::{self, Connections, Door};
use crate::port::Port;
use crate::vital::{Pace, Vitals};

/// A gRPC port that is bound.
pub(super) struct Grpc {
    pub(super) listener: TcpListener,
    pub(super) entrance: Entrance,
    pub(super) port: Port,
}

/// Every port, bound, and what they serve.
pub(super) struct Ports {
    pub(super) keda: Grpc,
    pub(super) agents: Grpc,
    pub(super) http: (TcpListener, Router),
    pub(super) connections: Connections,
    pub(super) contained: contain::Counts,
    pub(super) limits: limit::Counts,
}

impl Ports {
    /// Starts accepting, and returns what ends when all ports have.
    pub(super) fn serve(
        self,
        tasks: &TaskTracker,
        vitals: &Vitals,
        shutdown: &CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let Self { keda, agents, http: (listener, pages), connections, contained, limits } = self;
        let watched = |name, part| {
            let watched = vitals.clone().watch(name, Pace::Nudged, shutdown.clone(), part);
            watched.boxed()
        };
        let door = |name, most| Door::new(name, most, limits.clone());
        let grpc = |Grpc { listener, entrance, port }: Grpc, most, names: [&'static str; 2]| {
            let admitted = limit::incoming(listener, door(entrance.name, most));
            let (accepting, incoming) =
                accept::incoming(admitted, entrance, contained.clone(), shutdown.clone());
            tasks.spawn(watched(names[0], accepting.boxed()));
            watched(names[1], port.serve(incoming, shutdown.clone()).boxed())
        };
        let keda = grpc(keda, connections.keda, ["accepting KEDA", "KEDA's port"]);
        let agents = grpc(agents, connections.agents, ["accepting agents", "agents' port"]);
        let (pages, stopped) =
            (Contain::new(HTTP, contained.clone()).layer(pages), shutdown.clone());
        let door = door(HTTP, connections.http).idle_give_way();
        let admitted = limit::incoming(listener, door.clone()).map(move |admitted| {
            let standing = admitted.place.standing();
            (Guarded::new(admitted.stream, admitted.place, 1, &stopped), standing)
        });
        let closed = move |why| door.refuse(why_closed(why));
        let served = pages::serve(admitted, pages, closed, shutdown.clone());
        let http = watched("HTTP port", served.boxed());
        async move {
            tokio::join!(keda, agents, http);
        }
    }
}

/// What a connection is counted under that the HTTP port closed on its client.
fn why_closed(closed: Closed) -> &'static str {
    match closed {
        Closed::TooLarge => "head",
        Closed::TooSlow => "silent",
    }
}
