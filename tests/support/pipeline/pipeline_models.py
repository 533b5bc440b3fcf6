"""Drawn histories of topics, valid, odd and hostile, and models in plain Python of what comes of them.

A record is drawn with what it is: an event, or the fate of one that is none. So the models know nothing of
the decoders that they are compared with. They get the records batch by batch, as the checkpoint has them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

BASE = datetime(2024, 5, 1, 12, tzinfo=UTC)
SENT = BASE + timedelta(minutes=40)
"""The time stamp of all records."""
AHEAD = timedelta(hours=1)


@dataclass(frozen=True)
class Drawn:
    """A record's value and what it is: an event, or else its fate."""

    value: bytes | None
    event: dict[str, Any] | None = None
    fate: str = ""
    key: bytes | None = None
    far: dict[str, Any] | None = None
    """The event that it would be if its time were not too far ahead."""


def _json(event: dict[str, Any]) -> bytes:
    return json.dumps(event, default=_text).encode()


def _text(at: datetime) -> str:
    return at.isoformat()


def times() -> st.SearchStrategy[datetime]:
    """Times of events: most in order within minutes, some long before, some at the limit of what is taken."""
    minutes = st.one_of(st.integers(0, 20), st.integers(-90, 30), st.sampled_from([99, 100]))
    return st.builds(
        lambda minute, second: BASE + timedelta(minutes=minute, seconds=0 if minute == 100 else second),
        minutes,
        st.integers(0, 59),
    )


def drawn(event: st.SearchStrategy[dict[str, Any]], number: str) -> st.SearchStrategy[Drawn]:
    """Records of events that ``event`` draws, whose property ``number`` is a number."""

    def valid(one: dict[str, Any], how: str) -> Drawn:
        match how:
            case "mark":
                return Drawn(b"\xef\xbb\xbf" + _json(one), one)
            case "zone":
                at = one["at"].astimezone(tz=timezone_of(5.5))
                return Drawn(_json({**one, "at": at}), one)
            case "more":
                return Drawn(_json({"note": [1, {"x": None}], **one, "others": "x"}), one)
            case _:
                return Drawn(_json(one), one)

    def broken(one: dict[str, Any], how: str) -> Drawn:
        changed: dict[str, Any] = dict(one)
        match how:
            case "milliseconds":
                changed["at"] = int(one["at"].timestamp() * 1000)
            case "far":
                changed["at"] = datetime(2099, 1, 1, tzinfo=UTC)
            case "ahead":
                changed["at"] = SENT + AHEAD + timedelta(microseconds=1)
            case "zoneless":
                changed["at"] = one["at"].replace(tzinfo=None)
            case "nanoseconds":
                changed["at"] = "2024-05-01T12:00:59.9999999Z"
            case "text":
                changed[number] = "900"
            case "null":
                changed[number] = None
            case "missing":
                del changed["at"]
            case "case":
                changed[number.upper()] = changed.pop(number)
            case "infinite":
                changed[number] = float("inf")
            case _:
                changed[number] = 12345678901234567890123
        far = changed if how in ("far", "ahead") else None
        return Drawn(_json(changed), fate="rejected", far=far)

    ways = ("milliseconds", "far", "ahead", "zoneless", "nanoseconds", "text", "null", "missing", "case")
    hostile = st.sampled_from(
        [
            b"no json",
            b"[]",
            b"null",
            b'{"at": "2024-05-01T12:00:00Z"',
            b"\xff\xfe{",
            b'{"at": "\\ud800"}',
            b"{}",
        ]
    )
    return st.one_of(
        st.builds(valid, event, st.sampled_from(["plain"] * 6 + ["mark", "zone", "more"])),
        st.builds(valid, event, st.just("plain")),
        st.builds(broken, event, st.sampled_from([*ways, "infinite", "whole"])),
        st.builds(lambda value: Drawn(value, fate="rejected"), hostile),
        st.builds(lambda value: Drawn(value, fate="left out"), st.sampled_from([None, b"", b"  \n"])),
    )


def timezone_of(hours: float) -> Any:
    from datetime import timezone

    return timezone(timedelta(hours=hours))


