"""The shell samples of the documentation: blocks with commands after ``$``, and what they print."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .code_blocks import DOCS

README = DOCS.parent / "README.md"
PAGES = (README, *sorted(DOCS.rglob("*.md")))
ELLIPSIS = "…"
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_SHELLS = ("", "bash", "sh", "shell", "console", "text")
_CELLS = re.compile("[│┃]")
_CLUSTER_ID = re.compile(r"(?<=^Cluster )[\w-]{22}(?= is )")


class Sample(NamedTuple):
    command: str
    printed: list[str]
    """The lines that it prints, by the page."""


def blocks(page: Path) -> list[str]:
    """Return the code blocks of a page that are not of a programming language."""
    return shell_blocks(page.read_text(encoding="utf-8"))


def shell_blocks(text: str) -> list[str]:
    # All blocks are matched, so that the end of another one is not taken for a beginning.
    return [block for language, block in _BLOCK.findall(text) if language in _SHELLS]


def samples_of_section(page: Path, title: str) -> list[Sample]:
    """Return the samples below a heading, up to the next heading, in their order."""
    section = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = [one for one in section if one.startswith(f"{title}\n")]
    return samples_of(text)


def samples_of(text: str) -> list[Sample]:
    """Return the samples in a text, in their order."""
    samples: list[Sample] = []
    for block in shell_blocks(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                samples.append(Sample(line[2:], []))
            elif samples:
                samples[-1].printed.append(line)
    return samples


def missing_lines(expected: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the lines of the page that a command did not print.

    Numbers may differ, and the order of lines. Of a table, the heading and the first column count, and of a
    line that ends with … its beginning.
    """
    left = [_comparable(line) for line in printed]
    missing: list[str] = []
    for line in map(_comparable, expected):
        if line in ("", ELLIPSIS):
            continue
        if line.endswith(ELLIPSIS):
            beginning = line.removesuffix(ELLIPSIS)
            if not any(each.startswith(beginning) for each in left):
                missing.append(line)
        elif line not in left:
            missing.append(line)
        elif not line.startswith("row "):
            left.remove(line)
    return missing


def _comparable(line: str) -> str:
    """Return what must be equal: the words of a line, or of a table's row its first cell."""
    text = re.sub(r"\b[0-9a-f]{16,}\b", "#", line.strip())
    text = _CLUSTER_ID.sub("#", text)
    text = re.sub(r"\d[\d,.]*(?:e[+-]?\d+)?", "#", text)
    if text.startswith("┃"):
        return "heading " + " | ".join(cell.strip() for cell in _CELLS.split(text) if cell.strip())
    if text.startswith("│"):
        return "row " + next(cell.strip() for cell in _CELLS.split(text) if cell.strip())
    return "" if text[:1] in "┏┡├└╇" else " ".join(text.split())
