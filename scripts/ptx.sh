#!/usr/bin/env bash
# Renews kernels/prebuilt/xtrain.ptx.deflate, which builds without nvcc embed. Needs CUDA_HOME (scripts/nvcc.sh).
# usage: bash scripts/ptx.sh [--check]    --check: fails if it was not what the sources give
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
ptx=kernels/prebuilt/xtrain.ptx.deflate
was=$(sha256sum "$ptx" 2> /dev/null || true)
XTRAIN_NVCC="$CUDA_HOME/bin/nvcc" XTRAIN_WRITE_PTX=1 XTRAIN_CUDA_ARCHS=80 cargo check -q -p xtrain-tensor
if [ "${1:-}" = --check ] && [ "$was" != "$(sha256sum "$ptx")" ]; then
    echo "error: $ptx is not what the sources give: bash scripts/ptx.sh, and commit it" >&2
    exit 1
fi
ls -l "$ptx"
