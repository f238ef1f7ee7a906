//! The cgroup text of a process → its pod: once for each process that is new on a GPU.
//!
//! `cargo bench -p agent --bench cgroup`

use std::hint::black_box;
use std::time::Duration;

use agent::owner::cgroup::{Place, place};
use criterion::{Criterion, criterion_group, criterion_main};

const TEXTS: [(&str, &str); 3] = [
    (
        "systemd, v2",
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2f3c1a7e_8b1d_4a52_9c1e_0d6f8e7a9b10.slice/cri-containerd-5f0e1d2c3b4a59687706f5e4d3c2b1a05f0e1d2c3b4a59687706f5e4d3c2b1a0.scope\n",
    ),
    (
        "cgroupfs, v1",
        "12:pids:/kubepods/besteffort/pod2f3c1a7e-8b1d-4a52-9c1e-0d6f8e7a9b10/5f0e1d2c3b4a59687706f5e4d3c2b1a05f0e1d2c3b4a59687706f5e4d3c2b1a0\n11:memory:/kubepods/besteffort/pod2f3c1a7e-8b1d-4a52-9c1e-0d6f8e7a9b10/5f0e1d2c3b4a59687706f5e4d3c2b1a05f0e1d2c3b4a59687706f5e4d3c2b1a0\n",
    ),
    ("host", "0::/system.slice/nvidia-persistenced.service\n"),
];

fn cgroup(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cgroup");
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for (name, text) in TEXTS {
        assert_ne!(place(text, |_| true), Place::Unknown, "{name}");
        group.bench_function(name, |bench| bench.iter(|| place(black_box(text), |_| true)));
    }
    group.finish();
}

criterion_group!(benches, cgroup);
criterion_main!(benches);
