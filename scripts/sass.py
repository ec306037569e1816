#!/usr/bin/env python3
"""Prints what the machine code of each kernel in a cubin needs and how many loads its loops have in flight.

usage: python3 scripts/sass.py ARCHITECTURE CUBIN [--write]    sm_80 and sm_90a are compared with the floors

Columns: threads per block, registers per thread, static shared memory and local memory in bytes, blocks per SM that
registers, threads and static shared memory allow. Then for each innermost loop that reads global memory, in the order of
the code: the largest number of loads in flight at once, and instructions per byte that a thread loads. A load is in
flight from its issue to the first instruction that names its register; copies to shared memory (LDGSTS) count as in
flight throughout the loop. Bulk copies (UTMALDG) are not counted: one instruction copies up to 16 KiB.

Fails if a kernel uses local memory (a spill), or if it is below its line in kernels/floors.txt: fewer blocks per SM,
fewer loads in flight in a loop, or another number of loops. --write replaces the lines of the architecture by what was
found. Requires cuobjdump of CUDA_HOME (scripts/nvcc.sh).
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FLOORS = os.path.join(ROOT, "kernels", "floors.txt")
HEAD = """# Floors of scripts/sass.py: architecture, kernel, blocks per SM, loads in flight in each loop that reads global memory.
# A change that falls below one fails. After a change on purpose: bash scripts/kernels.sh --write 80 90a
"""
CHECKED = ("80", "90a")  # architectures with floors
REGISTERS = 65536  # per SM
RESERVED = 1024  # bytes of shared memory per block that the system uses
# Threads, blocks and bytes of shared memory per SM, from the CUDA C++ programming guide, "Compute capabilities".
LIMITS = {
    "80": (2048, 32, 164 << 10), "86": (1536, 16, 100 << 10), "89": (1536, 24, 100 << 10),
    "90a": (2048, 32, 228 << 10), "100": (2048, 32, 228 << 10), "120": (1536, 24, 100 << 10),
}


def dump(cubin, *flags):
    """The output of cuobjdump, which finds nvdisasm on PATH."""
    tools = os.path.join(os.environ["CUDA_HOME"], "bin")
    env = dict(os.environ, PATH=tools + os.pathsep + os.environ["PATH"])
    return subprocess.run([os.path.join(tools, "cuobjdump"), *flags, cubin], env=env, check=True,
                          stdout=subprocess.PIPE, text=True).stdout


def resources(arch, cubin):
    """Kernel -> (threads, registers, static shared memory, local memory). From sm_90 on, the compiler counts the
    RESERVED bytes of shared memory."""
    reserved = RESERVED if int(arch.strip("a")) >= 90 else 0
    usage = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", dump(cubin, "-res-usage"))
    sections = dump(cubin, "-elf").split("\n.nv.info.")[1:]
    threads = {}
    for section in sections:
        found = re.search(r"EIATTR_MAX_THREADS\s+Format:\s+\w+\s+Value:\s+0x([0-9a-f]+)", section)
        threads[section.split("\n", 1)[0].strip()] = int(found.group(1), 16) if found else 1024
    return {name: (threads[name], int(regs), int(shared) - reserved, int(stack) + int(local))
            for name, regs, stack, shared, local in usage}


def blocks_per_sm(arch, threads, registers, shared):
    max_threads, max_blocks, max_shared = LIMITS[arch]
    per_warp = -(-registers * 32 // 256) * 256
    warps = -(-threads // 32)
    by_registers = REGISTERS // per_warp // warps
    by_shared = max_shared // (shared + RESERVED)
    return min(max_blocks, max_threads // threads, by_registers, by_shared)


def kernels(sass):
    """(name, [(address, instruction)]) of each function."""
    for part in sass.split("Function : ")[1:]:
        name, body = part.split("\n", 1)
        code = re.findall(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(.*?);", body, re.M)
        yield name.strip(), [(int(address, 16), text) for address, text in code]


def innermost_loops(code):
    """Instructions of each loop without an inner loop: from the target of a backward branch to the branch."""
    at = {address: i for i, (address, _) in enumerate(code)}
    spans = set()
    for i, (address, text) in enumerate(code):
        target = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)
        if target and int(target.group(1), 16) < address:
            spans.add((at[int(target.group(1), 16)], i))
    for first, last in sorted(spans):
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in spans):
            yield [text for _, text in code[first:last + 1]]


def width(text):
    """Bytes of a load."""
    size = re.search(r"LDG\S*?\.(128|64|U16|S16|U8|S8)\b", text)
    return {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}[size.group(1)] if size else 4


def loads_in_flight(loop):
    """(most loads in flight, bytes loaded per iteration). Two iterations are read, for loads that one issues for the
    next."""
    waiting, most, copies, loaded = {}, 0, 0, 0
    for text in loop:
        copies += "LDGSTS" in text
        loaded += 16 if "LDGSTS" in text else width(text) if re.search(r"\bLDG\.", text) else 0
    for text in loop + loop:
        names = set(re.findall(r"\bR\d+\b", text))
        for first in [first for first, registers in waiting.items() if registers & names]:
            del waiting[first]
        load = re.search(r"\bLDG\.\S+ (?:P\d, )?R(\d+)\b", text)
        if load:
            first = int(load.group(1))
            waiting[first] = {f"R{first + i}" for i in range(-(-width(text) // 4))}
            most = max(most, len(waiting))
    return most + copies, loaded


def read_floors():
    if not os.path.exists(FLOORS):
        return {}
    lines = [line.split() for line in open(FLOORS) if not line.startswith("#")]
    return {(arch, name): [int(x) for x in numbers] for arch, name, *numbers in lines}


def write_floors(floors):
    with open(FLOORS, "w") as out:
        out.write(HEAD)
        for (arch, name), numbers in sorted(floors.items(), key=lambda line: (int(line[0][0].strip("a")), line[0][1])):
            out.write(f"{arch:<4} {name:<32} {' '.join(map(str, numbers))}\n")


def below(name, found, floor):
    """What is wrong with a kernel, or nothing."""
    if floor is None:
        return f"{name} has no line in kernels/floors.txt"
    if len(found) != len(floor):
        return f"{name}: expected {len(floor) - 1} loops that read global memory, found {len(found) - 1}"
    for i, (got, want) in enumerate(zip(found, floor)):
        if got < want:
            what = "blocks per SM" if i == 0 else f"loads in flight in loop {i}"
            return f"{name}: expected at least {want} {what}, found {got}"
    return None


def main():
    arch, cubin, *flags = sys.argv[1:] if len(sys.argv) > 2 else sys.exit(__doc__)
    if arch not in LIMITS or flags not in ([], ["--write"]) or (flags and arch not in CHECKED):
        sys.exit(f"error: expected an architecture of {', '.join(LIMITS)}; --write only for {', '.join(CHECKED)}")
    floors, write = read_floors(), bool(flags)
    checked = arch in CHECKED and not write
    usage, found, errors = resources(arch, cubin), {}, []
    print(f"\nsm_{arch}\n{'kernel':<30} threads regs shared local blocks/SM  loads in flight (instructions per byte)")
    for name, code in sorted(kernels(dump(cubin, "-sass"))):
        threads, registers, shared, local = usage[name]
        blocks = blocks_per_sm(arch, threads, registers, shared)
        loops = [(loop, *loads_in_flight(loop)) for loop in innermost_loops(code)]
        loops = [(flight, len(loop) / loaded) for loop, flight, loaded in loops if loaded]
        shown = "  ".join(f"{flight} ({per_byte:.1f})" for flight, per_byte in loops)
        print(f"{name:<30} {threads:>7} {registers:>4} {shared:>6} {local:>5} {blocks:>9}  {shown}".rstrip())
        found[arch, name] = [blocks, *(flight for flight, _ in loops)]
        errors += [f"{name} uses {local} bytes of local memory"] if local else []
        problem = below(name, found[arch, name], floors.get((arch, name))) if checked else None
        errors += [problem] if problem else []
    if not found:
        errors.append(f"{cubin} has no kernel")
    if checked:
        gone = sorted(name for of, name in floors if of == arch and (of, name) not in found)
        errors += [f"{name} of kernels/floors.txt is not in the cubin" for name in gone]
    for error in errors:
        print(f"error: sm_{arch}: {error}", file=sys.stderr)
    if write and not errors:
        write_floors({**{key: line for key, line in floors.items() if key[0] != arch}, **found})
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
