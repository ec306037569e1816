#!/usr/bin/env bash
# Cross-compiles xtrain for 64-bit ARM on x86-64 Debian and runs it under qemu-user. Requires apt but not root; the
# cross compiler is unpacked (0.7 GB) into .arm, which git ignores, or into $XTRAIN_ARM.
# usage: bash scripts/arm.sh [COMMAND]
#   check        compiles everything, tests included
#   gates        runs the gates that compare instruction sets, and the golden bits (the default: check, then gates)
#   bits         trains the same steps on the host and on ARM, and compares the files
#   cargo ARGS   any cargo command; its programs run under qemu: cargo test -p xtrain-tensor lanes
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
suite=trixie gcc=14 target=aarch64-unknown-linux-gnu
fail() { echo "error: $*" >&2; exit 1; }
need() { command -v "$1" > /dev/null || fail "scripts/arm.sh requires $1: $2"; }

[ "$(uname -sm)" = "Linux x86_64" ] ||
    fail "expected Linux on x86_64, found $(uname -sm); on ARM, run cargo test directly"
case "${1:-}" in
    "" | check | gates | bits | cargo) ;;
    *) fail "unknown command $1: expected check, gates, bits or cargo" ;;
esac
need cargo "install Rust"
need cc "install a C compiler, which links build scripts"
mkdir -p "${XTRAIN_ARM:-.arm}"
dir=$(cd "${XTRAIN_ARM:-.arm}" && pwd)
root=$dir/tree lib=$dir/tree/usr/lib/x86_64-linux-gnu

# apt with the mirror and proxies of this machine, but a different suite and a private state
private_apt() {
    "$@" -qq -o Dir::State="$dir/apt" -o Dir::State::status="$dir/apt/status" -o Dir::Cache="$dir/apt/cache" \
        -o Dir::Etc::sourcelist="$dir/apt/sources.list" -o Dir::Etc::sourceparts="$dir/apt/none" \
        -o Dir::Etc::preferences="$dir/apt/none/file" -o Dir::Etc::preferencesparts="$dir/apt/none" \
        -o APT::Architectures::=amd64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=false \
        -o APT::Sandbox::User="$(id -un)" -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
}

install() {
    need apt-get "run it on Debian"
    need dpkg-deb "run it on Debian"
    local mirror keys deb
    mirror=$(apt-get update --print-uris | sed -n "s,^'\(.*\)/dists/[^/]*/InRelease' .*,\1,p" |
        grep -v security | head -1)
    [ -n "$mirror" ] || fail "apt has no mirror: see apt-get update --print-uris"
    keys=$(dpkg -L debian-archive-keyring 2> /dev/null | grep -E 'debian-archive-keyring\.(gpg|pgp)$' | head -1)
    [ -n "$keys" ] || fail "the Debian archive keys are missing: install debian-archive-keyring"
    rm -rf "$dir/apt" "$root"
    mkdir -p "$root" "$dir"/apt/{none,lists/partial,cache/archives/partial}
    : > "$dir/apt/status"
    echo "deb [signed-by=$keys] $mirror $suite main" > "$dir/apt/sources.list"
    echo "unpacking an ARM compiler from $suite into $dir" >&2
    private_apt apt-get update || fail "the mirror $mirror has no suite $suite for amd64 and arm64"
    # with dependencies: programs that run on the host; without: the target libraries, which are only linked
    private_apt apt-get install --yes --download-only libstd-rust-web-dev binutils-aarch64-linux-gnu qemu-user
    (cd "$dir/apt/cache/archives" && private_apt apt-get download rustc-web \
        libstd-rust-web-dev:arm64 libc6-dev:arm64 "libgcc-$gcc-dev:arm64")
    for deb in "$dir"/apt/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$root" --exclude ./usr/share
    done
    find "$root/usr/bin" -name 'qemu-*' ! -name qemu-aarch64 -delete
    rm -rf "$dir/apt"
}

# Programs of the other suite run with that suite's loader and libraries.
wrappers() {
    local run="exec $lib/ld-linux-x86-64.so.2 --library-path $lib $root/usr/bin"
    local c=$root/usr/lib/aarch64-linux-gnu g=$root/usr/lib/gcc/aarch64-linux-gnu/$gcc
    printf '#!/bin/sh\n%s "$@"\n' "$run/rustc --sysroot $root/usr" > "$dir/rustc"
    printf '#!/bin/sh\n%s "$@" %s\n' \
        "$run/aarch64-linux-gnu-ld --sysroot=$root -L $c -L $g $c/crt1.o $c/crti.o $g/crtbeginT.o" \
        "--start-group -lgcc -lgcc_eh -lc --end-group $g/crtend.o $c/crtn.o" > "$dir/ld"
    chmod +x "$dir/rustc" "$dir/ld"
}

if [ ! -e "$dir/ready" ]; then
    install
    wrappers
    "$dir/rustc" --version || fail "the compiler in $dir does not run: remove the directory and try again"
    touch "$dir/ready"
fi

# runs cargo for ARM; programs are linked statically, so qemu needs no libraries
arm() {
    local name=AARCH64_UNKNOWN_LINUX_GNU
    local flags="-C target-feature=+crt-static -C relocation-model=static -C linker-flavor=ld"
    env RUSTC="$dir/rustc" CARGO_BUILD_TARGET=$target CARGO_TARGET_DIR="$PWD/target/arm" XTRAIN_NVCC=off \
        CARGO_TARGET_${name}_LINKER="$dir/ld" CARGO_TARGET_${name}_RUNNER="$root/usr/bin/qemu-aarch64" \
        CARGO_TARGET_${name}_RUSTFLAGS="$flags" CARGO_PROFILE_TEST_DEBUG=false \
        CARGO_PROFILE_TEST_OPT_LEVEL="${XTRAIN_ARM_OPT:-1}" cargo "$@"
}

check() { arm check --workspace --all-targets --locked; }

# The gates that compare instruction sets, and the golden bits of two other implementations. Tests that start the
# xtrain program itself are excluded, because the host cannot execute it without qemu.
gates() {
    arm test --locked -p xtrain-tensor -p xtrain-decode --lib
    arm test --locked -p xtrain --test gates -- golden families training:: \
        invariance::a_row_has_the_same_bits_in_any_batch_first_thousand
}

# Trains the same steps on the host and on ARM, f32 and bf16, and compares all files of the checkpoint.
bits() {
    local out dtype where
    out=$(mktemp -d)
    cargo build --release --locked
    arm build --profile test --locked
    for dtype in f32 bf16; do
        for where in host arm; do
            train "$where" --dtype "$dtype" --run "$out/$dtype-$where"
        done
        (cd "$out/$dtype-host" && find metrics.jsonl checkpoints -type f | sort | xargs sha256sum) | tee "$out/sums"
        (cd "$out/$dtype-arm" && sha256sum --quiet --check "$out/sums") || fail "the files differ on ARM"
    done
    rm -r "$out"
    echo "all files of both checkpoints are identical on the host and on ARM"
}

train() {
    local program=(target/release/xtrain)
    [ "$1" = host ] || program=("$root/usr/bin/qemu-aarch64" "target/arm/$target/debug/xtrain")
    "${program[@]}" train -c configs/shakespeare.toml --data examples/data/tinyshakespeare.txt \
        --set train.steps=3 --set train.warmup=1 --set train.sample_every=0 --set train.eval_every=0 \
        "${@:2}" > /dev/null
}

case "${1:-}" in
    "") check && gates ;;
    check | gates | bits) "$1" ;;
    cargo) shift && arm "$@" ;;
esac
