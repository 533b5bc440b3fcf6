"""The parts of pages that are made from the code: between ``<!-- table: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PART = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_parts(page: str, parts: Mapping[str, str]) -> str:
    """Return the text of a page with its parts replaced. Raises KeyError for a part that is not given.

    Raises ValueError if the page lacks one of the given parts.
    """
    missing = set(parts) - {name for _, name, _ in _PART.findall(page)}
    if missing:
        raise ValueError(f"the page has no place for {', '.join(sorted(missing))}")
    return _PART.sub(lambda found: f"{found[1]}{parts[found[2]]}{found[3]}", page)


def cell(text: str) -> str:
    """Return a text as it may stand in a cell of a table in Markdown."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
