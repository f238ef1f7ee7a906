//! The decision timeline and the dashboard's stream, as one part of the gateway.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::answer::Answers;
use crate::http::Pages;
use crate::http::events::Events;
use crate::http::metrics::Metrics;
use crate::timeline::Timelines;
use crate::vital::Vitals;

/// What is remembered and shown live.
#[derive(Default)]
pub(super) struct Live {
    timelines: Arc<Timelines>,
    events: Arc<Events>,
}

impl Live {
    /// Nothing is remembered yet; what will be is counted in `metrics`.
    pub(super) fn new(metrics: &mut Metrics) -> Self {
        let live = Self::default();
        metrics.add(|registry| live.timelines.register(registry));
        live
    }

    /// The same pages, with these.
    pub(super) fn on(&self, pages: Pages) -> Pages {
        pages.with_live(self.timelines.clone(), self.events.clone())
    }

    /// Looks and shows until shutdown.
    pub(super) async fn keep(
        self,
        answers: Arc<Answers>,
        vitals: Vitals,
        shutdown: CancellationToken,
    ) {
        let looks = self.timelines.clone().keep(answers.clone(), shutdown.clone());
        tokio::join!(looks, self.events.keep(answers, self.timelines, vitals, shutdown));
    }
}
