#!/usr/bin/env bash
# Packs what a machine with a GPU and without Rust needs to write the GPU report: stripped tests and the command,
# with kernels for all architectures. Needs nvcc (CUDA_HOME, scripts/nvcc.sh).
# usage: bash scripts/gpu-pack.sh [out.tar.gz]; there: tar xf out.tar.gz && bash gpu-report.sh
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
out=${1:-target/xtrain-gpu.tar.gz}
pack=$(mktemp -d)
trap 'rm -rf "$pack"' EXIT
export CARGO_PROFILE_RELEASE_STRIP=symbols CARGO_PROFILE_TEST_STRIP=symbols
cargo build --release --locked
binary() { sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1; }
cargo test --locked --no-run --message-format=json -p xtrain-tensor --features faults --lib | binary > "$pack/tensor"
cargo test --locked --no-run --message-format=json -p xtrain --features faults --test gates | binary > "$pack/gates"
cp "$(cat "$pack/tensor")" "$pack/test-tensor"
cp "$(cat "$pack/gates")" "$pack/test-gates"
cp target/release/xtrain scripts/gpu-report.sh "$pack/"
git rev-parse HEAD > "$pack/commit"
rm "$pack/tensor" "$pack/gates"
tar -C "$pack" -czf "$out" .
size=$(stat -c %s "$out")
echo "$out: $((size / 1000000)) MB"
if [ "$size" -gt 40000000 ]; then
    echo "error: above 40 MB" >&2
    exit 1
fi
