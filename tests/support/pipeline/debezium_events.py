"""Events that Debezium wrote, kept in files, and what they make of tables, without Spark."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nilometer.pipeline.changes.change_events import Change, LeftOut, decode_change
from nilometer.pipeline.changes.changed_rows import Emptied, versions_of
from nilometer.pipeline.tables.values import RejectedValue

FOLDER = Path(__file__).resolve().parents[2] / "unit" / "pipeline" / "debezium_events"


@dataclass(frozen=True)
class Event:
    topic: str
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def spark_headers(self) -> list[dict[str, Any]]:
        return [{"key": name, "value": value} for name, value in self.headers]


def names() -> list[str]:
    return sorted(path.name.removesuffix(".jsonl.xz") for path in FOLDER.glob("*.jsonl.xz"))


def events(name: str, *topics: str) -> list[Event]:
    """Return the recorded events, of all topics or of those whose names end with one of ``topics``."""

    def encoded(text: str | None) -> bytes | None:
        return None if text is None else text.encode()

    with lzma.open(FOLDER / f"{name}.jsonl.xz", "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [
        Event(
            one["topic"],
            one["offset"],
            one["timestamp"],
            encoded(one["key"]),
            encoded(one["value"]),
            [(key, encoded(value)) for key, value in one["headers"]],
        )
        for one in found
        if not topics or one["topic"].endswith(topics)
    ]


def decoded(given: Iterable[Event]) -> tuple[list[Change], Counter[str]]:
    """Return the changes, and what else there was, by its reason."""
    changes: list[Change] = []
    others: Counter[str] = Counter()
    for one in given:
        try:
            changes.append(decode_change(one.key, one.value, one.spark_headers, one.timestamp * 1000))
        except (LeftOut, RejectedValue) as error:
            others[str(error)] += 1
    return changes, others


def rows_of(changes: Sequence[Change]) -> dict[str, dict[str, Any]]:
    """Return the present rows of a table by their key; values are as in JSON."""
    rows = [one for one in changes if one.key is not None]
    emptied = [Emptied(one.lsn, one.seq, one.at_us) for one in changes if one.key is None]
    outcome = versions_of([], rows, emptied)
    assert not outcome.rejected
    newest = [one for one in outcome.versions if one.newest and not one.deleted]
    return {one.key: json.loads(one.row) for one in newest if one.row is not None}
