#!/usr/bin/env bash
# Installs nvcc from PyPI wheels (about 100 MB) and prints the CUDA_HOME to use. The versions must match each other.
# PTX of a newer compiler does not load on driver 580.
# usage: export CUDA_HOME=$(bash scripts/nvcc.sh [directory])
set -euo pipefail
dir=${1:-${TMPDIR:-/tmp}/xtrain-nvcc-13.0}
home() { compgen -G "$dir/lib/python3*/site-packages/nvidia/cu13" | head -1; }
if [ ! -x "$(home || true)/bin/nvcc" ]; then
    python3 -m venv "$dir" >&2
    timeout 300 "$dir/bin/pip" install --quiet --no-deps nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
        nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 >&2
fi
"$(home)/bin/nvcc" --version >&2
home
