"""Sphinx configuration of the book. How to build it: CONTRIBUTING.md, "Documentation"."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# pages of the book whose text lives elsewhere in the repository
OUTSIDE = {
    "architecture": "ARCHITECTURE.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "kernels": "kernels/README.md",
    "security": "SECURITY.md",
}

project = "xtrain"
author = "the xtrain authors"
copyright = "the xtrain authors, MIT or Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 4
# with -W these are errors: a missing page, a missing anchor, a page that no table of contents lists
nitpicky = True
highlight_language = "none"
html_theme = "furo"
html_title = "xtrain"
html_copy_source = False
html_show_sourcelink = False


def read_from_outside(app, page, source):
    """Replaces the text of a page in OUTSIDE, and points its links to pages of the book."""
    if page not in OUTSIDE:
        return
    file = ROOT / OUTSIDE[page]
    app.env.note_dependency(str(file), docname=page)

    def link(match):
        name, _, anchor = match[2].partition("#")
        target = (file.parent / name).resolve()
        inside = {ROOT / path: f"{book}.md" for book, path in OUTSIDE.items()}.get(target)
        if inside is None and target.is_relative_to(ROOT / "docs"):
            inside = str(target.relative_to(ROOT / "docs"))
        return f"[{match[1]}]({inside or match[2]}{'#' + anchor if anchor else ''})"

    source[0] = re.sub(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)", link, file.read_text())


def setup(app):
    app.connect("source-read", read_from_outside)
