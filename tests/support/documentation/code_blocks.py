"""The code blocks of a page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.(?:py|ini))\n")


def code_blocks(page: str, language: str) -> list[str]:
    """Return the blocks of ``docs/<page>`` in this language, in their order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [block for found, block in _BLOCK.findall(text) if found == language]


def files_of(page: str) -> dict[str, str]:
    """Return the blocks that begin with a file's name in a comment, by that name."""
    text = (DOCS / page).read_text(encoding="utf-8")
    named = [(_FILE.match(block), block) for _, block in _BLOCK.findall(text)]
    return {match[1]: block for match, block in named if match is not None}
