#!/usr/bin/env python3
"""A calculator for completions with several turns. The reward is 1 for the correct answer.

    xtrain grpo --reward 'python3 examples/rewards/calculator.py' --set grpo.max_turns=4 ...

A turn that ends with `calc: FORMULA` gets the value of the formula as the next line. Any other turn is the answer: its
last line is compared with the column `answer` of the prompt. A formula consists of whole numbers, + - * and brackets.
"""

import ast
import json
import operator
import sys

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value(node):
    """Returns the value of a formula, or raises ValueError."""
    if isinstance(node, ast.Expression):
        return value(node.body)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("not a formula")


def calculate(formula):
    try:
        return str(value(ast.parse(formula.strip(), mode="eval")))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return "error"


def reply(row):
    lines = row["turn_text"].strip().splitlines()
    last = lines[-1].strip() if lines else ""
    if last.startswith("calc:") and row["can_append"]:
        return {"append": "\n" + calculate(last.removeprefix("calc:")[:100]) + "\n"}
    return {"reward": float(last == row["answer"])}


for line in sys.stdin:
    row = json.loads(line)
    print(json.dumps({"id": row["id"], **reply(row)}), flush=True)
