#!/usr/bin/env bash
# Regenerates kernels/prebuilt/xtrain.ptx.deflate, which builds without nvcc embed. Requires CUDA_HOME
# (scripts/nvcc.sh).
# usage: bash scripts/ptx.sh [--check FILE]    --check: fails if it does not hold the PTX in FILE (scripts/kernels.sh)
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
ptx=kernels/prebuilt/xtrain.ptx.deflate
if [ "${1:-}" = --check ]; then
    # a line with the hash of the sources, then a deflated stream
    inflate='import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read(), -15))'
    if ! tail -n +2 "$ptx" | python3 -c "$inflate" | cmp -s - "$2"; then
        echo "error: $ptx does not match the sources: run scripts/ptx.sh and commit the result" >&2
        exit 1
    fi
    echo "$ptx: the PTX of the sources"
    exit
fi
XTRAIN_NVCC="$CUDA_HOME/bin/nvcc" XTRAIN_WRITE_PTX=1 XTRAIN_CUDA_ARCHS=80 cargo check -q -p xtrain-tensor
ls -l "$ptx"
