#!/usr/bin/env python3
"""Runs unmodified TRL reward functions as a reward program of xtrain.

    xtrain grpo --reward 'python3 examples/rewards/trl.py examples/rewards/trl_functions.py exact_match digits_only' ...

The first argument is a Python file, the others are its functions. A function is called as TRL calls it, with the
keyword arguments `prompts`, `completions`, `completion_ids`, and every column of the prompts' file, each a list with
one item per completion. It returns a list of numbers or None. For a conversation, a prompt is a list of messages and a completion
is `[{"role": "assistant", "content": TEXT}]`.

One call gets all completions that have arrived and have the same columns; the size of such a batch is not fixed.
`trainer_state`, `log_extra` and `log_metric` are not passed. What a function prints goes to standard error.
"""

import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys

# keys of a line that are not columns of the prompts' file
FIELDS = {
    "id",
    "prompt_index",
    "completion_index",
    "prompt",
    "completion",
    "prompt_ids",
    "completion_ids",
    "finish_reason",
    "truncated",
    "turn",
    "turn_text",
    "completion_mask",
    "can_append",
}


def load(path, names):
    spec = importlib.util.spec_from_file_location("reward_functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: getattr(module, name) for name in names}


def batches(file):
    """Yields lists of all complete lines that are available, at least one."""
    rest = b""
    while chunk := os.read(file, 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            # one array is parsed faster than its lines one by one
            yield json.loads(b"[" + b",".join(lines) + b"]")


def by_columns(rows):
    """Splits a batch into lists of rows with the same columns."""
    groups = {}
    for row in rows:
        groups.setdefault(frozenset(row.keys() - FIELDS), []).append(row)
    return groups.items()


def call(functions, columns, rows):
    """Returns one dictionary of rewards per row."""
    chat = "messages" in columns
    arguments = {name: [row[name] for row in rows] for name in columns - {"messages"}}
    arguments["prompts"] = [row["messages"] if chat else row["prompt"] for row in rows]
    arguments["completions"] = [
        [{"role": "assistant", "content": row["completion"]}] if chat else row["completion"] for row in rows
    ]
    arguments["completion_ids"] = [row["completion_ids"] for row in rows]
    rewards = [{} for _ in rows]
    for name, function in functions.items():
        values = function(**arguments)
        if inspect.isawaitable(values):
            values = asyncio.run(values)
        values = list(values)
        if len(values) != len(rows):
            raise ValueError(f"{name}: expected {len(rows)} rewards, found {len(values)}")
        for reward, value in zip(rewards, values):
            # as TRL does, NaN means that there is no reward
            reward[name] = None if value is None or math.isnan(value) else float(value)
    return rewards


def encoded(batch):
    """The replies as one line each, encoded by one call. Names of functions have no brackets."""
    return json.dumps(batch)[1:-1].replace("}}, {", "}}\n{") + "\n"


def main():
    if len(sys.argv) < 3:
        sys.exit("usage: trl.py FILE FUNCTION...")
    # replies have the original standard output to themselves
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    functions = load(sys.argv[1], sys.argv[2:])
    for batch in batches(0):
        for columns, rows in by_columns(batch):
            rewards = call(functions, columns, rows)
            replies.write(encoded([{"id": row["id"], "rewards": each} for row, each in zip(rows, rewards)]))
        replies.flush()


if __name__ == "__main__":
    main()
