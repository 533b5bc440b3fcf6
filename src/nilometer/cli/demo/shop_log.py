"""An access log of a small shop, made up: for a machine whose own logs tell of packages only.

Visitors come in sessions, prices are looked up by a robot, and for some minutes the payments fail.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
MINUTES = 90
VISITORS = 240
PRODUCTS = tuple(f"/products/{name}" for name in ("tea", "kettle", "cup", "honey", "tray", "filter"))
FAILING = range(41, 48)
"""The minutes in which payments fail."""
BROWSER = "Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/140.0"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Mobile"
ROBOT = "price-robot/1.4 (+https://prices.example/robot)"


class Line(NamedTuple):
    at: datetime
    host: str
    request: str
    status: int
    size: int
    agent: str

    def __str__(self) -> str:
        at = self.at.strftime("%d/%b/%Y:%H:%M:%S %z")
        return (
            f'{self.host} - - [{at}] "{self.request} HTTP/1.1" {self.status} {self.size} "-" "{self.agent}"'
        )


def write_shop_log(path: Path) -> Path:
    """Write the log, the same one each time; return ``path``."""
    chance = random.Random(20260302)
    lines = [line for number in range(VISITORS) for line in _visit(chance, number)] + list(_robot(chance))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="ascii")
    return path


def _visit(chance: random.Random, number: int) -> Iterator[Line]:
    at = BEGIN + timedelta(seconds=chance.triangular(0, MINUTES * 60 - 900, MINUTES * 40))
    host, agent = f"192.0.2.{number % 250 + 1}", chance.choice((BROWSER, BROWSER, PHONE))

    def line(request: str, status: int = 200) -> Line:
        return Line(at, host, request, status, chance.randrange(400, 24_000), agent)

    yield line("GET /")
    for _ in range(chance.randrange(1, 9)):
        at += timedelta(seconds=chance.randrange(3, 70))
        yield line(f"GET {chance.choice(PRODUCTS)}?from=list")
        if chance.random() < 0.05:
            yield line("GET /products/teapot", 404)
    if chance.random() < 0.35:
        at += timedelta(seconds=chance.randrange(5, 40))
        yield line("POST /cart", 302)
        at += timedelta(seconds=chance.randrange(10, 90))
        fails = (at - BEGIN) // timedelta(minutes=1) in FAILING
        yield line("POST /payments", 503 if fails else 201)


def _robot(chance: random.Random) -> Iterator[Line]:
    """Look at each product every two minutes, faster than it is allowed to."""
    for minute in range(0, MINUTES, 2):
        for second, product in enumerate(PRODUCTS * 2):
            at = BEGIN + timedelta(minutes=minute, seconds=second)
            limited = second >= len(PRODUCTS) + 2
            size = 180 if limited else chance.randrange(400, 24_000)
            yield Line(at, "198.51.100.7", f"GET {product}", 429 if limited else 200, size, ROBOT)
