"""Drawn records of each pipeline's topics, valid, odd and hostile.

A record is drawn with what it is: an event, or the fate of one that is none. So what is compared with a
pipeline knows nothing of its decoders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from nilometer.pipeline.shipped import notifications

BASE = datetime(2024, 5, 1, 12, tzinfo=UTC)
SENT = BASE + timedelta(minutes=40)
"""The time stamp of all records."""
AHEAD = timedelta(hours=1)
IN_INDIA = timezone(timedelta(hours=5.5))
FAR = datetime(2099, 1, 1, tzinfo=UTC)
TOO_FAR = SENT + AHEAD + timedelta(seconds=1)


@dataclass(frozen=True)
class Drawn:
    """A record's value and what it is: an event, or else its fate."""

    value: bytes | None
    event: Mapping[str, Any] | None = None
    fate: str = ""
    key: bytes | None = None
    far: Mapping[str, Any] | None = None
    """The event that it would be if its time were not too far ahead."""
    source: str = ""
    """The path of its file, in a header."""


def rejected(value: bytes | None) -> Drawn:
    return Drawn(value, fate="rejected")


def left_out(value: bytes | None) -> Drawn:
    return Drawn(value, fate="left out")


@dataclass(frozen=True)
class Draws:
    """What records are drawn for: one history, or many of them side by side, each with keys of its own."""

    width: int = 1
    """The number of histories."""
    since: int | None = None
    """The minute in which most events begin, at most ``SINCE_MAX``; None: they are of all minutes."""

    def names(self, *names: str) -> st.SearchStrategy[str]:
        """One of these names, of one of the histories."""
        return st.sampled_from(
            [f"{name}.{number}" if number else name for number in range(self.width) for name in names]
        )


ONE = Draws()
STAGE = 8
"""The minutes in which most events are of which it is said when they begin."""
SINCE_MAX = 100 - STAGE


def mostly(
    usual: st.SearchStrategy[Any], rare: st.SearchStrategy[Any], of: int = 10
) -> st.SearchStrategy[Any]:
    """Draw one of so many from ``rare``; ``one_of`` takes equal strategies as one."""
    return st.integers(1, of).flatmap(lambda number: rare if number == of else usual)


def times(draws: Draws = ONE) -> st.SearchStrategy[datetime]:
    """Times of events: most in order within minutes, some long before, some at the limit of what is taken.

    Those of the last minute are its start, so that windows end where the watermark is.
    """
    last = 100 if draws.since is None else draws.since + STAGE
    if draws.since is None:
        minutes = st.one_of(st.integers(0, 20), st.integers(-90, 30), st.sampled_from([99, 100]))
    else:
        now = st.integers(draws.since, last)
        minutes = mostly(now, st.integers(-90, draws.since))
    return st.builds(
        lambda minute, second: BASE + timedelta(minutes=minute, seconds=0 if minute == last else second),
        minutes,
        st.integers(0, 59),
    )


# --- events as JSON


def as_json(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, default=datetime.isoformat).encode()


