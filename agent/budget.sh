#!/bin/sh
# What the agent costs on a node of 8 GPUs: its CPU and its memory over 60 s, with the fake
# library, pushing to a gateway. Budget: 1 % of a core at 1 s, 2 % at 500 ms, 20 MiB; twice the
# CPU where the GPUs are shared. Each GPU has GPM, and one process or, shared, eight of which four
# come through MPS. Cut into seven MIG instances each, there is no budget, only a figure.
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
# A node whose GPUs each have so many processes and so many clients of MPS, or so many instances.
script() {
    awk -v own="$1" -v mps="$2" -v instances="$3" '
    function processes(from, to,    pid, list) {
        for (pid = from; pid < to; pid++)
            list = list (pid > from ? "," : "") "{\"pid\":" pid ",\"memory\":4294967296}"
        return "[" list "]"
    }
    function used(from, to,    pid, list) {
        for (pid = from; pid < to; pid++) list = list (pid > from ? "," : "") "[" pid ",8,3]"
        return "[" list "]"
    }
    BEGIN {
        gpm = "\"gpm\":{\"1\":60,\"2\":50,\"5\":30,\"10\":20,\"20\":10,\"21\":10,\"60\":900,\"61\":900}"
        printf "{\"driver\":\"550.54.15\",\"gpus\":["
        for (gpu = 0; gpu < 8; gpu++) {
            first = 1000 + 100 * gpu
            printf "%s{\"uuid\":\"GPU-%d\",\"name\":\"NVIDIA H100 80GB HBM3\",", (gpu ? "," : ""), gpu
            printf "\"utilization\":[70,30],\"memory\":[85899345920,1073741824,42949672960],"
            printf "\"temperature\":64,\"power\":512500,\"energy_rate\":500000,\"clock\":1980,"
            printf "\"throttle\":0,\"pcie\":[1000,2000],\"mig\":[%d,%d],", (instances > 0), (instances > 0)
            printf "\"processes\":%s,", processes(first, first + own)
            printf "\"mps\":%s,", processes(first + own, first + own + mps)
            printf "\"process_utilization\":%s,%s,\"instances\":[", used(first, first + own + mps), gpm
            for (slot = 0; slot < instances; slot++) {
                printf "%s{\"slot\":%d,\"uuid\":\"MIG-%d-%d\",", (slot ? "," : ""), slot, gpu, slot
                printf "\"name\":\"NVIDIA H100 80GB HBM3 MIG 1g.10gb\",\"gi\":%d,\"ci\":0,", slot + 7
                printf "\"memory\":[10200547328,0,4294967296],%s,", gpm
                printf "\"processes\":%s,\"mps\":[]}", processes(first + slot, first + slot + 1)
            }
            printf "]}"
        }
        print "]}"
    }' >"$folder/libnvidia-ml.so.1.json"
}

echo 'workloads: []' >"$folder/directory.yaml"
"$target/release/gpu-gateway" serve --keda-listen 127.0.0.1:0 --http-listen 127.0.0.1:0 \
    --agent-listen 127.0.0.1:16001 --directory "file:$folder/directory.yaml" \
    --log-filter error &
gateway=$!

# Nanoseconds that its threads ran; finer than the ticks of /proc/PID/stat.
ran() { cat "/proc/$agent"/task/*/schedstat | awk '{ns += $1} END {printf "%.0f", ns}'; }
failed=0
# measure KIND INTERVAL PERCENT; a budget of 0 % is none.
measure() {
    "$target/release/gpu-agent" run --node budget --gateway http://127.0.0.1:16001 \
        --nvml-library "$folder/libnvidia-ml.so.1" --interval "$2" \
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
    awk -v used="$used" -v s="$seconds" -v kib="$kib" \
        -v kind="$1" -v interval="$2" -v budget="$3" 'BEGIN {
            cpu = used / 1e9 / s * 100; mib = kib / 1024
            printf "8 GPUs, %s, %s: %.2f %% of a core (budget %s), %.1f MiB RSS (budget 20 MiB)\n", \
                kind, interval, cpu, budget ? budget " %" : "none", mib
            exit (budget && cpu > budget) || mib > 20
        }' || failed=1
}
script 1 0 0
measure exclusive 1s 1
measure exclusive 500ms 2
script 4 4 0
measure shared 1s 2
measure shared 500ms 4
script 0 0 7
measure "7 MIG instances each" 1s 0
exit $failed
