#!/usr/bin/env bash
# Compiles all kernels for every architecture of build/image.rs, prints registers, spills and shared memory of each
# kernel, and fails if any kernel spills. Requires CUDA_HOME (scripts/nvcc.sh).
# usage: bash scripts/kernels.sh [architecture ...]
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
nvcc=$(readlink -f "${CUDA_HOME:?is not set: run scripts/nvcc.sh}/bin/nvcc")
flags=$(sed -n 's/^pub(crate) const FLAGS.*\[\("-.*\)\];$/\1/p' build/nvcc.rs build/image.rs | tr -d '",')
all=$(sed -n 's/^pub(crate) const ARCHITECTURES.*= \[\(.*\)\];$/\1/p' build/nvcc.rs build/image.rs | tr -d '",')
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "nvcc $flags"
compile() {
    # shellcheck disable=SC2086
    "$nvcc" $flags -gencode "arch=compute_$1,code=sm_$1" -cubin -Xptxas -v \
        -o "$out/$1" kernels/all.cu 2> "$out/$1.txt" ||
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
    printf '\nsm_%s\n%-36s %9s %7s %7s\n' "$arch" kernel registers spilled shared
    awk '
        /Compiling entry function/ { gsub("\x27", "", $7); name = $7 }
        /bytes spill stores/ { spill[name] = $5 }
        /Used [0-9]+ registers/ {
            shared = 0
            for (i = 2; i <= NF; i++) if ($i ~ /^smem/) shared = $(i - 2)
            for (i = 1; i <= NF; i++) if ($i == "Used") registers = $(i + 1)
            printf "%-36s %9d %7d %7d\n", name, registers, spill[name], shared
        }
    ' "$out/$arch.txt" | sort | tee "$out/table"
    [ -s "$out/table" ] || { echo "error: ptxas reported no kernel for sm_$arch" >&2; exit 1; }
    if awk '$3 > 0 { print "error: " $1 " spills " $3 " bytes"; found = 1 } END { exit !found }' \
        "$out/table" >&2; then
        failed=1
    fi
done
exit "${failed:-0}"
