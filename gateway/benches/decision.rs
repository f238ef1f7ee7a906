//! The decision alone: what was observed → the value. Budget: 10 µs for 512 devices, linear.
//!
//! `cargo bench -p gateway --bench decision`

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gateway::trigger::assess;
use gateway::trigger::profile::Profiles;
use gateway::trigger::spec::parse;

mod scene;

fn decision(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decision");
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for (name, metadata) in scene::TRIGGERS {
        let metadata: HashMap<String, String> =
            metadata.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let trigger = parse(&metadata, &Profiles::default()).expect("a trigger");
        for devices in [64, 512, 4_096] {
            let observed = scene::observed(devices / 8, 8);
            group.throughput(Throughput::Elements(devices as u64));
            group.bench_with_input(
                BenchmarkId::new(name, devices),
                &observed,
                |bench, observed| {
                    bench
                        .iter(|| assess(&trigger, black_box(observed), &scene::NoPast, scene::NOW));
                },
            );
        }
    }
    group.finish();
}

criterion_group!(benches, decision);
criterion_main!(benches);
