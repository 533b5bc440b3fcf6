"""For tests of logins: a clock that stands still, pages of a user, and sleeps that end at once."""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from nilometer.runtime.runtime import SystemClock


class Clock(SystemClock):
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms


class Opened:
    """Pages of a user that count how often they are closed."""

    def __init__(self, user: str = "") -> None:
        self.app: ASGIApp = PlainTextResponse(f"pages of {user}")
        self.closed = 0

    async def end_events(self) -> None:
        pass

    async def close(self) -> None:
        self.closed += 1


class Sleeps:
    """Sleeps that end at once, and are recorded."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
