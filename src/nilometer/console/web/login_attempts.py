"""How often one address may try to log in: one attempt at a time, and a failure delays its answer.

Failures in a row double the delay, up to :data:`DELAY_MAX_S`; they are forgotten after :data:`FORGET_MS`, or
by a login that succeeds. An address is an IPv4 address or a /64 network of IPv6.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nilometer.runtime import Clock

DELAY_S = 1.0
DELAY_MAX_S = 16.0
FORGET_MS = 15 * 60_000
WAITING_MAX = 4
"""How many attempts of one address wait for each other; more are refused."""
VERIFIED_AT_ONCE_MAX = 8
"""How many attempts are checked by the brokers at once."""
ADDRESSES_MAX = 1024
"""How many addresses are remembered; then those of the oldest failures are forgotten."""


class TooManyAttempts(Exception):
    def __init__(self) -> None:
        super().__init__("Too many attempts to log in wait already: try again later.")


@dataclass(slots=True)
class _Address:
    failures: int = 0
    failed_ms: int = 0
    attempts: int = 0
    """Attempts that are made or wait."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class LoginAttempts:
    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._addresses: dict[str, _Address] = {}
        self._verifying = asyncio.Semaphore(VERIFIED_AT_ONCE_MAX)

    @asynccontextmanager
    async def attempt(self, address: str) -> AsyncGenerator[Attempt]:
        """Wait for the turn of an attempt, and make it. Raises TooManyAttempts."""
        key = _network(address)
        found = self._addresses.pop(key, None) or _Address()
        self._addresses[key] = found  # the newest is the last one
        self._forget()
        if found.attempts >= WAITING_MAX:
            raise TooManyAttempts
        found.attempts += 1
        try:
            async with found.turn:
                attempt = Attempt()
                async with self._verifying:
                    yield attempt
                await self._conclude(found, attempt)
        finally:
            found.attempts -= 1

    async def _conclude(self, found: _Address, attempt: Attempt) -> None:
        if attempt.has_failed is None:
            return
        now_ms = self._clock.monotonic_ms()
        if not attempt.has_failed or now_ms - found.failed_ms >= FORGET_MS:
            found.failures = 0
        if attempt.has_failed:
            found.failures += 1
            found.failed_ms = now_ms
            await self._sleep(delay_s(found.failures))

    def _forget(self) -> None:
        """Forget the addresses whose last attempts are the oldest, unless they make one now."""
        excess = len(self._addresses) - ADDRESSES_MAX
        for key in [key for key, one in self._addresses.items() if one.attempts == 0][: max(0, excess)]:
            del self._addresses[key]


@dataclass(slots=True)
class Attempt:
    has_failed: bool | None = None
    """Whether the brokers rejected the user; None: they were not asked, or did not respond."""


def delay_s(failures: int) -> float:
    """Return how long the answer to the last of so many failures in a row is delayed."""
    return min(DELAY_S * 2 ** min(failures - 1, 10), DELAY_MAX_S)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