NAMES = st.sampled_from(["a", "b"])
NUMBERS = st.one_of(st.integers(-50, 5_000), st.integers(0, 40).map(lambda one: one / 4))
MEASUREMENTS = st.fixed_dictionaries(
    {
        "value": NUMBERS,
        "at": times(),
        "service": NAMES,
        "metric": st.sampled_from(["latency_ms", "errors"]),
    }
)
ORDERS = st.fixed_dictionaries(
    {
        "amount": NUMBERS,
        "at": times(),
        "order": st.sampled_from([f"o{n}" for n in range(9)]),
        "customer": st.sampled_from(["c0", "c1", "stranger"]),
    }
)
PAYMENTS = st.fixed_dictionaries(
    {
        "amount": NUMBERS,
        "at": times(),
        "order": st.sampled_from([f"o{n}" for n in range(9)]),
        "payment": st.sampled_from([f"p{n}" for n in range(14)]),
    }
)


@dataclass
class Books:
    """The account that a model keeps, of one input."""

    read: int = 0
    became: Counter[str] = field(default_factory=Counter)
    open: int = 0

    def said(self) -> dict[str, int]:
        fates = ("results", "rejected", "late", "repeated", "left_out")
        return {"read": self.read, "open": self.open, **{one: self.became[one] for one in fates}}


class Clock:
    """The watermark: it follows the newest event of the input that is furthest behind."""

    def __init__(self, lateness: timedelta, *inputs: str) -> None:
        self.now: datetime | None = None
        self._lateness = lateness
        self._newest: dict[str, datetime | None] = dict.fromkeys(inputs)

    def see(self, name: str, at: datetime) -> None:
        newest = self._newest[name]
        self._newest[name] = at if newest is None else max(at, newest)

    def move(self) -> None:
        newest = [one for one in self._newest.values() if one is not None]
        if len(newest) == len(self._newest):
            reached = min(newest) - self._lateness
            self.now = reached if self.now is None else max(self.now, reached)

    def has_reached(self, end: datetime) -> bool:
        return self.now is not None and end <= self.now


def model_of_metrics(
    batches: list[list[Drawn]], lateness: timedelta
) -> tuple[dict[Any, Any], dict[str, int]]:
    """Return the rollups by minute, service and metric, and the account."""
    books, clock = Books(), Clock(lateness, "")
    windows: dict[tuple[datetime, str, str], list[float]] = {}
    done: dict[tuple[datetime, str, str], list[float]] = {}
    minute = timedelta(minutes=1)
    for batch in batches:
        taken: list[dict[str, Any]] = []
        for one in batch:
            books.read += 1
            if one.event is None:
                books.became[one.fate.replace(" ", "_")] += 1
            elif clock.has_reached(one.event["at"].replace(second=0) + minute):
                books.became["late"] += 1
            else:
                taken.append(one.event)
        for event in taken:
            clock.see("", event["at"])
            key = event["at"].replace(second=0), event["service"], event["metric"]
            windows.setdefault(key, []).append(float(event["value"]))
        clock.move()
        for key in [key for key in windows if clock.has_reached(key[0] + minute)]:
            done[key] = windows.pop(key)
            books.became["results"] += len(done[key])
    books.open = sum(map(len, windows.values()))
    rollups = {key: (len(all_of), sum(all_of), min(all_of), max(all_of)) for key, all_of in done.items()}
    return rollups, books.said()


def model_of_join(
    batches: list[dict[str, list[Drawn]]], lateness: timedelta, within: timedelta
) -> tuple[Counter[Any], dict[str, dict[str, int]]]:
    """Return the rows of orders and payments, and the accounts."""
    ids = {"orders": "order", "payments": "payment"}
    books = {name: Books() for name in ids}
    clock = Clock(lateness, *ids)
    waiting: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in ids}
    rows: Counter[Any] = Counter()
    instant = timedelta(microseconds=1)
    for batch in batches:
        taken: dict[str, list[dict[str, Any]]] = {name: [] for name in ids}
        for name, records in batch.items():
            for one in records:
                books[name].read += 1
                if one.event is None:
                    books[name].became[one.fate.replace(" ", "_")] += 1
                elif clock.has_reached(one.event["at"] + instant):
                    books[name].became["late"] += 1
                else:
                    clock.see(name, one.event["at"])
                    taken[name].append(one.event)
        clock.move()
        for name, events in taken.items():
            for event in events:
                if event[ids[name]] in waiting[name]:
                    books[name].became["repeated"] += 1
                else:
                    waiting[name][event[ids[name]]] = {**event, "is_new": True, "is_met": False}
        for order in waiting["orders"].values():
            for paid in waiting["payments"].values():
                in_time = timedelta(0) <= paid["at"] - order["at"] <= within
                if paid["order"] == order["order"] and in_time and (paid["is_new"] or order["is_new"]):
                    paid["is_met"] = order["is_met"] = True
                    rows[order["order"], order["customer"], paid["payment"], float(paid["amount"])] += 1
        for name, longer in (("orders", within), ("payments", timedelta(0))):
            for key, one in list(waiting[name].items()):
                one["is_new"] = False
                if clock.has_reached(one["at"] + longer + instant):
                    del waiting[name][key]
                    kept = one["is_met"] or name == "orders"
                    books[name].became["results" if kept else "left_out"] += 1
                    if name == "orders" and not one["is_met"]:
                        rows[one["order"], one["customer"], None, None] += 1
    for name in ids:
        books[name].open = len(waiting[name])
    return rows, {name: one.said() for name, one in books.items()}


