#!/usr/bin/env bash
# Packs what a machine with a GPU and without Rust needs to write the GPU report: stripped tests and the command, with
# kernels for all architectures, and the data of the tests. Needs nvcc (CUDA_HOME, scripts/nvcc.sh) for machine code;
# without it the pack holds the checked-in PTX, which the driver compiles.
# usage: bash scripts/gpu-pack.sh [out.tar.gz]; there: tar xf out.tar.gz && bash gpu-report.sh
#        here, without a GPU: the same, with gpu-report.sh --dry-run
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
out=${1:-target/xtrain-gpu.tar.gz}
mkdir -p "$(dirname "$out")"
pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT
export CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_TEST_STRIP=symbols CARGO_PROFILE_TEST_DEBUG=false
cargo build --release --locked --features emu
# the file that a build of one test target made, in which there must be exactly one
test_binary() {
    local found
    found=$(cargo test --locked --no-run --message-format=json "$@" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | sort -u)
    if [ "$(printf '%s\n' "$found" | grep -c .)" != 1 ]; then
        printf 'error: cargo test %s made not one program: %s\n' "$*" "$found" >&2
        return 1
    fi
    printf '%s\n' "$found"
}
tensor=$(test_binary -p xtrain-tensor --features faults --lib)
gates=$(test_binary -p xtrain --features faults --test gates)
cp "$tensor" "$pack/test-tensor"
cp "$gates" "$pack/test-gates"
cp target/release/xtrain scripts/gpu-report.sh tests/peers/gpu.py "$pack/"
mkdir "$pack/data"
cp -r tests/data/golden_bits tests/data/models "$pack/data/"
git rev-parse HEAD > "$pack/commit"
git diff --quiet HEAD || echo "with changes that are not committed" >> "$pack/commit"
strip "$pack/test-tensor" "$pack/test-gates" "$pack/xtrain" 2> /dev/null || true
tar -C "$pack" -czf "$out" .
programs=$(stat -c %s "$pack/test-tensor" "$pack/test-gates" "$pack/xtrain" | awk '{ n += $1 } END { print n }')
size=$(stat -c %s "$out")
echo "$out: $((size / 1000000)) MB, its three programs $((programs / 1000000)) MB"
"$pack/xtrain" doctor
if [ "$size" -gt 40000000 ]; then
    echo "error: above 40 MB" >&2
    exit 1
fi
