"""How Sphinx makes the site: `make docs`.

Its source is the repository, so that the links between pages are the same here, in an editor and on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Nilometer"
copyright = "the authors of Nilometer"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "bench/results/*.md",
    "bench/results/growth/*.md",
]
exclude_patterns = [".*", "build", "src", "tests", "typings", "docs/vocabulary.txt"]

myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # commands.md has its entries two levels below its title
    "misc.highlighting_failure",  # samples leave out parts as …
]
nitpicky = True
highlight_language = "none"

html_theme = "furo"
html_title = "Nilometer"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False

_SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^- \[[^]]+\]\(([^):#]+)\.md\)", re.MULTILINE)


def navigation(index: str) -> str:
    """Return the tables of contents for the links that begin the items of each section of the index page."""
    tables: list[str] = []
    for title, text in _SECTION.findall(index):
        entries = "\n".join(_ENTRY.findall(text))
        if entries:
            tables.append(f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n")
    return "\n".join(tables)


def _add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] += "\n" + navigation(source[0])


def _add_entry_page(app: Sphinx, failure: Exception | None) -> None:
    """Let build/docs/index.html lead to the index page, which is in a folder as its source is."""
    if failure is None and app.builder.format == "html":
        target = f"{root_doc}.html"
        head = f'<!doctype html><title>Nilometer</title><meta http-equiv="refresh" content="0; url={target}">'
        page = f'{head}<a href="{target}">Nilometer</a>\n'
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _add_entry_page)
