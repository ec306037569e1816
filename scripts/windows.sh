#!/usr/bin/env bash
# Cross-compiles xtrain for 64-bit Windows on x86-64 Linux and runs it under Wine. Requires MinGW, Wine and the Rust
# target: apt-get install gcc-mingw-w64-x86-64 wine64; rustup target add x86_64-pc-windows-gnu
# usage: bash scripts/windows.sh [COMMAND]
#   check        compiles the command without running it
#   bits         trains the same steps on Linux and on Windows, compares the files, and verifies the checkpoints (the
#                default: check, then bits)
#   run ARGS     xtrain.exe ARGS, as it was built last
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
target=x86_64-pc-windows-gnu
dir=$PWD/target/windows
fail() { echo "error: $*" >&2; exit 1; }

check() { cargo check --target "$target" --target-dir "$dir" --locked; }

build() {
    command -v x86_64-w64-mingw32-gcc > /dev/null || fail "no x86_64-w64-mingw32-gcc: install gcc-mingw-w64-x86-64"
    cargo build --release --locked
    cargo build --release --target "$target" --target-dir "$dir" --locked
    # Wine before version 9 lacks this library, from which the standard library reads random bytes.
    printf '%s\n' '#include <windows.h>' 'BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);' \
        '__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE p, SIZE_T n) { return SystemFunction036(p, (ULONG)n); }' \
        > "$dir/prng.c"
    x86_64-w64-mingw32-gcc -shared -o "$dir/$target/release/bcryptprimitives.dll" "$dir/prng.c" -ladvapi32
}

run() {
    local wine
    wine=$(command -v wine64 wine /usr/lib/wine/wine64 | head -1) || fail "no Wine: install wine64"
    WINEPREFIX=$dir/wine WINEDEBUG=-all "$wine" "$dir/$target/release/xtrain.exe" "$@"
}

train() {
    local program=("${CARGO_TARGET_DIR:-target}/release/xtrain")
    [ "$1" = linux ] || program=(run)
    "${program[@]}" train -c configs/shakespeare.toml --data examples/data/tinyshakespeare.txt \
        --set train.steps=3 --set train.warmup=1 --set train.sample_every=0 --set train.eval_every=0 \
        "${@:2}" > /dev/null
}

# Trains the same steps on both systems, in f32 and bf16, with and without SIMD, and compares all files of the checkpoints
# and the logs. Rolls out from the checkpoint of Windows, and compares every value with the training forward pass.
bits() {
    local out dtype device where
    build
    out=$(mktemp -d)
    for dtype in f32 bf16; do
        for device in cpu cpu:portable; do
            for where in linux windows; do
                train "$where" --dtype "$dtype" --device "$device" --run "$out/$where"
            done
            diff -r "$out/linux/checkpoints" "$out/windows/checkpoints" &&
                cmp "$out/linux/metrics.jsonl" "$out/windows/metrics.jsonl" ||
                fail "the files of $dtype on $device differ on Windows: see $out"
            run verify "$out/windows" --device "$device" --max-new 4
            rm -r "$out/linux" "$out/windows"
            echo "$dtype on $device: the checkpoint and the log are identical on Linux and on Windows"
        done
    done
    rm -r "$out"
}

case "${1:-}" in
    "") check && bits ;;
    check | bits) "$1" ;;
    run) shift && run "$@" ;;
    *) fail "unknown command $1: expected check, bits or run" ;;
esac
