"""The tables of docs/metrics.md, made from the families that the code declares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from nilometer.metrics import Family

from .code_blocks import DOCS

PAGE = DOCS / "metrics.md"
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table_of(families: Iterable[Family]) -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.name}` | {family.kind} | {labels} | {family.help} |")
    return "\n".join(lines) + "\n"


def with_tables(page: str, tables: Mapping[str, Iterable[Family]]) -> str:
    """Return the text of the page with each table replaced. Raises KeyError for a table that is not there."""
    return _TABLE.sub(lambda found: found[1] + table_of(tables[found[2]]) + found[3], page)
