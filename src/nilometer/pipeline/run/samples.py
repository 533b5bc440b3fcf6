"""Generates sample input for the shipped pipelines, reproducible by seed. Pure.

For trying a pipeline without real input, and for tests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
SEED = 7


class SampleRecord(NamedTuple):
    topic: str
    """The name of the pipeline's input."""
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True)
class Sample:
    default_count: int
    make: Callable[[int, random.Random], Iterator[SampleRecord]]
    table: Callable[[], str] | None = None
    """Returns the text of the CSV file that the pipeline joins with."""


def access_lines(count: int, rng: random.Random, topic: str = "access") -> Iterator[SampleRecord]:
    """Yield access log lines of visitors who each request some pages, over several hours."""
    paths = ["/", "/blog/", *[f"/blog/{n}" for n in range(12)], *[f"/projects/p{n}" for n in range(6)]]
    weights = [30, 12, *[20 // (n + 1) + 1 for n in range(12)], *[6] * 6]
    agents = ["Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Macintosh)", "Robot/1.0"]
    lines: list[tuple[datetime, str, str]] = []
    while len(lines) < count:
        host = f"10.0.{rng.randrange(8)}.{rng.randrange(250)}"
        agent = rng.choice(agents)
        at = NOON + timedelta(seconds=rng.uniform(0, 4 * count))
        for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
            path = "/files/setup.zip" if rng.random() < 0.06 else rng.choices(paths, weights)[0]
            wanted = [path, "/style.css", "/logo.png"] if rng.random() < 0.5 else [path]
            for one in wanted:
                status = 404 if rng.random() < 0.03 else 200
                said = f'{host} - - [{at:%d/%b/%Y:%H:%M:%S %z}] "GET {one} HTTP/1.1" {status} {len(one) * 91}'
                lines.append((at, host, f'{said} "-" "{agent}"'))
            at += timedelta(seconds=rng.expovariate(1 / 90))
    lines.sort()
    for _, host, line in lines[:count]:
        yield SampleRecord(topic, host.encode(), line.encode())


def log_lines(count: int, rng: random.Random) -> Iterator[SampleRecord]:
    """Yield access log lines; every fourth one is a syslog line."""
    levels = ("error: disk", "warning: slow", "info: started", "stopped")
    for number, record in enumerate(access_lines(count, rng, "logs")):
        if number % 4 == 3:
            at = NOON + timedelta(seconds=number)
            line = f"{at:%b %e %H:%M:%S} host app[{rng.randrange(99)}]: {rng.choice(levels)} {number}"
            yield SampleRecord("logs", None, line.encode())
        else:
            yield record


def measurements(count: int, rng: random.Random) -> Iterator[SampleRecord]:
    """Yield latency and errors of three services every second; one has a bad quarter of an hour."""
    services = ("web", "search", "billing")
    for number in range(count):
        second, which = divmod(number, 2 * len(services))
        service = services[which % len(services)]
        at = NOON + timedelta(seconds=second - rng.choice((0, 0, 0, 20)))
        is_bad = service == "search" and 900 <= second < 1_800
        if which < len(services):
            metric, value = "latency_ms", rng.gammavariate(4, 90 if is_bad else 20)
        else:
            metric, value = "errors", float(rng.random() < (0.4 if is_bad else 0.02))
        yield _json(
            "measurements",
            service,
            {"at": _at(at), "service": service, "metric": metric, "value": round(value, 3)},
        )


def orders_and_payments(count: int, rng: random.Random) -> Iterator[SampleRecord]:
    """Yield orders and payments in order of time.

    Most orders are paid within the hour, some later, some never, a few twice.
    """
    events: list[tuple[datetime, SampleRecord]] = []
    at = NOON
    for number in range(count // 2 + 1):
        at += timedelta(seconds=rng.expovariate(1 / 40))
        order = {
            "order": f"o{number}",
            "customer": f"c{rng.randrange(60)}",
            "amount": round(rng.uniform(5, 300), 2),
            "at": _at(at),
        }
        events.append((at, _json("orders", str(order["order"]), order)))
        paid_at = at
        for part in range(rng.choices((0, 1, 2), (2, 7, 1))[0]):
            paid_at += timedelta(seconds=rng.expovariate(1 / 1_200))
            payment = {
                "payment": f"p{number}-{part}",
                "order": order["order"],
                "amount": order["amount"],
                "at": _at(paid_at),
            }
            events.append((paid_at, _json("payments", str(order["order"]), payment)))
    events.sort(key=lambda one: one[0])
    yield from (record for _, record in events[:count])


def customers() -> str:
    countries = ("Egypt", "Kenya", "Sudan", "Uganda")
    lines = [f"c{n},Customer {n},{countries[n % len(countries)]}" for n in range(55)]
    return "\n".join(["customer,name,country", *lines]) + "\n"


def events(count: int, rng: random.Random) -> Iterator[SampleRecord]:
    """Yield logins, failed logins and payments; some users exceed the notification thresholds."""
    at = NOON
    for number in range(count):
        at += timedelta(seconds=rng.expovariate(1 / 4))
        kind = rng.choices(("login", "login-failed", "payment"), (6, 2, 3))[0]
        user = f"u{min(int(rng.paretovariate(0.6)), 40)}"
        amount = round(rng.uniform(5, 250), 2) if kind == "payment" else None
        event = {"id": f"e{number}", "user": user, "kind": kind, "amount": amount, "at": _at(at)}
        yield _json("events", user, event)


def users() -> str:
    lines = [f"u{n},User {n},{'de' if n % 3 == 0 else 'en'},u{n}@example.org" for n in range(1, 39)]
    return "\n".join(["user,name,language,address", *lines]) + "\n"


def changes(count: int, rng: random.Random) -> Iterator[SampleRecord]:
    """Yield change events, as capture writes them, of accounts that are opened, changed and closed."""
    balances: dict[int, int] = {}
    at, lsn, opened = NOON, 1_000, 0
    for _ in range(count):
        at += timedelta(seconds=rng.expovariate(1 / 3))
        lsn += rng.randrange(40, 400)
        if len(balances) < 5 or rng.random() < 0.15:
            opened += 1
            number, op, balances[opened] = opened, "c", 0
        else:
            number = rng.choice(sorted(balances))
            op = "d" if rng.random() < 0.04 else "u"
        if op == "d":
            del balances[number]
        elif op == "u":
            balances[number] += rng.randrange(-50, 90)
        after = None if op == "d" else {"id": number, "owner": f"owner {number}", "balance": balances[number]}
        change: dict[str, Any] = {"op": op, "table": "public.accounts", "key": {"id": number}}
        change |= {"after": after, "lsn": lsn, "seq": 0, "at": _at(at)}
        yield _json("changes", json.dumps({"id": number}), change)


def shop_orders(count: int, rng: random.Random) -> Iterator[SampleRecord]:
    """Yield orders of a shop; from the middle on they have a channel, and one in 400 has a text as amount."""
    for number in range(count):
        items = [
            {"article": f"a{rng.randrange(40)}", "quantity": rng.randrange(1, 4)}
            for _ in range(rng.choice((1, 1, 2, 3)))
        ]
        at = NOON + timedelta(seconds=40 * number)
        order: dict[str, Any] = {"order": number, "customer": f"c{rng.randrange(60)}", "items": items}
        order |= {"amount": round(rng.uniform(5, 300), 2), "paid": rng.random() < 0.8, "at": _at(at)}
        if rng.random() < 1 / 400:
            order["amount"] = "free"
        if 2 * number >= count:
            order["channel"] = rng.choice(("web", "shop", "telephone"))
        yield _json("orders", str(order["customer"]), order)


def payloads(count: int, rng: random.Random) -> Iterator[SampleRecord]:
    """Yield records of 100 bytes."""
    filling = rng.randbytes(100).hex()[:88].encode()
    for number in range(count):
        yield SampleRecord("burst", None, b"%012d" % number + filling)


SAMPLES = {
    "logs": Sample(10_000, log_lines),
    "activity": Sample(20_000, access_lines),
    "metrics": Sample(20_000, measurements),
    "changelog": Sample(5_000, changes),
    "join": Sample(10_000, orders_and_payments, customers),
    "notifications": Sample(10_000, events, users),
    "burst": Sample(1_000_000, payloads),
    "table": Sample(20_000, shop_orders),
}


def sample_records(name: str, count: int | None = None, seed: int = SEED) -> Iterator[SampleRecord]:
    sample = SAMPLES[name]
    return sample.make(count or sample.default_count, random.Random(seed))


def _at(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


def _json(topic: str, key: str, value: dict[str, Any]) -> SampleRecord:
    return SampleRecord(topic, key.encode(), json.dumps(value).encode())
