//! A page of an engine's metrics, line by line.
//!
//! `cargo bench -p shared --bench exposition`

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use shared::exposition::parse;

/// Gauges and a histogram, as engines publish them: some 64 KiB.
fn page() -> String {
    let mut page = String::new();
    for model in 0..20 {
        let labels = format!("engine=\"0\",model_name=\"org/model-{model}\"");
        page += "# HELP vllm:num_requests_waiting Number of requests waiting.\n";
        page += "# TYPE vllm:num_requests_waiting gauge\n";
        writeln!(page, "vllm:num_requests_waiting{{{labels}}} {model}.0").expect("a string");
        page += "# TYPE vllm:time_to_first_token_seconds histogram\n";
        for bucket in 0..30 {
            let le = f64::from(bucket) / 4.0;
            writeln!(
                page,
                "vllm:time_to_first_token_seconds_bucket{{{labels},le=\"{le}\"}} {}",
                bucket * 17
            )
            .expect("a string");
        }
    }
    page
}

fn exposition(criterion: &mut Criterion) {
    let page = page();
    assert!(parse(&page).all(|series| series.is_ok()), "a good page");
    let mut group = criterion.benchmark_group("exposition");
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Bytes(page.len() as u64));
    group.bench_function("parse", |bench| bench.iter(|| parse(black_box(&page)).count()));
    group.finish();
}

criterion_group!(benches, exposition);
criterion_main!(benches);
