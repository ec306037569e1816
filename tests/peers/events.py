"""Reads the TensorBoard events of a run with the package tensorboard, and compares each value with `metrics.jsonl`. Run
as `python tests/peers/events.py RUN`; it needs `pip install tensorboard==2.21.0`.

The values of events are f32, those of `metrics.jsonl` have more digits. Fails if a value is missing, has another step or
differs after rounding, and if a record has a wrong checksum.
"""
import argparse
import json
import struct
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def f32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def logged(run):
    """(key, step) -> value of metrics.jsonl."""
    values = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        line = json.loads(line)
        for key, value in line.items():
            if key != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
                values[key, line["step"]] = f32(value)
    return values


def shown(run):
    """(tag, step) -> value as TensorBoard reads it."""
    events = EventAccumulator(str(run / "logs"), size_guidance={"scalars": 0}).Reload()
    return {(tag, e.step): f32(e.value) for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    run = arguments.parse_args().run
    want, found = logged(run), shown(run)
    for place in sorted(want.keys() | found.keys()):
        if place not in want or place not in found or abs(want[place] - found[place]) > 2e-6 * abs(want[place]):
            key, step = place
            expected = want.get(place, "no value")
            sys.exit(f"error: {run}: {key} of step {step}: expected {expected}, found {found.get(place, 'no value')}")
    if not want:
        sys.exit(f"error: {run}: metrics.jsonl has no values")
    print(f"{run}: TensorBoard reads the {len(want)} values of metrics.jsonl")


if __name__ == "__main__":
    main()
