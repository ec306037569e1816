#!/usr/bin/env bash
# Runs one stage of the GPU report from the contents of gpu-pack.sh, on a GPU machine without Rust. A stage writes
# STAGE.md (one line per step: verdict and seconds, and what failed) and STAGE.log (the complete output of every step)
# to a directory as it goes, so that what a killed stage has done remains. It ends within XTRAIN_STAGE_SECONDS (default
# 500), each step in its own process with a time limit: a failed step, or an error that leaves a process without a
# usable GPU, does not stop the next one. The stages are the files of gpu-report/:
#   contact   each operation and the tensor cores, every kernel awaited: which kernel and which test fail
#   sanitize  failed operations under compute-sanitizer: memcheck, racecheck, synccheck
#   gates     every gate that runs on a GPU, without the emulated ones
#   decode    tokens per second: batch 1, 32 and 256, and top-p
#   train     tokens per second, steps of GRPO
#   ncu       time and achieved bandwidth of every kernel of a step
#   peers     PyTorch, transformers and cuBLASLt next to xtrain; torch.compile last
# usage: bash gpu-report.sh STAGE DIRECTORY [--dry-run] [OPERATION ...]
#   --dry-run: the same steps on the emulator with tiny sizes; compute-sanitizer and ncu are replaced by gpu-report/fake.sh
#   OPERATION: of contact and sanitize, instead of all (contact) or those that failed (sanitize); of gates: tests of models
set -uo pipefail
usage() { echo "usage: bash gpu-report.sh STAGE DIRECTORY [--dry-run] [OPERATION ...]" >&2; exit 2; }
[ $# -ge 2 ] || usage
stage=$1
mkdir -p "$2" && out=$(cd "$2" && pwd) || exit 73
shift 2
cd "$(dirname "$0")" || exit 1
[ -f "gpu-report/$stage.sh" ] && [ "$stage" != fake ] || usage
dry=
if [ "${1:-}" = --dry-run ]; then
    dry=1
    shift
fi
operations=("$@")
budget=${XTRAIN_STAGE_SECONDS:-500}
export XTRAIN_TEST_DATA=$PWD/data XTRAIN_BIN=$PWD/xtrain PYTHONUNBUFFERED=1 RUST_BACKTRACE=0
md=$out/$stage.md log=$out/$stage.log failed=0
sanitizer=(compute-sanitizer) ncu=(ncu)
if [ -n "$dry" ]; then
    export XTRAIN_REQUIRE_EMU=1
    device=emulated name="the emulator"
    sanitizer=(bash gpu-report/fake.sh compute-sanitizer) ncu=(bash gpu-report/fake.sh ncu)
else
    # gates of several GPUs run them in one process, where NCCL would read memory that only its own GPU can access
    export XTRAIN_REQUIRE_GPU=1 XTRAIN_SKIP_EMU=1 NCCL_P2P_DIRECT_DISABLE=1
    device=cuda name=$(timeout 20 nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
    [ -n "$name" ] || { echo "error: nvidia-smi finds no GPU" >&2; exit 69; }
fi
: > "$log"
printf '# %s on %s, %s\n\nCommit %s. Written by `gpu-report.sh %s`.\n\n| step | verdict | s |\n|---|---|---|\n' \
    "$stage" "$name" "$(date +%F)" "$(tr '\n' ' ' < commit)" "$stage" > "$md"

# write_row title verdict seconds
write_row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3" | tee -a "$md"; }

# step LIMIT TITLE COMMAND...: runs a command for at most LIMIT seconds and the rest of the budget. Its output goes to the
# log, and to $last. Returns 75 if there was no time to run it. Of a failure, the row has the last line that begins with FAILURE (a regular expression).
last=$(mktemp)
trap 'rm -f "$last"' EXIT
failure='^(operation |gate |error: |timeout: |.*panicked|.*CUDA)'
step() {
    local limit=$1 title=$2 status start=$SECONDS left=$((budget - SECONDS)) verdict=passed
    shift 2
    [ "$left" -gt "$limit" ] || limit=$left
    if [ "$left" -lt 3 ]; then
        failed=1
        write_row "$title" "NOT RUN: no time left" 0
        return 75
    fi
    printf '\n===== %s\n$ %s\n' "$title" "$*" >> "$log"
    timeout -k 5 "$limit" "$@" 2>&1 | tee "$last" >> "$log"
    status=${PIPESTATUS[0]}
    if [ "$status" -ne 0 ]; then
        failed=1 verdict="FAILED ($status)"
        case $status in 124 | 137) [ $((SECONDS - start)) -lt "$limit" ] || verdict="FAILED: exceeded $limit s" ;; esac
        verdict+=": $(grep -E "$failure" "$last" | grep -v 'src/.*panicked at' | tail -1 | tr '|' '/' | cut -c 1-600)"
    elif grep -q '^test result: ok. 0 passed' "$last"; then
        failed=1 status=1 verdict="FAILED: no test ran"
    fi
    write_row "$title" "$verdict" $((SECONDS - start))
    [ "$status" -eq 0 ] || note "$(tail -25 "$last")"
    return "$status"
}
# note TEXT: appends a code block to the report; the table goes on after it
note() { printf '\n```\n%s\n```\n\n| step | verdict | s |\n|---|---|---|\n' "$1" >> "$md"; }

# shellcheck source=/dev/null
. "gpu-report/$stage.sh"
echo "$md"
exit $failed
