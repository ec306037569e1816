#!/usr/bin/env bash
# Compiles all kernels for every architecture of build/image.rs and prints what scripts/sass.py reads from the machine
# code: registers, shared memory, blocks per SM, loads in flight. Fails if a kernel spills or falls below
# kernels/floors.txt, or if ptxas serializes wgmma. Requires CUDA_HOME (scripts/nvcc.sh).
# usage: bash scripts/kernels.sh [--write] [architecture ...]    --write: replaces the floors of these architectures
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
nvcc=$(readlink -f "${CUDA_HOME:?is not set: run scripts/nvcc.sh}/bin/nvcc")
flags=$(sed -n 's/^pub(crate) const FLAGS.*\[\("-.*\)\];$/\1/p' build/nvcc.rs build/image.rs | tr -d '",')
all=$(sed -n 's/^pub(crate) const ARCHITECTURES.*= \[\(.*\)\];$/\1/p' build/nvcc.rs build/image.rs | tr -d '",')
write=()
if [ "${1:-}" = --write ]; then
    write=(--write)
    shift
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "nvcc $flags"
compile() {
    # shellcheck disable=SC2086
    "$nvcc" $flags -gencode "arch=compute_$1,code=sm_$1" -cubin -o "$out/$1" kernels/all.cu 2> "$out/$1.txt" ||
        touch "$out/$1.failed"
}
# one job per core
for arch in ${*:-$all}; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done # a failed job leaves a .failed file
    compile "$arch" &
done
wait
for arch in ${*:-$all}; do
    if [ -e "$out/$arch.failed" ]; then
        cat "$out/$arch.txt"
        exit 1
    fi
    if grep -E "Potential Performance Loss|C7517" "$out/$arch.txt"; then failed=1; fi
    python3 scripts/sass.py "$arch" "$out/$arch" "${write[@]}" || failed=1
done
exit "${failed:-0}"
