#!/usr/bin/env python3
"""Rewards a completion whose first line equals the column `answer` of its prompt.

    xtrain grpo --reward 'python3 examples/rewards/exact.py' ...

xtrain writes one JSON object per completion to standard input and reads one JSON object per completion from standard
output. Print anything else to standard error.
"""

import json
import sys

for line in sys.stdin:
    row = json.loads(line)
    lines = row["completion"].strip().splitlines()
    correct = bool(lines) and lines[0].strip() == row["answer"].strip()
    rewards = {"exact": float(correct), "short": -len(row["completion_ids"]) / 100}
    print(json.dumps({"id": row["id"], "rewards": rewards}), flush=True)
