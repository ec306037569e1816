#!/usr/bin/env python3
"""Opens a file of `xtrain report` in headless Chromium and checks that its curves are drawn.

    python3 scripts/open_report.py REPORT.html [--screenshot FILE.png] [--dark] [--size 1280x1800]

The page's script counts the curves with a length and, with #selftest, moves the pointer to the middle of every chart.
This program reads both from the resulting document. Exit code 69: there is no Chromium.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--hide-scrollbars", "--disable-dev-shm-usage",
]


def chromium(page, *flags):
    """Runs Chromium with an empty profile. Returns its standard output."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        print("open_report.py: there is no Chromium", file=sys.stderr)
        sys.exit(69)
    with tempfile.TemporaryDirectory() as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", *flags, page]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"error: {program} failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--screenshot", type=Path)
    parser.add_argument("--dark", action="store_true", help="render the page with the dark colors")
    parser.add_argument("--size", default="1280x1800")
    args = parser.parse_args()
    page = args.report.resolve().as_uri()
    if args.screenshot:
        look = ["--blink-settings=preferredColorScheme=0"] if args.dark else []
        size = args.size.replace("x", ",")
        chromium(page, f"--screenshot={args.screenshot.resolve()}", f"--window-size={size}", *look)
    source = args.report.read_text()
    want = source.count('class="line"')
    document = chromium(page + "#selftest", "--dump-dom", "--window-size=1280,1800")
    root = re.search(r"<html[^>]*>", document)[0]
    drawn = int((re.search(r'data-drawn="(\d+)"', root) or [0, "-1"])[1])
    hover = (re.search(r'data-hover="([^"]*)"', root) or ["", ""])[1].split(";")
    charts = source.count('<figure class="chart"')
    # A curve of one point has no length.
    flat = len(re.findall(r'data-points="[01]"', source))
    if not want - flat <= drawn <= want or drawn == 0:
        sys.exit(f"error: {args.report}: expected {want} curves, {flat} of them shorter than two points; {drawn} are drawn")
    if len(hover) != charts or not all(re.fullmatch(r"step \d+", text) for text in hover):
        sys.exit(f"error: {args.report}: expected a step in each of {charts} charts under the pointer, found {hover}")
    print(f"{args.report}: {drawn} curves in {charts} charts are drawn, and show their values under the pointer")


if __name__ == "__main__":
    main()
