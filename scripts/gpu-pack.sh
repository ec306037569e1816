#!/usr/bin/env bash
# Packs everything that a GPU machine without Rust needs to write the GPU report: stripped test programs, the command
# with its kernels, and the test data. Machine code requires nvcc (CUDA_HOME, scripts/nvcc.sh); without it the pack
# contains the checked-in PTX, which the driver compiles. Machine code is built for A100, H100 and B200 unless
# XTRAIN_CUDA_ARCHS lists other architectures; other GPUs use PTX.
# usage: bash scripts/gpu-pack.sh [out.tar.xz]; on the GPU machine: tar xf out.tar.xz && bash gpu-report.sh STAGE DIRECTORY
#        for each stage; without a GPU: the same, with --dry-run
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
out=${1:-target/xtrain-gpu.tar.xz}
mkdir -p "$(dirname "$out")"
pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT
export XTRAIN_CUDA_ARCHS=${XTRAIN_CUDA_ARCHS:-80,90a,100}
export CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_TEST_STRIP=symbols CARGO_PROFILE_TEST_DEBUG=false
cargo build --release --locked --features emu
built=$(cargo test --locked --no-run --message-format=json -p xtrain-tensor -p xtrain \
    --features xtrain-tensor/faults,xtrain/faults --lib --test gates)
# prints the executable that was built for the target of this name; fails unless there is exactly one
program() {
    local found
    found=$(printf '%s\n' "$built" | grep "\"name\":\"$1\"" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | sort -u)
    if [ "$(printf '%s\n' "$found" | grep -c .)" != 1 ]; then
        printf 'error: expected one test program for %s, found: %s\n' "$1" "$found" >&2
        return 1
    fi
    printf '%s\n' "$found"
}
tensor=$(program xtrain_tensor)
gates=$(program gates)
cp "$tensor" "$pack/test-tensor"
cp "$gates" "$pack/test-gates"
cp "${CARGO_TARGET_DIR:-target}/release/xtrain" tests/peers/gpu.py "$pack/"
cp -r scripts/gpu-report.sh scripts/gpu-report "$pack/"
cp -r tests/data "$pack/data"
git rev-parse HEAD > "$pack/commit"
[ -z "$(git status --porcelain)" ] || echo "with uncommitted changes" >> "$pack/commit"
strip "$pack/test-tensor" "$pack/test-gates" "$pack/xtrain" 2> /dev/null || true
tar -C "$pack" -c . | xz -6 -T0 > "$out"
programs=$(stat -c %s "$pack/test-tensor" "$pack/test-gates" "$pack/xtrain" | awk '{ n += $1 } END { print n }')
size=$(stat -c %s "$out")
echo "$out: $((size / 1000000)) MB, uncompressed programs $((programs / 1000000)) MB"
"$pack/xtrain" doctor
# with the checkout, less than 64 MiB
if [ "$size" -gt 40000000 ]; then
    echo "error: $out has $size bytes, expected at most 40000000" >&2
    exit 1
fi
