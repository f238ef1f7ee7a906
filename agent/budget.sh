#!/bin/sh
# What the agent costs on a node of 8 GPUs: its CPU and its memory over 60 s, with the fake
# library, pushing to a gateway. Budget: 1 % of a core at 1 s, 2 % at 500 ms, 20 MiB.
#
# Usage: agent/budget.sh [SECONDS]     (needs Linux's /proc)
set -eu
seconds=${1:-60}
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release --package agent --package fake-nvml --package gateway
folder=$(mktemp -d)
agent=
gateway=
trap 'kill $agent $gateway 2>/dev/null || true; rm -rf "$folder"' EXIT
cp "$target/release/libfake_nvml.so" "$folder/libnvidia-ml.so.1"
awk 'BEGIN {
    printf "{\"driver\":\"550.54.15\",\"gpus\":["
    for (gpu = 0; gpu < 8; gpu++) printf "%s{\"uuid\":\"GPU-%d\",\"name\":\"NVIDIA H100 80GB HBM3\"," \
        "\"utilization\":[70,30],\"memory\":[85899345920,1073741824,42949672960],\"temperature\":64," \
        "\"power\":512500,\"energy_rate\":500000,\"clock\":1980,\"throttle\":0,\"pcie\":[1000,2000]," \
        "\"mig\":[0,0]}", (gpu ? "," : ""), gpu
    print "]}"
}' >"$folder/libnvidia-ml.so.1.json"

echo 'workloads: []' >"$folder/directory.yaml"
"$target/release/gpu-gateway" serve --keda-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 \
    --agent-listen 127.0.0.1:16001 --directory "file:$folder/directory.yaml" \
    --log-filter error &
gateway=$!

# Nanoseconds that its threads ran; finer than the ticks of /proc/PID/stat.
ran() { cat "/proc/$agent"/task/*/schedstat | awk '{ns += $1} END {printf "%.0f", ns}'; }
failed=0
for interval in 1s 500ms; do
    "$target/release/gpu-agent" run --node budget --gateway http://127.0.0.1:16001 \
        --nvml-library "$folder/libnvidia-ml.so.1" --interval "$interval" \
        --log-filter error &
    agent=$!
    sleep 2
    before=$(ran)
    sleep "$seconds"
    used=$(($(ran) - before))
    kib=$(awk '/^VmRSS/ {print $2}' "/proc/$agent/status")
    kill "$agent"
    wait "$agent" || true
    agent=
    budget=1
    [ "$interval" = 500ms ] && budget=2
    awk -v used="$used" -v s="$seconds" -v kib="$kib" \
        -v interval="$interval" -v budget="$budget" 'BEGIN {
            cpu = used / 1e9 / s * 100; mib = kib / 1024
            printf "8 GPUs, %s: %.2f %% of a core (budget %d %%), %.1f MiB RSS (budget 20 MiB)\n", \
                interval, cpu, budget, mib
            exit cpu > budget || mib > 20
        }' || failed=1
done
exit $failed
