"""A control: the exact sums of configs/grpo.toml, with the reward of each completion replaced by that of a random one.

    xtrain grpo -c configs/grpo.toml --set grpo.score_duplicates=true \\
      --reward 'python3 examples/rewards/shuffled.py'

A run with this reward must not learn. Lines arrive while other completions are still generated, and the program does
not know the last line of a batch. So it replies with a reward of the last 1024 completions, drawn at random.
"""

import collections
import json
import random
import sys

pool = collections.deque(maxlen=1024)
rng = random.Random(0)


def reward(line):
    a, b = line["prompt"].rstrip("=").split("+")
    return float(line["completion"].strip().split("\n")[0].strip() == f"{int(a) + int(b):03}")


for line in sys.stdin:
    row = json.loads(line)
    pool.append(reward(row))
    print(json.dumps({"id": row["id"], "reward": rng.choice(pool)}), flush=True)