def events(
    event: st.SearchStrategy[dict[str, Any]], number: str, draws: Draws = ONE
) -> st.SearchStrategy[Drawn]:
    """Records of events that ``event`` draws, whose property ``number`` is a number."""

    def valid(one: dict[str, Any], how: str) -> Drawn:
        match how:
            case "mark":
                return Drawn(b"\xef\xbb\xbf" + as_json(one), one)
            case "zone":
                return Drawn(as_json({**one, "at": one["at"].astimezone(IN_INDIA)}), one)
            case "more":
                return Drawn(as_json({"note": [1, {"x": None}], **one, "others": "x"}), one)
            case _:
                return Drawn(as_json(one), one)

    def broken(one: dict[str, Any], how: str) -> Drawn:
        changed: dict[str, Any] = dict(one)
        match how:
            case "milliseconds":
                changed["at"] = int(one["at"].timestamp() * 1000)
            case "far":
                changed["at"] = FAR
            case "ahead":
                changed["at"] = SENT + AHEAD + timedelta(microseconds=1)
            case "zoneless":
                changed["at"] = one["at"].replace(tzinfo=None)
            case "nanoseconds":
                changed["at"] = "2024-05-01T12:00:59.9999999Z"
            case "text":
                changed[number] = "900"
            case "list":
                changed[number] = [900]
            case "missing":
                del changed["at"]
            case "case" if changed[number] is None:  # another property, which holds nothing
                return Drawn(as_json({**changed, number.upper(): None}), one)
            case "case":
                changed[number.upper()] = changed.pop(number)
            case "infinite":
                changed[number] = float("inf")
            case _:
                changed[number] = 12345678901234567890123
        return Drawn(as_json(changed), fate="rejected", far=changed if how in ("far", "ahead") else None)

    ways = ("milliseconds", "far", "ahead", "zoneless", "nanoseconds", "text", "list", "missing", "case")
    hostile = [b"no json", b"[]", b"null", b'{"at": "2024-05-01T12:00:00Z"', b"\xff\xfe{"]
    hostile += [b'{"at": "\\ud800"}', b"{}"]
    odd = st.one_of(
        st.builds(valid, event, st.sampled_from(["plain"] * 6 + ["mark", "zone", "more"])),
        st.builds(broken, event, st.sampled_from([*ways, "infinite", "whole"])),
        st.sampled_from(hostile).map(rejected),
        st.sampled_from([None, b"", b"  \n"]).map(left_out),
    )
    return mostly(st.builds(valid, event, st.just("plain")), odd, 2 if draws.width == 1 else 5)


def needed(events: st.SearchStrategy[Drawn], *names: str) -> st.SearchStrategy[Drawn]:
    """The events, and some in which one of the properties ``names`` is null."""

    def without(one: Drawn, name: str) -> Drawn:
        return one if one.event is None else rejected(as_json({**one.event, name: None}))

    return mostly(events, st.builds(without, events, st.sampled_from(names)))


NUMBERS = st.one_of(st.integers(-50, 5_000), st.integers(0, 40).map(lambda one: one / 4))
ORDER_NAMES = [f"o{n}" for n in range(9)]


def measurements(draws: Draws = ONE) -> st.SearchStrategy[Drawn]:
    event = {
        "value": NUMBERS,
        "at": times(draws),
        "service": draws.names("a", "b"),
        "metric": st.sampled_from(["latency_ms", "errors"]),
    }
    return needed(events(st.fixed_dictionaries(event), "value", draws), "value", "service")


def orders(draws: Draws = ONE) -> st.SearchStrategy[Drawn]:
    event = {
        "amount": NUMBERS,
        "at": times(draws),
        "order": draws.names(*ORDER_NAMES),
        "customer": st.sampled_from(["c0", "c1", "stranger"]),
    }
    return needed(events(st.fixed_dictionaries(event), "amount", draws), "amount", "customer")


def payments(draws: Draws = ONE) -> st.SearchStrategy[Drawn]:
    event = {
        "amount": NUMBERS,
        "at": times(draws),
        "order": draws.names(*ORDER_NAMES),
        "payment": draws.names(*(f"p{n}" for n in range(14))),
    }
    return needed(events(st.fixed_dictionaries(event), "amount", draws), "amount", "payment")


SUMMED = frozenset(one.kind for one in notifications.RULES if one.measure == "sum")


def _with_amount(event: dict[str, Any], without: bool) -> dict[str, Any]:
    return {**event, "amount": None} if without and event["kind"] not in SUMMED else event


def _by_kind(one: Drawn, without: bool) -> Drawn:
    """An event of a kind that a rule sums may lack its amount: then it is none."""
    if not without or one.event is None or one.event["kind"] not in SUMMED:
        return one
    return rejected(as_json({**one.event, "amount": None}))


