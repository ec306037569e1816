#!/usr/bin/env bash
# Installs nvcc, cuobjdump and nvdisasm from PyPI wheels (about 110 MB) and prints the CUDA_HOME to use. The versions of
# the compiler's wheels must match each other. PTX of a newer compiler does not load on driver 580.
# usage: export CUDA_HOME=$(bash scripts/nvcc.sh [directory])
set -euo pipefail
dir=${1:-${TMPDIR:-/tmp}/xtrain-nvcc-13.0}
home() { compgen -G "$dir/lib/python3*/site-packages/nvidia/cu13" | head -1; }
if [ ! -x "$(home || true)/bin/nvdisasm" ]; then
    python3 -m venv "$dir" >&2
    timeout --foreground 300 "$dir/bin/pip" install --quiet --no-deps nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
        nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 \
        nvidia-cuda-cuobjdump==13.2.86 nvidia-cuda-nvdisasm==13.2.86 >&2
fi
"$(home)/bin/nvcc" --version >&2
home
