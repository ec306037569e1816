"""A control: the exact sums of configs/grpo.toml, with the rewards of each batch in random order.

    xtrain grpo -c configs/grpo.toml --set grpo.score_duplicates=true \\
      --reward 'python3 examples/rewards/shuffled.py'

A run with this reward must not learn. xtrain writes a batch at once, so a pause of 30 ms ends it.
"""

import json
import os
import random
import select
import sys

PAUSE = 0.03
rng = random.Random(0)


def reward(line):
    a, b = line["prompt"].rstrip("=").split("+")
    return float(line["completion"].strip().split("\n")[0].strip() == f"{int(a) + int(b):03}")


def reply(batch):
    rewards = [reward(line) for line in batch]
    rng.shuffle(rewards)
    lines = (json.dumps({"id": line["id"], "reward": value}) for line, value in zip(batch, rewards))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


batch, rest = [], b""
while True:
    ready, _, _ = select.select([0], [], [], PAUSE if batch else None)
    if not ready:
        reply(batch)
        batch = []
        continue
    data = os.read(0, 1 << 20)
    if not data:
        break
    *lines, rest = (rest + data).split(b"\n")
    batch += map(json.loads, lines)
