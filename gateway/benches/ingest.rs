//! What a message of an agent costs beyond the transport: off the wire, and into the fleet.
//!
//! `cargo bench -p gateway --bench ingest`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gateway::fleet::Fleet;
use shared::frame::{Device, DeviceSample, Holder, HolderSource, Inventory, Sample};
use shared::identity::PodKey;
use shared::metric::Metric;
use shared::reading::Reading;
use shared::time::Timestamp;

const METRICS: [Metric; 6] = [
    Metric::GpuUtilization,
    Metric::MemoryUtilization,
    Metric::MemoryUsedPercent,
    Metric::MemoryUsedMib,
    Metric::Temperature,
    Metric::PowerDraw,
];

fn inventory(gpus: u32) -> Arc<Inventory> {
    let device = |index: u32| Device {
        uuid: format!("GPU-{index}").as_str().into(),
        index,
        name: "NVIDIA H100 80GB HBM3".into(),
        memory_total_mib: Some(81_920.0),
        mig: None,
        health: None,
        holders: vec![Holder {
            pod: PodKey::new("ml", format!("pod-{index}")),
            uid: None,
            container: "main".into(),
            share: Some(1.0),
            estimated: false,
            source: HolderSource::Kubelet,
            undeclared: false,
        }],
        reason: None,
    };
    Arc::new(Inventory { devices: (0..gpus).map(device).collect(), ..Inventory::default() })
}

fn sample(gpus: u32) -> Sample {
    let device = |_| {
        let readings = METRICS.map(|metric| (metric, Reading::Ok(50.0))).into_iter().collect();
        let (held, throttled) = (Vec::new(), Box::default());
        Some(DeviceSample { age: Duration::ZERO, readings, held, energy: None, throttled })
    };
    Sample { devices: (0..gpus).map(device).collect(), ..Sample::default() }
}

fn ingest(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ingest");
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for gpus in [1, 8, 64] {
        let fleet = Arc::new(Fleet::default());
        let session = fleet.open("n1".into(), Duration::from_secs(1), "bench".into());
        let session = session.expect("there is room");
        let inventory = inventory(gpus);
        let mut second = 0;
        group.bench_function(format!("apply, {gpus} GPUs"), |bench| {
            bench.iter_batched(
                || sample(gpus),
                |sample| {
                    second += 1;
                    let now = Timestamp::START + Duration::from_secs(second);
                    session.apply(black_box(&inventory), sample, now);
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, ingest);
criterion_main!(benches);
