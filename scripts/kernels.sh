#!/usr/bin/env bash
# Compiles all kernels for every architecture of build/nvcc.rs and prints what scripts/sass.py reads from the machine
# code: registers, shared memory, blocks per SM, loads in flight. Fails if a kernel spills or falls below
# kernels/floors.txt, if ptxas serializes wgmma, or if the checked-in PTX is not that of the sources. Requires CUDA_HOME
# (scripts/nvcc.sh).
# usage: bash scripts/kernels.sh [--write] [architecture ...]    --write: replaces the floors of these architectures
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
nvcc=$(readlink -f "${CUDA_HOME:?is not set: run scripts/nvcc.sh}/bin/nvcc")
flags=$(sed -n 's/^pub(crate) const FLAGS.*\[\("-.*\)\];$/\1/p' build/nvcc.rs | tr -d '",')
all=$(sed -n 's/^pub(crate) const ARCHITECTURES.*= \[\(.*\)\];$/\1/p' build/nvcc.rs | tr -d '",')
write=()
if [ "${1:-}" = --write ]; then
    write=(--write)
    shift
fi
ptx_of() { sed -n 's/^const PTX_OF.*= //p' build/nvcc.rs | grep -oP "\[\"$1\", \"\K\w+" || echo "$1"; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "nvcc $flags"
jobs=$(nproc)
if [ ${#write[@]} -gt 0 ]; then jobs=1; fi # the floors are one file
# runs a command in the background, at most one per core, with its output in a file
start() {
    local log=$1
    shift
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    { "$@" > "$log.txt" 2>&1 || touch "$log.failed"; } &
}
ptx() {
    # shellcheck disable=SC2086
    "$nvcc" $flags "-arch=compute_$1" -ptx -o "$out/$1.ptx" kernels/all.cu
}
assemble() {
    "$CUDA_HOME/bin/ptxas" -O3 "-arch=sm_$1" -o "$out/$1" "$out/$(ptx_of "$1").ptx" &&
        python3 scripts/sass.py "$1" "$out/$1" "${write[@]}"
}
archs=${*:-$all}
for of in $(for arch in $archs; do ptx_of "$arch"; done | sort -u); do start "$out/ptx_$of" ptx "$of"; done
wait
for log in "$out"/ptx_*.failed; do
    if [ -e "$log" ]; then
        cat "${log%.failed}.txt"
        exit 1
    fi
done
for arch in $archs; do start "$out/$arch" assemble "$arch"; done
wait
status=0
for arch in $archs; do
    cat "$out/$arch.txt"
    if [ -e "$out/$arch.failed" ] || grep -qE "Potential Performance Loss|C7517" "$out/$arch.txt"; then status=1; fi
done
if [ -e "$out/80.ptx" ]; then
    bash scripts/ptx.sh --check "$out/80.ptx" || status=1
fi
exit $status
