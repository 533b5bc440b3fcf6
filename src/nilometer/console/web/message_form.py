"""What a user enters on the page of messages: which records to show, and a record to write. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from nilometer.console.reading.record_reader import COUNT_MAX, NEWEST, OFFSET, OLDEST, TIME, RecordQuery
from nilometer.console.views.json_filter import BadFilter, JsonFilter, json_filter
from nilometer.console.views.records import AUTO, FORMATS

STARTS = (NEWEST, OLDEST, OFFSET, TIME)
COUNT = 50
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


class BadEntry(Exception):
    """An entry of a form cannot be used; the message says which, and what it must be."""


@dataclass(frozen=True, slots=True)
class Entered:
    """The entries of the form, as text, to be shown again."""

    partition: str = ""
    start: str = NEWEST
    at: str = ""
    key: str = ""
    count: str = str(COUNT)
    form: str = AUTO
    committed: bool = False
    value: str = ""
    """A condition on the JSON value."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Entered:
        return cls(
            given.get("partition", "").strip(),
            given.get("start", NEWEST),
            given.get("at", "").strip(),
            given.get("key", ""),
            given.get("count", "").strip() or str(COUNT),
            given.get("form", AUTO),
            given.get("committed") == "1",
            given.get("value", "").strip(),
        )


@dataclass(frozen=True, slots=True)
class NewRecord:
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def record_query(topic: str, entered: Entered) -> RecordQuery:
    """Raises BadEntry."""
    if entered.start not in STARTS:
        raise BadEntry(f"Start must be one of {', '.join(STARTS)}.")
    if entered.form not in FORMATS:
        raise BadEntry(f"Show as must be one of {', '.join(FORMATS)}.")
    partition = partition_of(entered.partition)
    if entered.start == OFFSET and partition is None:
        raise BadEntry("An offset belongs to a partition: choose one.")
    at = 0
    if entered.start == OFFSET:
        at = _number(entered.at, "The offset", INT64_MAX)
    elif entered.start == TIME:
        at = _time(entered.at)
    return RecordQuery(
        topic,
        partition,
        entered.start,
        at,
        entered.key.encode() if entered.key else None,
        min(max(1, _number(entered.count, "The number of records", 10**6)), COUNT_MAX),
        entered.committed,
        _value_filter(entered.value) if entered.value else None,
    )


def _value_filter(text: str) -> JsonFilter:
    try:
        return json_filter(text)
    except BadFilter as error:
        raise BadEntry(str(error)) from None


def new_record(given: Mapping[str, str]) -> NewRecord:
    """Return the record of the form. Headers are lines of the form ``name: value``. Raises BadEntry."""
    headers: list[tuple[str, bytes | None]] = []
    for line in given.get("headers", "").splitlines():
        if not line.strip():
            continue
        name, separator, value = line.partition(":")
        if not separator or not name.strip():
            raise BadEntry(f"A header is a line of the form name: value, not {line!r}.")
        headers.append((name.strip(), value.strip().encode()))
    value = None if given.get("tombstone") == "1" else _text(given.get("value", ""))
    key = given.get("key", "")
    if value is None and not key:
        raise BadEntry("A tombstone needs a key.")
    return NewRecord(
        partition_of(given.get("partition", "").strip()), _text(key) if key else None, value, tuple(headers)
    )


def partition_of(text: str) -> int | None:
    """Raises BadEntry."""
    return None if not text else _number(text, "The partition", INT32_MAX)


def positions_text(positions: Mapping[int, int]) -> str:
    """Return the positions of a tail as one word: ``0:17,1:23``."""
    return ",".join(f"{partition}:{offset}" for partition, offset in positions.items())


def positions_of(text: str) -> dict[int, int]:
    """Return the positions that :func:`positions_text` wrote. Raises BadEntry."""
    found: dict[int, int] = {}
    for part in text.split(",") if text else ():
        partition, _, offset = part.partition(":")
        found[_number(partition, "A partition", INT32_MAX)] = _number(offset, "An offset", INT64_MAX)
    return found


def _text(entered: str) -> bytes:
    """Return an entry as a browser sends it, with the line ends that a user sees."""
    return entered.replace("\r\n", "\n").encode()


def _number(text: str, what: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise BadEntry(f"{what} must be a whole number from 0 to {most:,}, not {text!r}.")
    return int(text)


def _time(text: str) -> int:
    """Return milliseconds since the epoch: those, or an ISO 8601 time; without a zone it is UTC."""
    if text.isascii() and text.isdigit():
        return _number(text, "The time in ms", INT64_MAX)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadEntry(f"The time must be as in 2026-01-31 12:00:00 (UTC), or in ms, not {text!r}.") from None
    return max(0, round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000))
