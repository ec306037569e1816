#!/usr/bin/env python3
"""Draws the pictures of the README and the guide, light and dark, from recorded runs and from docs/bench/*.json.

    python3 scripts/pictures.py                       draws docs/images/*.svg from the recordings in docs/images/*.json
    python3 scripts/pictures.py --check               fails if a picture is not what the recordings give
    python3 scripts/pictures.py --record PROGRAM      first records `PROGRAM quickstart` in a pseudo-terminal, and trains
                                                      configs/shakespeare.toml (about two minutes on two cores);
                                                      cache.json, grpo.json and scale.json are recorded by hand, with
                                                      the commands that they name
    python3 scripts/pictures.py --watch PROGRAM RUN   records the screen of `PROGRAM watch RUN` (needs the package pyte)

Standard library only; recording needs Unix.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import bench_table

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SANS = "-apple-system,BlinkMacSystemFont,'Segoe UI',Inter,Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,'SF Mono',Menlo,Consolas,'JetBrains Mono','DejaVu Sans Mono',monospace"
THEMES = {
    "light": {
        "back": "#ffffff", "bar": "#f6f8fa", "edge": "#d1d9e0", "grid": "#e6eaee", "text": "#1f2328", "soft": "#59636e",
        "mine": "#0969da", "peer": "#c2c9d1", "band": "#0969da", "val": "#bc4c00", "good": "#1a7f37", "bad": "#bc4c00",
    },
    "dark": {
        "back": "#0d1117", "bar": "#161b22", "edge": "#3d444d", "grid": "#21262d", "text": "#f0f6fc", "soft": "#9198a1",
        "mine": "#4493f8", "peer": "#484f58", "band": "#4493f8", "val": "#f0883e", "good": "#3fb950", "bad": "#f0883e",
    },
}
COLUMNS = 118


# ---- recording

def record(program):
    """Records both runs into docs/images/*.json."""
    program = str(Path(program).resolve())
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as home:
        events = recorded_terminal([program, "quickstart"], home)
        save("quickstart", {"command": "xtrain quickstart", "version": version, "columns": COLUMNS, "events": events})
        run = Path(home) / "shakespeare"
        command = "train -c configs/shakespeare.toml --data examples/data/tinyshakespeare.txt".split()
        subprocess.run([program, *command, "--run", str(run)], cwd=ROOT, check=True)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        every = 10
        bins = [rows[i : i + every] for i in range(0, len(rows), every)]
        train = []
        for part in bins:
            losses = [row["loss"] for row in part]
            train.append([part[-1]["step"], *(round(x, 3) for x in (sum(losses) / len(losses), min(losses), max(losses)))])
        val = [[row["step"], round(row["val_loss"], 4)] for row in rows if "val_loss" in row]
        save("shakespeare", {"command": "xtrain " + " ".join(command), "version": version, "train": train, "val": val})


def save(name, data):
    text = json.dumps(data)
    # one event or point a line
    text = text.replace("], [", "],\n[").replace(': [[', ": [\n[")
    (IMAGES / f"{name}.json").write_text(text + "\n")


def recorded_terminal(command, directory):
    """Runs a command in a pseudo-terminal. Returns [seconds, line number, text] for each version of a line."""
    import fcntl
    import pty
    import struct
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execvpe(command[0], command, {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    start, events, line, text, pending = time.monotonic(), [], 0, "", ""
    while True:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not chunk:
            break
        pending += chunk.decode("utf-8", "ignore")
        now = round(time.monotonic() - start, 2)
        cut = pending.rfind("\x1b")
        whole = pending if cut < 0 or re.match(r"\x1b\[[0-9;]*[A-Za-z]", pending[cut:]) else pending[:cut]
        pending = pending[len(whole) :]
        for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r\n|\r|\n|[^\x1b\r\n]+", whole):
            if token == "\x1b[2K":
                text = ""
            elif token.startswith("\x1b"):
                continue
            elif token == "\r":
                text = ""
            elif token in ("\r\n", "\n"):
                events.append([now, line, text.rstrip()])
                line, text = line + 1, ""
            else:
                text += token
                events.append([now, line, text.rstrip()])
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        last = next((text for _, _, text in reversed(events) if text), "")
        sys.exit(f"error: {' '.join(command)} failed: {last}")
    return thinned(events)


def record_watch(program, run):
    """Records one screen of `PROGRAM watch RUN` into docs/images/watch.json: rows of [text, color]."""
    import fcntl
    import pty
    import select
    import struct
    import termios

    import pyte

    columns, rows = 108, 28
    pid, terminal = pty.fork()
    if pid == 0:
        time.sleep(0.3)  # until the size is set
        os.execvpe(program, [program, "watch", run], {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    shown = pyte.Screen(columns, rows)
    stream, end = pyte.ByteStream(shown), time.monotonic() + 2.5
    while time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            stream.feed(os.read(terminal, 1 << 16))
    # the sixteen colors of a terminal, as pyte reports them
    names = {"default": "text", "00cdcd": "mine", "cdcd00": "val", "00cd00": "good", "cd0000": "bad", "cd00cd": "bad"}
    lines = []
    for y in range(rows):
        runs = []
        for x in range(columns):
            cell = shown.buffer[y][x]
            color = names.get(cell.fg, "soft")
            if runs and runs[-1][1] == color:
                runs[-1][0] += cell.data
            else:
                runs.append([cell.data, color])
        lines.append(runs)
    os.write(terminal, b"q")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    recording = {"command": f"xtrain watch {run}", "version": version, "columns": columns, "lines": lines}
    (IMAGES / "watch.json").write_text(json.dumps(recording, ensure_ascii=False).replace("]], [[", "]],\n[[") + "\n")


def thinned(events):
    """Each line's last version, and of a progress bar at most one version a second."""
    kept, seen = [], {}
    for i, (at, line, text) in enumerate(events):
        nexts = [e for e in events[i + 1 : i + 4] if e[1] == line]
        last = not any(e[1] == line for e in events[i + 1 :])
        if not last and (not re.search(r"\] \d+/\d+ ", text) or at - seen.get(line, -9) < 1 or (nexts and nexts[0][0] == at)):
            continue
        seen[line] = at
        kept.append([at, line, text])
    return kept


# ---- drawing

class Svg:
    """An SVG that is written from top to bottom."""

    def __init__(self, width, height, title, theme):
        self.color = THEMES[theme]
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(title, True)}">',
            f"<title>{escape(title)}</title>",
        ]
        self.rect(0.5, 0.5, width - 1, height - 1, "back", 10, stroke="edge")

    def rect(self, x, y, w, h, fill, radius=0, **more):
        self.add("rect", x=x, y=y, width=w, height=h, rx=radius, fill=self.color[fill], **more)

    def line(self, x1, y1, x2, y2, stroke, **more):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, **more)

    def text(self, x, y, text, size=12, fill="text", anchor="start", weight=400, **more):
        self.add("text", escape(text), x=x, y=y, fill=self.color[fill], text_anchor=anchor, font_size=size, font_weight=weight,
                 font_family=SANS, **more)

    def add(self, tag, body=None, **attributes):
        if attributes.get("stroke") in self.color:
            attributes["stroke"] = self.color[attributes["stroke"]]
        listed = "".join(f' {k.replace("_", "-")}="{num(v)}"' for k, v in attributes.items() if v not in (None, 0) or k in ("x", "y"))
        self.parts.append(f"<{tag}{listed}/>" if body is None else f"<{tag}{listed}>{body}</{tag}>")

    def done(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def num(value):
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def loss(theme):
    """Training and validation loss of the Shakespeare recipe."""
    data = json.loads((IMAGES / "shakespeare.json").read_text())
    width, height, left, right, top, bottom = 440, 412, 44, 20, 70, 46
    svg = Svg(width, height, "Loss of a 0.79 M parameter model on Shakespeare", theme)
    svg.text(20, 32, "Training from scratch", 15, weight=600)
    svg.text(20, 50, "Shakespeare, 0.79 M parameters, f32: loss in nats per byte", 11.5, "soft")
    last = data["train"][-1][0]
    low, high = 1.25, 4.2

    def x(step):
        return left + (width - left - right) * step / last

    def y(value):
        return top + (height - top - bottom) * (1 - math.log(value / low) / math.log(high / low))

    for tick in (1.5, 2, 2.5, 3, 3.5, 4):
        svg.line(left, y(tick), width - right, y(tick), "grid")
        svg.text(left - 8, y(tick) + 4, f"{tick:g}", 11, "soft", "end")
    for tick in range(0, last + 1, 500):
        svg.text(x(tick), height - bottom + 18, f"{tick}", 11, "soft", "middle")
    svg.text((left + width - right) / 2, height - 10, "step", 11, "soft", "middle")

    svg.add("clipPath", f'<rect x="{left}" y="{top}" width="{width}" height="{height}"/>', id="c")
    band = [(x(s), y(b)) for s, _, _, b in data["train"]] + [(x(s), y(a)) for s, _, a, _ in reversed(data["train"])]
    svg.add("path", d=path(band) + "Z", fill=svg.color["band"], fill_opacity="0.18", clip_path="url(#c)")
    svg.add("path", d=path([(x(s), y(m)) for s, m, *_ in data["train"]]), fill="none", stroke="mine", stroke_width=1.8,
            stroke_linejoin="round", clip_path="url(#c)")
    svg.line(left, y(1.886), width - right, y(1.886), "soft", stroke_dasharray="4 4")
    svg.text(width - right, y(1.886) - 7, "nanoGPT, published validation loss: 1.886", 11, "soft", "end")
    svg.add("path", d=path([(x(s), y(v)) for s, v in data["val"]]), fill="none", stroke="val", stroke_width=1.8)
    for step, value in data["val"]:
        svg.add("circle", cx=x(step), cy=y(value), r=4, fill=svg.color["val"], stroke="back", stroke_width=1.5)
        if step > 500:
            svg.text(min(x(step), width - right), y(value) - 9, f"{value:.3f}", 11, "val", "end" if step == last else "middle", 600)
    # direct labels
    svg.add("circle", cx=width - right - 150, cy=y(3.25), r=4, fill=svg.color["val"])
    svg.text(width - right - 139, y(3.25) + 4, "validation loss", 12, "val", weight=600)
    svg.line(width - right - 157, y(3.75), width - right - 143, y(3.75), "mine", stroke_width=2.4)
    svg.text(width - right - 139, y(3.75) + 4, "training loss, mean of 10", 12, "mine", weight=600)
    return svg.done()


def grpo(theme):
    """Held-out reward of GRPO runs: three seeds on sums, and learning rates with a control."""
    data = json.loads((IMAGES / "grpo.json").read_text())
    svg = Svg(880, 372, "Held-out reward of xtrain grpo on sums: three seeds, learning rates, a control", theme)
    seeds = list(data["sums"].values())
    lines = [(run, 1, "mine", None) for run in seeds] + [(run, 2, "val", None) for run in seeds]
    panel = reward_panel(svg, 0, "It learns: seeds 0, 1, 2", "held-out reward of configs/grpo.toml", lines)
    svg.text(*panel(300, 0.56), "greedy", 12, "val", weight=600)
    svg.text(*panel(300, 0.47), "sampled at temperature 1", 12, "mine", weight=600)
    dashes = {"5e-5": "2 4", "2e-4": "5 4", "5e-4": None, "1e-3": "9 3", "2e-3": None, "5e-3": "5 4"}
    colors = {"5e-5": "soft", "2e-4": "soft", "5e-4": "mine", "1e-3": "good", "2e-3": "val", "5e-3": "bad"}
    lines = [(run, 1, colors[rate], dashes[rate]) for rate, run in data["rates"].items()]
    lines.append((data["control"], 1, "text", "1 3"))
    panel = reward_panel(svg, 440, "Learning rates, and a control", "held-out reward at temperature 1, seed 0; the rate decays to 0", lines)
    for step, value, text, color in [
        (232, 0.615, "5e-5", "soft"), (130, 0.725, "2e-4", "soft"), (55, 0.93, "5e-4", "mine"), (290, 1.02, "1e-3", "good"),
        (205, 0.5, "2e-3 dips", "val"), (205, 0.14, "5e-3 collapses to 0", "bad"), (205, 0.075, "control: rewards at random", "text"),
    ]:
        svg.text(*panel(step, value), text, 11.5, color, weight=600)
    return svg.done()


def reward_panel(svg, left, title, caption, lines):
    """Draws `lines` of (points, index of the value, color, dashes) from 0 to 1. Returns the place of (step, value)."""
    x0, x1, y0, y1 = left + 48, left + 420, 326, 74
    last = max(run[-1][0] for run, *_ in lines)

    def at(step, value):
        return x0 + (x1 - x0) * step / last, y0 + (y1 - y0) * value

    svg.text(left + 20, 32, title, 15, weight=600)
    svg.text(left + 20, 50, caption, 11.5, "soft")
    for tick in (0, 0.25, 0.5, 0.75, 1):
        svg.line(x0, at(0, tick)[1], x1, at(0, tick)[1], "grid")
        svg.text(x0 - 8, at(0, tick)[1] + 4, f"{tick:g}", 11, "soft", "end")
    for tick in range(0, last + 1, last // 4):
        svg.text(at(tick, 0)[0], y0 + 18, f"{tick}", 11, "soft", "middle")
    svg.text((x0 + x1) / 2, y0 + 36, "step", 11, "soft", "middle")
    for run, index, color, dashes in lines:
        more = {"stroke_dasharray": dashes} if dashes else {}
        svg.add("path", d=path([at(row[0], row[index]) for row in run]), fill="none", stroke=color, stroke_width=1.8,
                stroke_linejoin="round", **more)
    return at


NETWORKS = [("good", "100 Gbit/s, 2 us"), ("mine", "10 Gbit/s, 20 us"), ("val", "1 Gbit/s, 50 us")]


def scale(theme):
    """The estimated efficiency of several processes, for two models and three networks."""
    data = json.loads((IMAGES / "scale.json").read_text())
    svg = Svg(880, 372, "Estimated efficiency of 1 to 4096 processes for two models and three networks", theme)
    for left, (preset, runs) in zip((0, 440), data["presets"].items()):
        step = min(run["compute_ms"]["gradient"] for run in runs)
        efficiency_panel(svg, left, f"{preset}: efficiency, estimated", f"4 windows of 256 tokens per process: {step:.0f} ms", runs)
    return svg.done()


def efficiency_panel(svg, left, title, caption, runs):
    """Draws the efficiency of each network, slowest first, from 1 process to 4096. A ring marks where it stops paying."""
    x0, x1, y0, y1 = left + 48, left + 420, 326, 74

    def at(processes, value):
        return x0 + (x1 - x0) * math.log2(processes) / 12, y0 + (y1 - y0) * value

    svg.text(left + 20, 32, title, 15, weight=600)
    svg.text(left + 20, 50, caption, 11.5, "soft")
    for tick in (0, 0.25, 0.5, 0.75, 1):
        svg.line(x0, at(1, tick)[1], x1, at(1, tick)[1], "grid")
        svg.text(x0 - 8, at(1, tick)[1] + 4, f"{tick:g}", 11, "soft", "end")
    for tick in (1, 4, 16, 64, 256, 1024, 4096):
        svg.text(at(tick, 0)[0], y0 + 18, f"{tick}", 11, "soft", "middle")
    svg.text((x0 + x1) / 2, y0 + 36, "processes", 11, "soft", "middle")
    for i, ((color, name), run) in enumerate(zip(NETWORKS, reversed(runs))):
        points = run["efficiency"]
        svg.add("path", d=path([at(*point) for point in points]), fill="none", stroke=color, stroke_width=1.8)
        # twice as many processes are less than 1.5 times as fast
        ends = (one for one, two in zip(points, points[1:]) if two[1] / one[1] < 0.75)
        for x, y in [at(*end) for end in ends][:1]:
            svg.add("circle", cx=x, cy=y, r=5, fill="none", stroke=color, stroke_width=1.8)
        svg.text(x0 + 10, y0 - 48 + 18 * i, name, 11.5, color, weight=600)

# kinds of caches in the order of cache.json, and the fill of their bars
CACHES = [
    ("growing", "peer"), ("contiguous", "peer"), ("paged", "mine"), ("int8", "val"), ("sinks and a window", "val"),
    ("paged, layers offloaded", "mine"),
]


def cache(theme):
    """Caches under one budget: positions and speed by kind, and published claims next to measured values."""
    data = json.loads((IMAGES / "cache.json").read_text())
    svg = Svg(880, 372, "Kinds of KV caches in 8 MiB: positions, speed, and published claims next to measured values", theme)
    pages = data["pages"]
    kinds = pages["64"]["kinds"]
    svg.text(20, 32, "Kinds of caches in 8 MiB of keys and values", 15, weight=600)
    svg.text(20, 50, "4 sequences of 512 tokens; 0.79 M parameters, f32, pages of 64", 11.5, "soft")
    most, fastest = max(kind["positions"] or 0 for kind in kinds), min(kind["step_ms"] for kind in kinds)
    for at, ((name, color), kind) in enumerate(zip(CACHES, kinds)):
        top, first = 80 + 46 * at, 20
        svg.text(first, top, name, 11.5, weight=600)
        positions, rate = kind["positions"], 4e3 / kind["step_ms"]
        for row, share, label in [
            (top + 6, 1 if positions is None else positions / most, "any number" if positions is None else f"{positions:,} positions"),
            (top + 19, fastest / kind["step_ms"], f"{rate:,.0f} tok/s"),
        ]:
            svg.rect(first, row, 270 * share, 10, color, 2)
            svg.text(first + 270 * share + 7, row + 9, label, 11, "soft")
    left = 460
    svg.text(left, 32, "Published, and measured here", 15, weight=600)
    svg.text(left, 50, "pages of 64 (the default) and of 16", 11.5, "soft")
    columns = (left + 250, left + 325, left + 400)
    for x, head in zip(columns, ("published", "64", "16")):
        svg.text(x, 80, head, 11, "soft", "end")
    for at, (claim, published, measured) in enumerate(claims(pages)):
        y = 104 + 30 * at
        svg.line(left, y - 16, columns[-1], y - 16, "grid")
        svg.text(left, y, claim, 11.5)
        svg.text(columns[0], y, published, 11.5, "soft", "end")
        for x, (value, holds) in zip(columns[1:], measured):
            svg.text(x, y, value, 11.5, {True: "good", False: "bad", None: "text"}[holds], "end", 600)
    return svg.done()


def claims(pages):
    """(what, the published value, [(the measured one, whether it is as good) for pages of 64 and of 16])."""
    rows = [
        ("paged: waste", "< 4 %", lambda p, k: k[2]["waste"], lambda x: x < 0.04),
        ("prefix sharing saves", "40 to 60 %", lambda p, k: p["prefix_sharing_saves"], lambda x: x >= 0.4),
        ("int8: bytes of bf16", "50 %", lambda p, k: k[3]["bytes_per_token"] / p["bf16_bytes_per_token"], lambda x: x <= 0.5),
        ("int8: speed lost to paged", "12 %", lambda p, k: 1 - k[2]["step_ms"] / k[3]["step_ms"], lambda x: x <= 0.12),
        ("int8: perplexity", "< 0.3 %", lambda p, k: k[3]["perplexity"] / k[2]["perplexity"] - 1, lambda x: x < 0.003),
        ("sinks: memory", "constant", lambda p, k: None, None),
        ("offload: context of paged", "16 x", lambda p, k: k[5]["positions"] / k[2]["positions"], None),
        ("offload: speed lost to paged", "42 %", lambda p, k: 1 - k[2]["step_ms"] / k[5]["step_ms"], lambda x: x <= 0.42),
    ]
    for what, published, measure, holds in rows:
        measured = []
        for size in ("64", "16"):
            value = measure(pages[size], pages[size]["kinds"])
            shown = "constant" if value is None else f"{value:.1f} x" if published.endswith("x") else f"{100 * value:.{2 if 'perplexity' in what else 1}f} %"
            measured.append((shown, True if value is None else holds(value) if holds else None))
        yield what, published, measured


def path(points):
    return "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points)


# what the picture shows: title, then (machine, workload, dtype, words of the peer's mode) of its records
BARS = [
    ("Decoding, batch 1, f32", "EPYC Zen 5", "decode: model T, batch 1", "f32", ""),
    ("Decoding, batch 32, f32", "EPYC Zen 5", "decode: model T, batch 32", "f32", ""),
    ("Training step, 0.8 M parameters, bf16", "Xeon, AMX", "train: Shakespeare recipe, nanoGPT loop", "bf16", ""),
    ("Training step, 5.8 M parameters, bf16", "Xeon, AMX", "train: model T, 8 x 256 tokens", "bf16", "compile"),
    ("Training step, 5.8 M parameters, bf16", "EPYC Zen 5", "train: model T, 8 x 256 tokens", "bf16", "compile"),
]
MACHINES = {"EPYC Zen 5": "EPYC Zen 5", "Xeon, AMX": "Xeon with AMX"}


def speed(theme):
    """Speed next to other programs, as bars: the longer, the faster."""
    rows = bench_table.records()
    width, height = 440, 412
    svg = Svg(width, height, "Speed of xtrain next to PyTorch, llama.cpp and candle on the same cores", theme)
    svg.text(20, 32, "Speed next to other programs", 15, weight=600)
    svg.text(20, 50, "same cores, alternating; a longer bar is faster", 11.5, "soft")
    top, names, start, end = 76, 20, 126, 292
    for title, machine, workload, dtype, mode in BARS:
        found = [
            r for r in rows
            if r["machine"].startswith(machine) and r["workload"] == workload and r["dtype"] == dtype and mode in r["peer_mode"]
        ]
        if not found:
            sys.exit(f"error: no record in docs/bench for {title}, {machine}")
        bars = [("xtrain", found[0], "xtrain")]
        peers = [(r["peer"] + (", compiled" if mode else ""), r, "peer_figures") for r in found]
        bars += sorted(peers, key=lambda bar: -rate(bar[1], bar[2]))
        fastest = max(rate(row, side) for _, row, side in bars)
        svg.text(names, top, title, 11.5, weight=600)
        svg.text(width - 20, top, MACHINES[machine], 11, "soft", "end")
        top += 7
        for name, row, side in bars:
            mine = side == "xtrain"
            length = (end - start) * rate(row, side) / fastest
            svg.text(names, top + 10, name, 11, "text" if mine else "soft", weight=600 if mine else 400)
            svg.rect(start, top + 1, length, 10, "mine" if mine else "peer", 2)
            svg.text(start + length + 7, top + 10, label(row, side), 11, "text" if mine else "soft", weight=600 if mine else 400)
            top += 15
        top += 19
    return svg.done()


def rate(row, side):
    value = bench_table.middle(row, side)
    return 1 / value if row["unit"] == "ms" else value


def label(row, side):
    value, values = bench_table.middle(row, side), bench_table.medians(row, side) or row[side]["means"]
    if row["kept"].startswith("ratios") and side == "xtrain":  # these are the ends of a range
        return f"{min(values):,} to {max(values):,} {row['unit']}"
    return f"{value:.1f} ms" if row["unit"] == "ms" and value < 100 else f"{value:,.0f} {row['unit']}"


def terminal(theme):
    """The recording of the quickstart. It scrolls as a terminal does, and begins with its last screen.

    Without animation the last screen is all that is shown.
    """
    data = json.loads((IMAGES / "quickstart.json").read_text())
    size, step, advance, visible, pad, head = 12.5, 18, 7.5, 27, 20, 38
    width, height = int(COLUMNS * advance + 2 * pad), head + visible * step + 20
    svg = Svg(width, height, "xtrain quickstart: training, held-out sums, eight completions, and 0 differing bits", theme)
    color = svg.color
    shown, scroll, length = screen(data["events"])
    hold = 6
    total = length + hold
    css = [
        f"text{{font:{size}px {MONO};fill:{color['text']};white-space:pre;font-variant-ligatures:none}}",
        f".s{{fill:{color['soft']}}}.m{{fill:{color['mine']}}}.g{{fill:{color['good']};font-weight:600}}.b{{fill:{color['bad']}}}",
        ".h{opacity:0}",
        "@media (prefers-reduced-motion:no-preference){",
    ]

    def percent(at):
        return f"{100 * at / total:.2f}%"

    def animated(name, frames):
        css.append(f"#{name}{{animation:k{name} {total:g}s step-end -{length:g}s infinite}}@keyframes k{name}{{{frames}}}")

    body = []
    for n, (line, begin, end, text) in enumerate(shown):
        hidden = "" if end is None else ' class="h"'
        body.append(f'<text id="t{n}"{hidden} x="{pad}" y="{line * step}" xml:space="preserve">{styled(text, line == 0)}</text>')
        frames = ("0%{opacity:0}" if begin else "") + percent(begin) + "{opacity:1}"
        frames += percent(end) + "{opacity:0}" if end is not None else ""
        if begin or end is not None:
            animated(f"t{n}", frames)
    lines = max(line for line, *_ in shown)
    rest = -max(0, lines + 1 - visible) * step
    moves = "".join(f"{percent(at)}{{transform:translateY({-k * step}px)}}" for at, k in scroll(visible))
    animated("roll", moves)
    svg.parts.append("<style>" + "".join(css) + "}</style>")
    svg.parts.append(f'<path d="M.5 {head}V10.5a10 10 0 0 1 10-10h{width - 21}a10 10 0 0 1 10 10V{head}z" fill="{color["bar"]}" '
                     f'stroke="{color["edge"]}"/>')
    for i, dot in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        svg.add("circle", cx=pad + 4 + 20 * i, cy=head / 2, r=5.5, fill=dot)
    svg.parts.append(f'<text class="s" x="{width / 2}" y="{head / 2 + 4.5}" text-anchor="middle">xtrain quickstart</text>')
    svg.parts.append(f'<clipPath id="c"><rect x="0" y="{head + 7}" width="{width}" height="{height - head - 14}"/></clipPath>')
    svg.parts.append(f'<g clip-path="url(#c)"><g transform="translate(0 {head + step + 2})">')
    svg.parts.append(f'<g id="roll" transform="translate(0 {rest})">' + "\n".join(body) + "</g></g></g>")
    return svg.done()


# the ends of the strokes of a box character, in halves of a cell: left, right, up, down
STROKES = {"\u2500": "lr", "\u2501": "lr", "\u2502": "ud", "\u250c": "rd", "\u2510": "ld", "\u2514": "ru", "\u2518": "lu"}


def watch(theme):
    """One recorded screen of `xtrain watch`. Dots and boxes are drawn, because fonts differ in them."""
    data = json.loads((IMAGES / "watch.json").read_text())
    step, advance, pad, head = 17, 7.6, 16, 14
    width = int(data["columns"] * advance + 2 * pad)
    svg = Svg(width, head + len(data["lines"]) * step + 14, "xtrain watch: curves, progress, a sample and the time of each phase", theme)
    texts, paths = [], {}
    for row, runs in enumerate(data["lines"]):
        column, top = 0, head + row * step
        for text, color in runs:
            for at, char in enumerate(text):
                x, code = pad + (column + at) * advance, ord(char)
                middle, center = top + step / 2, x + advance / 2
                if 0x2800 <= code < 0x2900:
                    for bit, (dx, dy) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]):
                        if code >> bit & 1:
                            spot = f"M{x + advance * (0.25 + dx / 2):.1f} {top + step * (0.125 + dy / 4):.1f}h0"
                            paths.setdefault((color, 2.4), []).append(spot)
                elif char in STROKES:
                    ends = {"l": f"H{x:.1f}", "r": f"H{x + advance:.1f}", "u": f"V{top}", "d": f"V{top + step}"}
                    weight = 3 if char == "\u2501" else 1
                    for end in STROKES[char]:
                        paths.setdefault((color, weight), []).append(f"M{center:.1f} {middle:.1f}{ends[end]}")
                elif char == "\u2588":
                    paths.setdefault((color, 11), []).append(f"M{x:.1f} {middle:.1f}h{advance}")
            words = re.sub("[\u2500-\u259f\u2800-\u28ff]", " ", text)
            for word in re.finditer(r"\S+(?: \S+)*", words):
                x, length = pad + (column + word.start()) * advance, len(word[0]) * advance
                texts.append((x, top + step * 0.72, word[0], color, length))
            column += len(text)
    for (color, weight), strokes in paths.items():
        cap = "round" if weight == 2.4 else None
        svg.add("path", d="".join(strokes), fill="none", stroke=color, stroke_width=weight, stroke_linecap=cap)
    for x, y, text, color, length in texts:
        svg.add("text", escape(text), x=round(x, 1), y=round(y, 1), fill=svg.color[color], font_size=12.5, font_family=MONO,
                textLength=round(length, 1), lengthAdjust="spacingAndGlyphs")
    return svg.done()


def screen(events):
    """Versions of lines as (line, begin, end or None, text) in seconds of the picture, and how it scrolls."""
    first, pace = 1.2, 0.28
    shown = [(0, 0, None, "$ xtrain quickstart")]
    times = {}
    clock = first
    previous = 0.0
    laid = []
    for at, line, text in events:
        # long waits are shortened; lines that arrive at once follow each other quickly
        clock += max(min(at - previous, 1.2) * pace, 0.05)
        previous = at
        laid.append((line + 1, round(clock, 2), text[:COLUMNS]))
        times.setdefault(line + 1, round(clock, 2))
    if len(text) > COLUMNS:  # the last line wraps; no other is that long
        laid.append((line + 2, round(clock, 2), text[COLUMNS:]))
        times[line + 2] = round(clock, 2)
    for i, (line, begin, text) in enumerate(laid):
        end = next((b for other, b, _ in laid[i + 1 :] if other == line), None)
        if text or end is None:
            shown.append((line, begin, end, text))

    def scroll(visible):
        steps = [(0, 0)]
        for line in sorted(times):
            if line + 1 > visible:
                steps.append((times[line], line + 1 - visible))
        return steps

    return shown, scroll, round(clock, 2)


def styled(text, command):
    """The colours of a line of the terminal."""
    text = escape(text, False)
    if command:
        return '<tspan class="g">$</tspan>' + text[1:]
    text = re.sub(r"(\[)([=&gt;]+)", lambda m: f'{m[1]}<tspan class="m">{m[2]}</tspan>', text, count=1) if "] " in text else text
    text = re.sub(r"\b(0 differ)\b", r'<tspan class="g">\1</tspan>', text)
    text = re.sub(r"( +)(correct)$", r'\1<tspan class="g">\2</tspan>', text)
    text = re.sub(r"( +)(wrong)$", r'\1<tspan class="b">\2</tspan>', text)
    text = re.sub(r"^((?:-+ *)+)$", r'<tspan class="s">\1</tspan>', text)
    return re.sub(r"^((?:saved|sample at step|cache  ).*)$", r'<tspan class="s">\1</tspan>', text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="PROGRAM", help="a release build of xtrain")
    parser.add_argument("--watch", nargs=2, metavar=("PROGRAM", "RUN"))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    if args.watch:
        record_watch(*args.watch)
    if args.record:
        record(args.record)
    pictures = {
        "cache": cache, "grpo": grpo, "loss": loss, "scale": scale, "speed": speed, "terminal": terminal, "watch": watch,
    }
    for name, draw in pictures.items():
        for theme in THEMES:
            target, new = IMAGES / f"{name}-{theme}.svg", draw(theme)
            if len(new) > 60_000:
                sys.exit(f"error: {target.relative_to(ROOT)} has {len(new)} bytes, the limit is 60000")
            if not args.check:
                target.write_text(new)
            elif not target.exists() or target.read_text() != new:
                sys.exit(f"error: {target.relative_to(ROOT)} is not what the recordings give: python3 scripts/pictures.py")
    print(f"docs/images: {len(pictures) * len(THEMES)} pictures")


if __name__ == "__main__":
    main()
