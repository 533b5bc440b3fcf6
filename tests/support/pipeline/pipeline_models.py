"""Models of the pipelines in plain Python: what comes of drawn records, and what becomes of each.

A model gets the records of each batch, by input, and returns the results, the account of each input and the
watermark.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nilometer.pipeline.shipped import activity, metrics, notifications

from .drawn_records import AHEAD, SENT, Drawn

Batches = Sequence[Mapping[str, Sequence[Drawn]]]
"""The records of each batch, by the name of their input."""
Event = Mapping[str, Any]
MINUTE = timedelta(minutes=1)
INSTANT = timedelta(microseconds=1)


@dataclass
class Books:
    """The account that a model keeps, of one input."""

    read: int = 0
    became: Counter[str] = field(default_factory=Counter)
    open: int = 0
    late: list[bytes | None] = field(default_factory=list[bytes | None])
    """The values of the late records."""

    def said(self) -> dict[str, int]:
        fates = ("results", "rejected", "late", "repeated", "left_out")
        return {"read": self.read, "open": self.open, **{one: self.became[one] for one in fates}}


@dataclass(frozen=True)
class Wanted:
    """What a run has to give."""

    results: Any
    books: Mapping[str, Books]
    watermark: datetime | None = None

    @property
    def accounts(self) -> Mapping[str, Mapping[str, int]]:
        return {name: one.said() for name, one in self.books.items()}


class Clock:
    """The watermark: it follows the newest event of the input that is furthest behind."""

    def __init__(self, lateness: timedelta, *inputs: str) -> None:
        self.now: datetime | None = None
        self._lateness = lateness
        self._newest: dict[str, datetime | None] = dict.fromkeys(inputs or ("",))

    def see(self, at: datetime, name: str = "") -> None:
        newest = self._newest[name]
        self._newest[name] = at if newest is None else max(at, newest)

    def move(self) -> None:
        newest = [one for one in self._newest.values() if one is not None]
        if len(newest) == len(self._newest):
            reached = min(newest) - self._lateness
            self.now = reached if self.now is None else max(self.now, reached)

    def has_reached(self, end: datetime) -> bool:
        return self.now is not None and end <= self.now


def on_time(records: Sequence[Drawn], books: Books, clock: Clock, closes: Any, name: str = "") -> list[Event]:
    """Return the events whose result is not written; ``closes(event)`` is when it is."""
    taken: list[Event] = []
    for one in records:
        books.read += 1
        if one.event is None:
            books.became[one.fate.replace(" ", "_")] += 1
        elif clock.has_reached(closes(one.event)):
            books.became["late"] += 1
            books.late.append(one.value)
        else:
            taken.append(one.event)
    for event in taken:
        clock.see(event["at"], name)
    return taken


def window_of(at: datetime, minutes: int) -> datetime:
    return at.replace(minute=at.minute // minutes * minutes, second=0, microsecond=0)


def model_of_metrics(batches: Batches) -> Wanted:
    """The rollups by minute, service and metric, and the values of alerts by id."""
    settings = metrics.Settings()
    books, clock = Books(), Clock(settings.lateness)
    windows: dict[tuple[datetime, str, str], list[float]] = defaultdict(list)
    rollups: dict[Any, Any] = {}
    alerts: dict[str, float] = {}
    for batch in batches:
        for event in on_time(batch[""], books, clock, lambda one: window_of(one["at"], 1) + MINUTE):
            windows[window_of(event["at"], 1), event["service"], event["metric"]].append(event["value"])
        clock.move()
        for key in [key for key in windows if clock.has_reached(key[0] + MINUTE)]:
            values = windows.pop(key)
            books.became["results"] += len(values)
            rollups[key] = len(values), sum(values), min(values), max(values)
            measures = {"mean": sum(values) / len(values), "greatest": max(values), "sum": sum(values)}
            for name, metric, column, limit in settings.rules:
                if metric == key[2] and measures[column] > limit:
                    alerts[f"{key[1]}/{name}/{key[0]:%Y-%m-%dT%H:%M:%SZ}"] = measures[column]
    books.open = sum(map(len, windows.values()))
    return Wanted((rollups, alerts), {"": books}, clock.now)


def model_of_join(batches: Batches, lateness: timedelta, within: timedelta) -> Wanted:
    """The rows of orders and payments."""
    ids = {"orders": "order", "payments": "payment"}
    books = {name: Books() for name in ids}
    clock = Clock(lateness, *ids)
    waiting: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in ids}
    rows: Counter[Any] = Counter()
    customers = {"c0": ("Ann", "Egypt"), "c1": ("Bob", "Kenya"), "stranger": (None, None)}
    for batch in batches:
        taken = {
            name: on_time(batch[name], books[name], clock, lambda one: one["at"] + INSTANT, name)
            for name in ids
        }
        clock.move()
        for name, events in taken.items():
            for event in events:
                if event[ids[name]] in waiting[name]:
                    books[name].became["repeated"] += 1
                else:
                    waiting[name][event[ids[name]]] = {**event, "is_new": True, "is_met": False}
        payments: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for paid in waiting["payments"].values():
            payments[paid["order"]].append(paid)
        for order in waiting["orders"].values():
            buyer = order["customer"], *customers[order["customer"]]
            for paid in payments[order["order"]]:
                in_time = timedelta(0) <= paid["at"] - order["at"] <= within
                if in_time and (paid["is_new"] or order["is_new"]):
                    paid["is_met"] = order["is_met"] = True
                    rows[order["order"], *buyer, paid["payment"], paid["amount"]] += 1
        for name, longer in (("orders", within), ("payments", timedelta(0))):
            for key, one in list(waiting[name].items()):
                one["is_new"] = False
                if clock.has_reached(one["at"] + longer + INSTANT):
                    del waiting[name][key]
                    kept = one["is_met"] or name == "orders"
                    books[name].became["results" if kept else "left_out"] += 1
                    if name == "orders" and not one["is_met"]:
                        buyer = one["customer"], *customers[one["customer"]]
                        rows[one["order"], *buyer, None, None] += 1
    for name in ids:
        books[name].open = len(waiting[name])
    return Wanted(rows, books, clock.now)


USERS = {"u1": ("Ann", "en"), "u2": ("Bob", "de")}


def user_of(name: str) -> str:
    """Return the name of a user, or of one like it of another history."""
    return name.partition(".")[0]


def model_of_notifications(batches: Batches) -> Wanted:
    """The messages by id, each once: with the text of the batch that reached the threshold."""
    settings = notifications.Settings()
    ten = timedelta(minutes=10)
    books, clock = Books(), Clock(settings.lateness)
    windows: dict[tuple[datetime, str, str], dict[str, Event]] = defaultdict(dict)
    known: set[str] = set()
    messages: dict[str, tuple[str, str]] = {}
    notified: set[tuple[datetime, str, str]] = set()
    for batch in batches:
        for event in on_time(batch[""], books, clock, lambda one: window_of(one["at"], 10) + ten):
            if event["id"] in known:
                books.became["repeated"] += 1
            else:
                known.add(event["id"])
                windows[window_of(event["at"], 10), event["user"], event["kind"]][event["id"]] = event
        clock.move()
        for (since, user, kind), events in windows.items():
            total = sum(one["amount"] or 0.0 for one in events.values())
            for rule in settings.rules:
                name = f"{rule.name}/{user}/{since:%Y-%m-%dT%H:%M:%SZ}"
                measured = {"count": len(events), "sum": total}[rule.measure]
                if (
                    user_of(user) in USERS
                    and kind == rule.kind
                    and measured >= rule.threshold
                    and name not in messages
                ):
                    called, language = USERS[user_of(user)]
                    text = rule.texts[language].format(name=called, count=len(events), sum=f"{total:.2f}")
                    messages[name] = f"{user}@example.org", text
                    notified.add((since, user, kind))
        for key in [key for key in windows if clock.has_reached(key[0] + ten)]:
            ended = windows.pop(key)
            known -= ended.keys()
            books.became["results" if key in notified else "left_out"] += len(ended)
    books.open = sum(map(len, windows.values()))
    return Wanted(messages, {"": books}, clock.now)


def model_of_activity(batches: Batches, lateness: timedelta, pause: timedelta) -> Wanted:
    """The sessions that have ended, and the views by minute and path."""
    books, clock = Books(), Clock(lateness)
    open_requests: dict[tuple[str, str], list[tuple[datetime, str, int]]] = defaultdict(list)
    sessions: Counter[Any] = Counter()
    views: Counter[tuple[datetime, str]] = Counter()
    for batch in batches:
        for event in on_time(batch[""], books, clock, lambda one: one["at"] + pause):
            visit = event["at"], event["path"], event["status"]
            open_requests[event["host"], event["agent"]].append(visit)
        clock.move()
        for visitor, visits in open_requests.items():
            of_visitor: list[list[tuple[datetime, str, int]]] = []
            for visit in sorted(visits):
                if of_visitor and visit[0] <= of_visitor[-1][-1][0] + pause:
                    of_visitor[-1].append(visit)
                else:
                    of_visitor.append([visit])
            ended = [one for one in of_visitor if clock.has_reached(one[-1][0] + pause)]
            open_requests[visitor] = [visit for one in of_visitor if one not in ended for visit in one]
            for one in ended:
                books.became["results"] += len(one)
                pages = [visit for visit in one if visit[2] < 400 and not visit[1].lower().endswith(".css")]
                views.update((window_of(at, 1), path) for at, path, _ in pages)
                paths = [path for _, path, _ in pages]
                ends = (paths[0], paths[-1]) if paths else (None, None)
                summary = one[0][0], one[-1][0], len(one), len(pages), *ends, steps_of(paths)
                sessions[*visitor, *summary] += 1
    books.open = sum(map(len, open_requests.values()))
    return Wanted((sessions, views), {"": books}, clock.now)


def steps_of(paths: Sequence[str]) -> int:
    taken = 0
    for path in paths:
        taken += taken < len(activity.FUNNEL) and bool(re.search(activity.FUNNEL[taken].pattern, path))
    return taken


def model_of_logs(batches: Batches, lateness: timedelta) -> Wanted:
    """The lines in their order, and their numbers by minute, label and name."""
    books, clock = Books(), Clock(lateness)
    lines: list[Any] = []
    counts: Counter[Any] = Counter()
    for batch in batches:
        for one in batch[""]:
            assert one.event is not None
            at, form = one.event["at"], one.event["format"]
            text = (one.value or b"").decode("utf-8", "replace").removesuffix("\r")
            lines.append((form, at, one.event["label"], one.event["name"], one.source, text))
            minute = None if at is None else window_of(at, 1)
            counts.update(
                [("minute", form, minute), *((by, form, one.event[by]) for by in ("label", "name"))]
            )
            if at is not None and at <= SENT + AHEAD:
                clock.see(at)
        clock.move()
    books.read = books.became["results"] = len(lines)
    return Wanted((lines, counts), {"": books}, clock.now)


def model_of_burst(batches: Batches) -> Wanted:
    """Number, records, bytes, first and last offset of each batch that has records."""
    drained: list[tuple[int, int, int, int, int]] = []
    end = 0
    for number, batch in enumerate(batches):
        first, end = end, end + len(batch[""])
        if end > first:
            size = sum(len(one.value or b"") for one in batch[""])
            drained.append((number, end - first, size, first, end - 1))
    return Wanted(drained, {"": Books(end, Counter(results=end))})


def model_of_changelog(batches: Batches) -> Wanted:
    """The balances of the present rows."""
    books = Books()
    rows: dict[tuple[str, int], tuple[tuple[int, int], int | None]] = {}
    emptied: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for batch in batches:
        books.read += len(batch[""])
        books.became.update(one.fate.replace(" ", "_") for one in batch[""] if one.event is None)
        events = [one.event for one in batch[""] if one.event is not None]
        # A row that is deleted and created at one position is deleted first.
        for event in sorted(events, key=lambda one: (one["lsn"], one["seq"], one["op"] != "d")):
            where, table = (event["lsn"], event["seq"]), event["table"]
            if event["op"] == "t":
                books.became["repeated" if where in emptied[table] else "results"] += 1
                emptied[table].add(where)
                continue
            row = table, event["key"]["id"]
            if row in rows and where <= rows[row][0]:
                books.became["repeated"] += 1
            else:
                books.became["results"] += 1
                rows[row] = where, event["after"] and event["after"]["balance"]
    present = {
        number: balance
        for (table, number), (where, balance) in rows.items()
        if balance is not None and all(one <= where for one in emptied[table])
    }
    return Wanted(present, {"": books})


def model_of_table(batches: Batches, *, upsert: bool) -> Wanted:
    """The rows of the table, in the order of their offsets."""
    books = Books()
    rows: dict[Any, Any] = {}
    for one in (one for batch in batches for one in batch[""]):
        offset, place = books.read, one.key if upsert else books.read
        books.read += 1
        books.became[one.fate or "results"] += 1
        if one.fate:
            continue
        if one.event is None:
            rows.pop(place, None)
        else:
            rows[place] = (offset, float(one.event["value"]), one.event["service"], one.event["at"])
    return Wanted(sorted(rows.values()), {"": books})
