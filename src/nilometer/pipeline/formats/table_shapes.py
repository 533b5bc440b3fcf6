"""Definitions for JSON objects and for separated values of unknown columns. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from nilometer.pipeline.formats.readers import cells_of, json_object
from nilometer.pipeline.formats.time_shapes import time_format_of

COLUMNS_MAX: Final = 60
LOOKED_AT: Final = 200
SHARE_MIN: Final = 0.5
"""The share of the lines that must be of this kind."""
LEVEL_NAMES: Final = ("level", "severity", "loglevel", "lvl", "levelname")
_CELL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_. -]{0,39}")


def json_definition(lines: Sequence[str], name: str) -> str | None:
    """Return a definition with all the paths that most objects have; None if few lines are objects."""
    looked_at = lines[:LOOKED_AT]
    objects = [
        one for one in (json_object(line, line.encode("utf-8", "replace")) for line in looked_at) if one
    ]
    if len(objects) < SHARE_MIN * len(looked_at) or not objects:
        return None
    values: dict[str, list[str]] = {}
    for one in objects:
        for path, value in _scalars(one):
            values.setdefault(path, []).append(value)
    columns: dict[str, str] = {}
    for path in list(values)[:COLUMNS_MAX]:
        columns.setdefault(_column(path), path)
    rows = ["[[format]]", f"name = {json.dumps(name)}"]
    rows += _roles({column: values[path] for column, path in columns.items()})
    rows += ["", "[format.json]", *(f"{column} = {json.dumps(path)}" for column, path in columns.items())]
    return "\n".join(rows) + "\n"


def _scalars(parsed: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    for key, value in parsed.items():
        path = prefix + key
        if isinstance(value, dict) and depth < 2:
            yield from _scalars(cast("dict[str, Any]", value), f"{path}.", depth + 1)
        elif isinstance(value, str | int | float):
            yield path, str(value)


def separated_definition(lines: Sequence[str], name: str) -> str | None:
    """Return a definition for lines under a header of column names; None if there is none."""
    looked_at = list(lines[:LOOKED_AT])
    if len(looked_at) < 2:
        return None
    for separator in (",", "\t", ";", "|"):
        header = cells_of(looked_at[0], separator)
        if header is None or len(header) < 2 or not _is_header(header):
            continue
        rows = [cells for cells in (cells_of(line, separator) for line in looked_at[1:]) if cells]
        rows = [cells for cells in rows if len(cells) == len(header)]
        if len(rows) < SHARE_MIN * len(looked_at):
            continue
        names = [_column(cell.strip()) for cell in header]
        if names != [cell.strip() for cell in header] or len(set(names)) < len(names):
            continue
        values = {column: [row[number] for row in rows] for number, column in enumerate(names)}
        written = ["[[format]]", f"name = {json.dumps(name)}", f"separator = {json.dumps(separator)}"]
        return "\n".join([*written, f"columns = {json.dumps(names)}", *_roles(values)]) + "\n"
    return None


def _is_header(cells: Sequence[str]) -> bool:
    distinct = Counter(cell.strip() for cell in cells)
    return len(distinct) == len(cells) and all(_CELL_NAME.fullmatch(cell) for cell in distinct)


def _roles(values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the settings for the time and the level, as far as the values of the columns show them."""
    rows: list[str] = []
    for column, texts in values.items():
        form = time_format_of(list(texts))
        if form is not None:
            rows += [f"time = {json.dumps(column)}", f"time_format = {json.dumps(form)}"]
            break
    level = next((column for column in values if column.lower() in LEVEL_NAMES), None)
    return [*rows, *([f"level = {json.dumps(level)}"] if level else [])]


def _column(path: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]", "_", path.removeprefix("@"))[:40] or "_"
    return name if not name[0].isdigit() else f"_{name}"[:40]
