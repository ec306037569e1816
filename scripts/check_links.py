#!/usr/bin/env python3
"""Checks the relative links of every Markdown file in the repository: the file exists, and so does the anchor.

    python3 scripts/check_links.py

Links are resolved as GitHub does. The book's own links are checked a second time when it is built. Standard library only.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def prose(path):
    """The lines of a page outside of code blocks, without inline code."""
    fence = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence is None:
            fence = mark[1]
        elif mark and mark[1].startswith(fence):
            fence = None
        elif fence is None:
            yield number, re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), line), line


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for _, _, line in prose(path):
        heading = re.match(r"#{1,6} (.*)", line)
        if heading:
            text = re.sub(r"[^\w\- ]", "", heading[1].strip().lower()).replace(" ", "-")
            repeated = sum(1 for anchor in found if re.fullmatch(re.escape(text) + r"(-\d+)?", anchor))
            found.add(f"{text}-{repeated}" if repeated else text)
    return found


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    broken, links = [], 0
    for page in pages:
        for number, line, _ in prose(page):
            for match in LINK.finditer(line):
                target = match[1] or match[2]
                if re.match(r"[a-z]+:", target):
                    continue
                links += 1
                name, _, anchor = target.partition("#")
                file = (page.parent / name).resolve() if name else page
                where = f"{page.relative_to(ROOT)}:{number}: {target}"
                if not file.exists() or not file.is_relative_to(ROOT):
                    broken.append(f"{where}: no such file")
                elif anchor and (file.suffix != ".md" or anchor not in anchors(file)):
                    broken.append(f"{where}: no such anchor")
    if broken:
        sys.exit("\n".join(["error: broken links", *broken]))
    print(f"{links} relative links in {len(pages)} pages")


if __name__ == "__main__":
    main()
