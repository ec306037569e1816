#!/usr/bin/env bash
# Regenerates kernels/prebuilt/xtrain.ptx.deflate, which builds without nvcc embed. Requires CUDA_HOME
# (scripts/nvcc.sh).
# usage: bash scripts/ptx.sh [--check]    --check: fails if the committed file differed from the regenerated one
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
ptx=kernels/prebuilt/xtrain.ptx.deflate
was=$(sha256sum "$ptx" 2> /dev/null || true)
XTRAIN_NVCC="$CUDA_HOME/bin/nvcc" XTRAIN_WRITE_PTX=1 XTRAIN_CUDA_ARCHS=80 cargo check -q -p xtrain-tensor
if [ "${1:-}" = --check ] && [ "$was" != "$(sha256sum "$ptx")" ]; then
    echo "error: $ptx does not match the sources: run scripts/ptx.sh and commit the result" >&2
    exit 1
fi
ls -l "$ptx"