def notified(draws: Draws = ONE) -> st.SearchStrategy[Drawn]:
    """Events of users; five histories share a user, so that some messages are due."""
    event = {
        "id": draws.names(*(f"e{n}" for n in range(61))),
        "user": replace(draws, width=(draws.width + 4) // 5).names("u1", "u2", "stranger"),
        "kind": st.sampled_from([*(one.kind for one in notifications.RULES), "visit"]),
        "amount": st.integers(-1200, 2400).map(lambda one: one / 4),
        "at": times(draws),
    }
    with_amounts = events(
        st.builds(_with_amount, st.fixed_dictionaries(event), st.booleans()),
        "amount",
        draws,
    )
    return needed(
        st.builds(_by_kind, with_amounts, st.sampled_from([False] * 9 + [True])),
        "id",
        "kind",
    )


# --- lines


PATHS = ("/", "/blog/a", "/articles/", "/files/x.pdf", "/style.CSS", "/gone", "/a b", "/ü")
HOSTS, AGENTS = ("10.0.0.1", "h2"), ("-", "Mozilla/5.0 (x)")


def access_line(at: datetime, path: str, status: int, host: str = "h", agent: str | None = None) -> str:
    line = f'{host} - - [{at:%d/%b/%Y:%H:%M:%S %z}] "GET {path} HTTP/1.1" {status} 5'
    return line if agent is None else f'{line} "-" "{agent}"'


BLANK = st.sampled_from([None, b"", b"   ", b"\r"])
NO_LINE = st.sampled_from(
    [
        b"no line",
        b"2024",
        b"\x00\x01\xff\xfe \xc3(",
        access_line(BASE, "/", 200).replace("01/May", "31/Feb").encode(),
        access_line(BASE, "/", 200).replace('" 200', '" 20').encode(),
        access_line(BASE, "/", 200)[:40].encode(),
        access_line(BASE, "/1", 200).encode() + b"\n" + access_line(BASE, "/2", 200).encode(),
    ]
)


@st.composite
def log_lines(draw: st.DrawFn, draws: Draws = ONE) -> Drawn:
    """A line of one of three formats, of none, or a blank one; its event is what the table has of it."""
    at, source = draw(times(draws)), draw(st.sampled_from(["", "/var/log/a.log", "/var/log/b.log"]))
    text, form, label, name = "", "unparsed", "", ""
    match draw(st.sampled_from(["access"] * 3 + ["syslog", "json", "far", "none", "blank"])):
        case "access":
            path, status = draw(st.sampled_from(PATHS)), draw(st.sampled_from([200, 404]))
            zone = draw(st.sampled_from([UTC, IN_INDIA]))
            end = draw(st.sampled_from(["", "?a=b", "\r"]))
            text = access_line(at.astimezone(zone), path + end.strip(), status)
            text, form, label, name = text + end.removeprefix("?a=b"), "access", str(status), path
        case "syslog":
            level, shown = draw(st.sampled_from([("err", "error: x"), ("unstated", "x: error")]))
            text = f"{at:%b} {at.day:2d} {at:%H:%M:%S} host cron[7]: {shown}"
            form, label, name = "syslog", level, "cron"
        case "json":
            said = {"@timestamp": at.isoformat(), "level": "WARN", "logger": "cart", "message": "slow"}
            text, form, label, name = json.dumps(said), "json", "warning", "cart"
        case "far":
            at = draw(st.sampled_from([FAR, TOO_FAR]))
            text, form, label, name = access_line(at, "/", 200), "access", "200", "/"
        case "none":
            value = draw(NO_LINE)
            return Drawn(value, {"format": "unparsed", "at": None, "label": "", "name": ""}, source=source)
        case _:
            value = draw(BLANK)
            return Drawn(value, {"format": "blank", "at": None, "label": "", "name": ""}, source=source)
    return Drawn(text.encode(), {"format": form, "at": at, "label": label, "name": name}, source=source)


@st.composite
def requests(draw: st.DrawFn, draws: Draws = ONE) -> Drawn:
    """A line of an access log, or one that is no request."""
    at, status = draw(times(draws)), draw(st.sampled_from([200, 200, 304, 404]))
    path, host = draw(st.sampled_from(PATHS)), draw(draws.names(*HOSTS))
    agent = draw(st.sampled_from(AGENTS))
    event = {"host": host, "agent": agent, "at": at, "path": path, "status": status}
    match draw(
        st.sampled_from(["combined"] * 4 + ["common", "zone", "query", "json", "far", "none", "blank"])
    ):
        case "combined":
            return Drawn(access_line(at, path, status, host, agent).encode(), event)
        case "common":
            return Drawn(access_line(at, path, status, host).encode(), {**event, "agent": ""})
        case "zone":
            return Drawn(access_line(at.astimezone(IN_INDIA), path, status, host, agent).encode(), event)
        case "query":
            return Drawn(access_line(at, f"{path}?q=/files/x", status, host, agent).encode(), event)
        case "json":
            said = {"time_iso8601": at.isoformat(), "remote_addr": host, "http_user_agent": agent}
            return Drawn(as_json({**said, "request": f"GET {path} HTTP/2.0", "status": str(status)}), event)
        case "far":
            return rejected(access_line(draw(st.sampled_from([FAR, TOO_FAR])), path, status, host).encode())
        case "none":
            no_request = [
                access_line(at, path, status).replace(f"GET {path} HTTP/1.1", "-").encode(),
                access_line(at, path, status).replace(f"GET {path}", "GET ?only=query").encode(),
                access_line(at, path, status).replace("GET ", r"\x16\x03\x01 ").encode(),
                f"{at:%b} {at.day:2d} {at:%H:%M:%S} host cron[7]: x".encode(),
                as_json({"time": at, "host": host, "path": path, "level": "info"}),
            ]
            return rejected(draw(st.one_of(NO_LINE, st.sampled_from(no_request))))
        case _:
            return left_out(draw(BLANK))


# --- changes, rows of tables, anything


@st.composite
def changes(draw: st.DrawFn, draws: Draws = ONE, *, tables: int | None = None) -> Drawn:
    """Change events of tables with few rows and positions: repeated, late, and of truncated rows.

    Each history has a table of its own, unless ``tables`` is given.
    """
    number = draw(st.integers(0, draws.width - 1))
    table = number % (tables or draws.width)
    op = draw(st.sampled_from("ccuuuudddt"))
    if op == "t" and table != number:
        op = "d"  # a truncate of all histories would leave little of them
    key = None if op == "t" else {"id": 4 * number + draw(st.integers(1, 4))}
    after = {**key, "balance": draw(st.integers(0, 9))} if key and op in "cu" else None
    lsn, seq = draw(st.integers(1, 40)), draw(st.integers(0, 1))
    event = {
        "op": op,
        "table": f"public.a{table}",
        "key": key,
        "after": after,
        "lsn": lsn,
        "seq": seq,
        "at": BASE,
    }
    broken: list[dict[str, Any]] = [
        {**event, "op": "x"},
        {**event, "op": "u", "key": {"id": 1}, "after": None},
        {**event, "table": None},
        {**event, "lsn": None},
        {**event, "lsn": 2**63},
        {**event, "seq": -2},
        {**event, "at": "yesterday"},
    ]
    hostile = [b"no json", b"[]", b"{}", b'{"op": "c"', b"\xff\xfe{", *map(as_json, broken)]
    match draw(st.sampled_from(["event"] * 8 + ["hostile", "tombstone"])):
        case "event":
            return Drawn(as_json(event), event, key=None if key is None else as_json(key))
        case "hostile":
            return rejected(draw(st.sampled_from(hostile)))
        case _:
            return left_out(draw(st.sampled_from([None, b"", b" \n"])))


def rows(draws: Draws = ONE, *, upsert: bool) -> st.SearchStrategy[Drawn]:
    """Records of a table, some without a key; with ``upsert`` one without a value is a tombstone."""

    def keyed(one: Drawn, key: bytes | None) -> Drawn:
        # The table takes each time: its rows are in no window.
        event = one.event or one.far
        is_tombstone = upsert and one.value is None
        is_taken = (event is not None or is_tombstone) and (key is not None or not upsert)
        return replace(one, key=key, event=event, fate="" if is_taken else "rejected")

    event = {"value": NUMBERS, "at": times(draws), "service": st.sampled_from(["a", "b"])}
    keys = draws.names("k1", "k2", "k3").map(str.encode)
    return st.builds(keyed, events(st.fixed_dictionaries(event), "value", draws), mostly(keys, st.none(), 4))


ANYTHING = st.one_of(st.none(), st.binary(max_size=40)).map(Drawn)
