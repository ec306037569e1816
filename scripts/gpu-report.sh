#!/usr/bin/env bash
# Runs what gpu-pack.sh packed, on a machine with a GPU, and writes gpu-<device>-<date>.md beside it (it belongs
# in docs/bench/). Nothing is skipped silently: without a GPU it fails.
set -uo pipefail
cd "$(dirname "$0")"
export XTRAIN_REQUIRE_GPU=1
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1) || exit 69
report="gpu-$(echo "$name" | tr ' /' '--' | tr 'A-Z' 'a-z')-$(date +%F).md"
failed=0
{
    echo "# $name, $(date +%F)"
    echo
    echo "Commit $(cat commit). Written by scripts/gpu-report.sh."
    echo
    echo '```'
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
    ./xtrain doctor
    echo '```'
} > "$report"
# section "title" command...: its last lines, and whether it passed
section() {
    local title=$1 status start=$SECONDS
    shift
    timeout 300 "$@" > output.txt 2>&1
    status=$?
    [ $status -eq 0 ] || failed=1
    printf '\n## %s\n\n`%s`: %s in %d s\n\n```\n%s\n```\n' "$title" "$*" \
        "$([ $status -eq 0 ] && echo passed || echo "FAILED ($status)")" $((SECONDS - start)) "$(tail -60 output.txt)" >> "$report"
}
section "Kernels against the processor, by bits" ./test-tensor gpu --nocapture --test-threads 1
section "Whole models" ./test-gates gpu --nocapture --test-threads 1
for dtype in f32 bf16; do
    section "Training, $dtype" ./xtrain bench train --device cuda --dtype $dtype
    section "Decoding, $dtype" ./xtrain bench decode --device cuda --dtype $dtype
done
rm -f output.txt
cat "$report"
exit $failed
