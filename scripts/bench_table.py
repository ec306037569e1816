#!/usr/bin/env python3
"""Writes the table at the top of docs/bench.md from the records in docs/bench/*.json.

    python3 scripts/bench_table.py            rewrites the table in docs/bench.md
    python3 scripts/bench_table.py --check    fails if the table or a recorded ratio does not match the records

A record holds one comparison: workload, dtype, threads, peer and its version, the figures of both programs, their
ratios, date, commit and command. `samples` holds raw samples, or null where they were not kept; `kept` says which
figures exist. Raw samples are milliseconds, one list per round, as tests/peers/bench.py --json writes them; medians are
then computed from them. A record in tok/s with raw samples also holds `tokens_per_sample`. Where both programs have one
median for each round, --check recomputes the ratios from them.
Standard library only.
"""

import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "bench.md"
BEGIN = "<!-- The table below is generated: python3 scripts/bench_table.py -->"
END = "<!-- End of the generated table. -->"
REQUIRED = (
    "workload dtype threads peer peer_version peer_mode unit xtrain peer_figures ratio_by_medians ratio_by_least host date "
    "commit commit_is kept command"
).split()


def records():
    """All records, with the name of their machine, in the order of the files."""
    found = []
    for path in sorted((ROOT / "docs" / "bench").glob("*.json"), key=lambda p: (p.stem != "xeon-amx", p.stem)):
        data = json.loads(path.read_text())
        for number, row in enumerate(data["rows"], 1):
            where = f"{path.relative_to(ROOT)}, row {number}"
            missing = [key for key in REQUIRED if key not in row]
            if missing:
                sys.exit(f"error: {where}: missing keys: {', '.join(missing)}")
            found.append({**row, "machine": data["short"], "where": where})
    return found


def span(values, digits=2):
    """`1.2` or `1.2 to 1.4`; a dash for nothing."""
    if values is None:
        return "-"
    values = values if isinstance(values, list) else [values]
    low, high = (f"{v:.{digits}f}".rstrip("0").rstrip(".") for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def per_round(row, side, of):
    """`of` (a median or a minimum of milliseconds) for each round of raw samples, in the unit of the row."""
    values = [of(samples) for samples in row[side]["samples"]]
    return values if row["unit"] == "ms" else [1e3 * row["tokens_per_sample"] / ms for ms in values]


def medians(row, side):
    """The median of each round: of the raw samples if they were kept, otherwise as recorded. None: not recorded."""
    return per_round(row, side, statistics.median) if row[side].get("samples") else row[side].get("medians")


def middle(row, side):
    """The median of the medians; of two, their mean. Means where no median was recorded."""
    return statistics.median(medians(row, side) or row[side]["means"])


def figures(row):
    """The medians over the rounds, of xtrain and of the peer."""
    mine, theirs = (middle(row, side) for side in ("xtrain", "peer_figures"))
    digits = 0 if row["unit"] != "ms" or min(mine, theirs) >= 100 else 1 if min(mine, theirs) >= 10 else 2
    return f"{mine:,.{digits}f} / {theirs:,.{digits}f} {row['unit']}"


def ratio(row):
    text = span(row["ratio_by_medians"])
    return f"**{text}**" + (" (slower)" if min(row["ratio_by_medians"]) < 1 else "")


def check(row):
    """Recomputes the ratios of every round, and compares them with the recorded ones."""
    sides = ("xtrain", "peer_figures")
    compare(row, "ratio_by_medians", "medians", *(medians(row, side) for side in sides))
    if all(row[side].get("samples") for side in sides):
        compare(row, "ratio_by_least", "least samples", *(per_round(row, side, min) for side in sides))


def compare(row, key, what, a, b):
    recorded = row[key]
    if not a or not b or not recorded or not len(a) == len(b) == len(recorded):
        return
    for mine, theirs, want in zip(a, b, recorded):
        got = theirs / mine if row["unit"] == "ms" else mine / theirs
        # figures and ratios were rounded separately when they were recorded
        if abs(got / want - 1) > 0.03:
            sys.exit(f"error: {row['where']}: {key} {want} is recorded, the {what} give {got:.3f}")


def table():
    lines = [
        "| machine | workload | peer | times as fast, by medians | by the least | xtrain / peer | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in records():
        check(row)
        workload = f"{row['workload']}; {row['dtype']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"
        peer = f"{row['peer']} {row['peer_version']}, {row['peer_mode']}"
        measured = f"{row['date']}, host {row['host']}, `{row['commit']}`".replace("host not recorded, ", "")
        cells = [row["machine"], workload, peer, ratio(row), span(row["ratio_by_least"]), figures(row), measured]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    text = PAGE.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"error: {PAGE.relative_to(ROOT)} must hold each of these lines once:\n  {BEGIN}\n  {END}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    new = f"{before}{BEGIN}\n{table()}\n\n{END}{after}"
    if sys.argv[1:] == ["--check"]:
        if new != text:
            sys.exit("error: the table in docs/bench.md is not what docs/bench/*.json gives: python3 scripts/bench_table.py")
        print(f"docs/bench.md: the table matches {len(records())} records")
    else:
        PAGE.write_text(new)


if __name__ == "__main__":
    main()
