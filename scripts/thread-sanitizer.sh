#!/usr/bin/env bash
# Runs tests under ThreadSanitizer, which reports two accesses without an order between them. The standard library is
# instrumented too, so this requires a nightly toolchain with its sources:
#   rustup toolchain install nightly --component rust-src
# usage: bash scripts/thread-sanitizer.sh [PACKAGE [FILTER...]]
# Without arguments: a data race that has to be reported, then the processes as threads, the CPU operations and the
# thread pool, and the engine. The emulator is not built.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
fail() { echo "error: $*" >&2; exit 1; }
host=$(rustc -vV | sed -n 's/^host: //p')
case $host in
    *-linux-gnu | *-apple-darwin) ;;
    *) fail "expected Linux or macOS, found $host" ;;
esac
sources=$(rustc +nightly --print sysroot 2> /dev/null || true)/lib/rustlib/src/rust/library/std
[ -d "$sources" ] || fail "no sources of a nightly toolchain: rustup toolchain install nightly --component rust-src"

export RUSTFLAGS=-Zsanitizer=thread XTRAIN_NVCC=off
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/thread-sanitizer
# tests ask for more memory than there is
export TSAN_OPTIONS="halt_on_error=1 allocator_may_return_null=1 ${TSAN_OPTIONS:-}"
run() {
    local package=$1
    shift
    cargo +nightly test -Zbuild-std --target "$host" --locked -p "$package" --lib -- "$@"
}
if [ $# -gt 0 ]; then
    run "$@"
else
    race=device::pool::tests::a_data_race_for_the_thread_sanitizer
    report=$(run xtrain-tensor --ignored --exact "$race" 2>&1) && fail "the sanitizer does not report a data race"
    grep -q 'ThreadSanitizer: data race' <<< "$report" || fail "expected the report of a data race, found: $report"
    run xtrain-comm
    # the memory that this test measures contains the sanitizer's
    run xtrain-tensor pool cpu:: --skip a_vocabulary_of_50_000_takes_40_mib
    run xtrain-decode
fi
