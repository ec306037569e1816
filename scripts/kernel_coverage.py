#!/usr/bin/env python3
"""Counts the branches of kernels/*.cu that the gates of xtrain-tensor take on the emulator.

usage: python3 scripts/kernel_coverage.py [--keep]    --keep: reads the counts of the last run instead of running again

The kernels are compiled without optimization and with gcov's counters. A branch is a direction of a condition; it is
counted for each kernel or template instance of a dtype, so that f32 and bf16 are separate where they share a line. A
branch that no gate takes is an error unless kernels/unreachable.txt lists it with a reason; an entry of that list
that fits no such branch is an error, too.
"""
import collections
import glob
import gzip
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = os.path.join(ROOT, "kernels")
ALLOWED = os.path.join(KERNELS, "unreachable.txt")
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "kernel-coverage")
# The gates of single operations and of launches, with one of the four thread schedules. The checked emulator is
# compiled separately and is not counted.
FILTERS = ["gpu::", "gates::tensor_core", "gates::wgmma", "gates::filters", "ops::device_sampler", "ops::packing"]
SKIPPED = ["no_kernel_has", "no_invalid_access", "at_random", "backwards", "far_ahead", "reads_keys_and_values_once"]


def run():
    """Builds the tests with counters, runs the gates, and returns the directory with the counts."""
    env = dict(os.environ, CARGO_TARGET_DIR=TARGET, XTRAIN_KERNEL_COVERAGE="1")
    # the kernels are what is measured: the rest is built fast
    fast = ["--config", "profile.test.package.xtrain-tensor.opt-level=1"]
    build = ["cargo", "test", "-p", "xtrain-tensor", "--features", "emu", "--lib", "--locked", *fast]
    built = subprocess.run(build + ["--no-run", "--message-format=json"], cwd=ROOT, env=env, check=True,
                           stdout=subprocess.PIPE, text=True).stdout
    tests = [m["executable"] for m in map(json.loads, built.splitlines()) if m.get("executable")]
    if len(tests) != 1:
        sys.exit(f"error: expected one test program, found {tests}")
    for old in glob.glob(os.path.join(TARGET, "**", "*-kernels.gcda"), recursive=True):
        os.remove(old)
    skip = [arg for name in SKIPPED for arg in ("--skip", name)]
    subprocess.run(tests + FILTERS + skip, cwd=os.path.join(ROOT, "xtrain-tensor"), env=env, check=True)


def counts():
    """The counts of the last run: the object of gcov's JSON."""
    files = glob.glob(os.path.join(TARGET, "**", "*-kernels.gcda"), recursive=True)
    if len(files) != 1:
        sys.exit(f"error: expected the counts of one run in {TARGET}, found {files}")
    text = subprocess.run([os.environ.get("GCOV", "gcov"), "--json-format", "--stdout", "-b", "-c", files[0]],
                          check=True, stdout=subprocess.PIPE).stdout
    text = gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text
    return json.loads(text)


def dtype_of(function):
    """bf16, f32 or nothing: the dtype in the name of a kernel or in the arguments of a template instance."""
    name = function.split("(")[0] + " " + (re.search(r"\[with .*\]", function) or [""])[0]
    if "bf16" in name or "bf16" in function:
        return "bf16"
    return "f32" if "f32" in name or "float" in function else ""


def branches(report):
    """(file, line, dtype) -> for each branch, the number of times it was taken in any instance; and the functions."""
    taken, functions = {}, collections.Counter()
    for entry in report["files"]:
        path = os.path.abspath(os.path.join(report["current_working_directory"], entry["file"]))
        if os.path.dirname(path) != KERNELS or os.path.basename(path) in ("xt.cuh", "all.cu"):
            continue
        names = {f["name"]: f["demangled_name"] for f in entry["functions"]}
        for f in entry["functions"]:
            functions[(os.path.basename(path), f["demangled_name"])] += f["execution_count"]
        for line in entry["lines"]:
            found = [b["count"] for b in line["branches"] if not b["throw"]]
            if not found:
                continue
            dtype = dtype_of(names.get(line.get("function_name"), ""))
            # instances of one line can have different conditions: `if (CONSTANT && x)` has one less
            key = (os.path.basename(path), line["line_number"], dtype, len(found))
            sums = taken.setdefault(key, [0] * len(found))
            taken[key] = [a + b for a, b in zip(sums, found)]
    return taken, functions


def allowed():
    """The listed branches: (file, text of the line) -> reason."""
    entries = {}
    with open(ALLOWED, encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                file, text, reason = (part.strip() for part in line.split("\t"))
                entries[(file, text)] = reason
    return entries


def main():
    if "--keep" not in sys.argv[1:]:
        run()
    taken, functions = branches(counts())
    sources = {}
    for file in {key[0] for key in taken}:
        with open(os.path.join(KERNELS, file), encoding="utf-8") as text:
            sources[file] = text.read().splitlines()
    listed, used, missed = allowed(), set(), 0
    for (file, line, dtype, _), found in sorted(taken.items()):
        if 0 not in found:
            continue
        text = sources[file][line - 1].strip()
        if (file, text) in listed:
            used.add((file, text))
            continue
        missed += 1
        untaken = ", ".join(str(i) for i, n in enumerate(found) if n == 0)
        print(f"kernels/{file}:{line}: {dtype or 'both dtypes'}: branches {untaken} of {len(found)} not taken: {text}")
    for (file, name), n in sorted(functions.items()):
        if n == 0 and (file, name) not in listed:
            missed += 1
            print(f"kernels/{file}: never called: {name}")
        elif n == 0:
            used.add((file, name))
    for file, text in sorted(set(listed) - used):
        missed += 1
        print(f"kernels/unreachable.txt: no branch that is never taken fits: {file}\t{text}")
    total = sum(len(found) for found in taken.values())
    print(f"{total} branches of {len(sources)} files, {len(used)} entries of kernels/unreachable.txt, {missed} errors")
    sys.exit(missed != 0)


if __name__ == "__main__":
    main()
