#!/usr/bin/env bash
# Counts the lines and regions of Rust that the tests execute, also in the programs that they start. A program that a
# test kills writes no counts. Requires the LLVM tools of the toolchain: rustup component add llvm-tools
# usage: bash scripts/coverage.sh [ARGUMENT OF cargo test...]
# Without arguments: the test command of the README. Prints a table of files and writes the lines of each file into
# target/coverage/lines.txt. scripts/kernel_coverage.py counts the branches of the kernels.
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
host=$(rustc -vV | sed -n 's/^host: //p')
tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
[ -x "$tools/llvm-cov" ] || { echo "error: no $tools/llvm-cov: rustup component add llvm-tools" >&2; exit 1; }

out=$(realpath "${CARGO_TARGET_DIR:-target}")/coverage
mkdir -p "$out"
rm -f "$out"/*.profraw
export RUSTFLAGS=-Cinstrument-coverage CARGO_TARGET_DIR=$out
# one file for each program: every process adds its counts to it
export LLVM_PROFILE_FILE=$out/%m.profraw
[ $# -gt 0 ] || set -- --workspace --features faults --locked
cargo test --no-run --message-format=json "$@" > "$out/programs.json"
status=0
cargo test "$@" || status=$?

"$tools/llvm-profdata" merge --sparse "$out"/*.profraw -o "$out/counts.profdata"
objects=()
while read -r program; do objects+=(--object "$program"); done < <(
    grep -o '"executable":"[^"]*"' "$out/programs.json" | cut -d'"' -f4 | sort -u)
options=(--instr-profile "$out/counts.profdata" --ignore-filename-regex '/(registry/src|rustc|rustlib|target)/' "${objects[@]}")
"$tools/llvm-cov" show "${options[@]}" > "$out/lines.txt"
"$tools/llvm-cov" report "${options[@]}"
exit $status
