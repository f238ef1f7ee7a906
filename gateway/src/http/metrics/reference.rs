//! Every series there can be, as the reference lists them.

use reference::{Series, Specimens, compare, series, series_table};
use shared::process::Clock;
use std::sync::Arc;

use super::{Metrics, Shown};
use crate::answer::Answers;
use crate::demand::Demands;
use crate::demand::place::Rules;
use crate::directory::{Directory, Snapshot};
use crate::fleet::Fleet;
use crate::http::series::OWN;
use crate::refusal::Refusals;
use crate::timeline::Timelines;
use crate::trigger::profile::Profiles;
use crate::{contain, ingest, limit, reload, scaler};

#[test]
fn the_reference_lists_every_series() {
    let clock = Clock::start();
    let demands = Demands::new(Rules::default(), clock);
    let (ingest, calls) = (ingest::Counts::default(), scaler::Calls::default());
    let (refusals, reloads) = (Refusals::default(), reload::Counts::default());
    let (contained, limits) = (contain::Counts::default(), limit::Counts::default());
    let mut metrics = Metrics::new(&ingest, &calls, &demands).with_locks(&refusals, &reloads);
    metrics.add(|registry| contained.register(registry));
    metrics.add(|registry| limits.register(registry));
    let timelines = Timelines::default();
    metrics.add(|registry| timelines.register(registry));

    let shown = Shown::default();
    let directory = Arc::new(Directory::default());
    directory.replace(Snapshot::default());
    let answers =
        Answers::new(directory, Arc::new(Fleet::default()), Arc::new(Profiles::default()), clock);
    let all: [&dyn Specimens; 14] = [
        &demands,
        &ingest,
        &calls,
        &refusals,
        &reloads,
        &contained,
        &limits,
        &timelines,
        &shown.nodes,
        &shown.triggers,
        &shown.workloads,
        &shown.health,
        &shown.ledger,
        &shown.certificates,
    ];
    all.iter().for_each(|part| part.specimens());

    let mut all = series(&metrics.counters.lock());
    all.extend(series(&shown.registry(&answers)));
    all.extend(OWN.map(|(name, help)| Series {
        name: name.into(),
        kind: "gauge".into(),
        help: help.into(),
        labels: Vec::new(),
    }));
    all.sort();
    compare("metrics.md", "gpu-gateway", &series_table(&all));
}
