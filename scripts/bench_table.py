#!/usr/bin/env python3
"""Writes the table at the top of docs/bench.md from the records in docs/bench/*.json.

    python3 scripts/bench_table.py            rewrites the table in docs/bench.md
    python3 scripts/bench_table.py --check    fails if the table or a recorded ratio does not match the records

A record holds one comparison: workload, dtype, threads, peer and its version, the figures of both programs, their
ratios, date, commit and command. `samples` holds raw samples, or null where they were not kept; `kept` says which
figures exist. Where both programs have one median for each round, --check recomputes the ratios from them.
Standard library only.
"""

import json
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


def figures(row, side):
    values = row[side].get("medians") or row[side].get("means")
    return f"{span(values)} {row['unit']}"


def ratio(row):
    text = span(row["ratio_by_medians"])
    return f"**{text}**" + (" (slower)" if min(row["ratio_by_medians"]) < 1 else "")


def check(row):
    """Recomputes the ratios of every round from the medians, and compares them with the recorded ones."""
    a, b = row["xtrain"].get("medians"), row["peer_figures"].get("medians")
    recorded = row["ratio_by_medians"]
    if not a or not b or not len(a) == len(b) == len(recorded):
        return
    for mine, theirs, want in zip(a, b, recorded):
        got = theirs / mine if row["unit"] == "ms" else mine / theirs
        # medians and ratios were rounded separately when they were recorded
        if abs(got / want - 1) > 0.03:
            sys.exit(f"error: {row['where']}: ratio {want} is recorded, the medians give {got:.3f}")


def table():
    lines = [
        "| machine | workload | dtype | threads | peer | times as fast, by medians | by the least | xtrain | peer | host | date | commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in records():
        check(row)
        peer = f"{row['peer']} {row['peer_version']}, {row['peer_mode']}"
        cells = [row["machine"], row["workload"], row["dtype"], row["threads"], peer, ratio(row), span(row["ratio_by_least"])]
        cells += [figures(row, "xtrain"), figures(row, "peer_figures"), row["host"], row["date"], f"`{row['commit']}`"]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
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