@st.composite
def changes(draw: st.DrawFn) -> Drawn:
    """Change events of a table with few rows and positions: repeated, late, and of truncated rows."""
    op = draw(st.sampled_from("ccuuuudddt"))
    key = None if op == "t" else {"id": draw(st.integers(1, 4))}
    after = {**key, "balance": draw(st.integers(0, 9))} if key and op in "cu" else None
    lsn, seq = draw(st.integers(1, 40)), draw(st.integers(0, 1))
    event = {"op": op, "table": "public.a", "key": key, "after": after, "lsn": lsn, "seq": seq, "at": BASE}
    broken: list[dict[str, Any]] = [
        {**event, "op": "x"},
        {**event, "op": "u", "key": {"id": 1}, "after": None},
        {**event, "table": None},
        {**event, "lsn": None},
        {**event, "at": "yesterday"},
    ]
    hostile = [b"no json", b"[]", b"{}", b'{"op": "c"', b"\xff\xfe{", *map(_json, broken)]
    match draw(st.sampled_from(["event"] * 8 + ["hostile", "tombstone"])):
        case "event":
            return Drawn(_json(event), event, key=None if key is None else _json(key))
        case "hostile":
            return Drawn(draw(st.sampled_from(hostile)), fate="rejected")
        case _:
            return Drawn(draw(st.sampled_from([None, b"", b" \n"])), fate="left out")


def model_of_changelog(batches: list[list[Drawn]]) -> tuple[dict[int, int], dict[str, int]]:
    """Return the balances of the present rows, and the account."""
    books = Books()
    rows: dict[int, tuple[tuple[int, int], int | None]] = {}
    emptied: set[tuple[int, int]] = set()
    for batch in batches:
        books.read += len(batch)
        books.became.update(one.fate.replace(" ", "_") for one in batch if one.event is None)
        events = [one.event for one in batch if one.event is not None]
        # A row that is deleted and created at one position is deleted first.
        for event in sorted(events, key=lambda one: (one["lsn"], one["seq"], one["op"] != "d")):
            where = event["lsn"], event["seq"]
            if event["op"] == "t":
                books.became["repeated" if where in emptied else "results"] += 1
                emptied.add(where)
            elif event["key"]["id"] in rows and where <= rows[event["key"]["id"]][0]:
                books.became["repeated"] += 1
            else:
                books.became["results"] += 1
                rows[event["key"]["id"]] = where, event["after"] and event["after"]["balance"]
    present = {
        key: balance
        for key, (where, balance) in rows.items()
        if balance is not None and all(one <= where for one in emptied)
    }
    return present, books.said()


def batches_of(output: Path, topics: dict[str, list[Drawn]]) -> list[dict[str, list[Drawn]]]:
    """Return the records of each batch of a run by topic, by the offsets in its checkpoint.

    Each topic has one partition, and its records are ``topics[topic]``.
    """
    found: list[dict[str, list[Drawn]]] = []
    ends = dict.fromkeys(topics, 0)
    paths = [path for path in (output / "checkpoint" / "offsets").glob("*") if path.name.isdigit()]
    for path in sorted(paths, key=lambda path: int(path.name)):
        batch: dict[str, list[Drawn]] = {topic: [] for topic in topics}
        for line in path.read_text().splitlines()[2:]:
            for topic, offsets in json.loads(line).items():
                if topic in topics:
                    batch[topic] = topics[topic][ends[topic] : offsets["0"]]
                    ends[topic] = offsets["0"]
        found.append(batch)
    return found
