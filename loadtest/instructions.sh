#!/bin/sh
# Instructions of one answer and of one message, counted by valgrind: the same on every run of a
# build, however busy the machine is. Two counts, one twice as long, so that setting up is left out.
#
# Usage: loadtest/instructions.sh     (needs valgrind)
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release --package loadtest
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# count WHAT TIMES
count() {
    valgrind --tool=callgrind --callgrind-out-file="$folder/out" --quiet \
        "$target/release/loadtest" repeat "$1" --times "$2" >&2
    awk '/^(summary|totals):/ {print $2; exit}' "$folder/out"
}
for what in one many ingest; do
    few=$(count "$what" 200)
    more=$(count "$what" 400)
    echo "$what: $(((more - few) / 200)) instructions"
done
