#!/usr/bin/env bash
# Checks the sources of kernels/: each file compiles on its own (it includes what it uses), and clang-format with
# kernels/.clang-format changes nothing. clang-format comes from PyPI at a pinned version.
# usage: bash scripts/kernel-style.sh [--fix]    --fix: formats the files instead of checking them
# exit status: 0 passed, 1 failed, 69 clang-format cannot be installed
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
version=20.1.8
mapfile -t sources < <(git ls-files 'kernels/*.cu' 'kernels/*.cuh' 'kernels/emu/*')
case "${1:-}" in
    "" | --fix) ;;
    *) echo "error: unknown argument $1: expected --fix" >&2; exit 2 ;;
esac

# Compiles one file alone, with the emulator's half of xt.cuh and the flags of build/emulator.rs. -w: a header that is
# compiled as a main file warns about its #pragma once.
alone() {
    local flags=(-x c++ -std=c++17 -fsyntax-only -ffp-contract=off -w -I kernels -DXTEMU_LIST=kernel_list)
    [ "$(uname -m)" != x86_64 ] || flags+=(-mfma -mavx2)
    "${CXX:-c++}" "${flags[@]}" "$1" || { echo "error: $1 does not compile on its own" >&2; return 1; }
}
export -f alone
if [ "${1:-}" != --fix ]; then
    printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -c 'alone {}'
    echo "${#sources[@]} kernel sources compile on their own"
fi

venv=${XTRAIN_CLANG_FORMAT:-${TMPDIR:-/tmp}/xtrain-clang-format-$version}
if [ ! -x "$venv/bin/clang-format" ]; then
    if ! { python3 -m venv "$venv" && timeout 120 "$venv/bin/pip" install -q "clang-format==$version"; } >&2; then
        echo "clang-format $version cannot be installed" >&2
        exit 69
    fi
fi
"$venv/bin/clang-format" --version
if [ "${1:-}" = --fix ]; then
    "$venv/bin/clang-format" -i "${sources[@]}"
else
    "$venv/bin/clang-format" --dry-run -Werror "${sources[@]}"
fi
