//! A trigger's metadata → the trigger: part of every call.
//!
//! `cargo bench -p gateway --bench metadata`

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use gateway::trigger::profile::Profiles;
use gateway::trigger::spec::parse;

const SIMPLE: &[(&str, &str)] = &[
    ("scalerAddress", "gpu-gateway.gpu-scaler.svc.cluster.local:6000"),
    ("metricType", "gpu_utilization"),
    ("targetValue", "70"),
];
const COMPOSITE: &[(&str, &str)] = &[
    ("scalerAddress", "gpu-gateway.gpu-scaler.svc.cluster.local:6000"),
    ("metricType", "gpu_utilization:70,memory_used_percent:90"),
    ("aggregation", "p95"),
    ("window", "2m"),
    ("activationWindow", "5m"),
    ("staleAfter", "15s"),
];

fn metadata(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("metadata");
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    let profiles = Profiles::default();
    for (name, metadata) in [("simple", SIMPLE), ("composite", COMPOSITE)] {
        let metadata: HashMap<String, String> =
            metadata.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        parse(&metadata, &profiles).expect("a trigger");
        group.bench_function(name, |bench| bench.iter(|| parse(black_box(&metadata), &profiles)));
    }
    group.finish();
}

criterion_group!(benches, metadata);
criterion_main!(benches);
