"""The sessions of users who have logged in: bounded in number and time, and in memory only.

A session has the pages of its user, which hold that user's connections. Its token is in the browser's cookie;
here is only the token's hash. A session ends when its user logs out, when it was not used for
:data:`IDLE_MS`, after :data:`LIFETIME_MS`, or when there are too many: then those end that were used longest
ago. A page that is open and visible uses its session.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from starlette.types import ASGIApp

from nilometer.runtime import Clock

SESSIONS_MAX = 32
SESSIONS_OF_USER_MAX = 4
IDLE_MS = 30 * 60_000
LIFETIME_MS = 12 * 3_600_000
CHECK_S = 30.0
"""How often sessions that have ended are closed."""
TOKEN_BYTES = 32


class Pages(Protocol):
    """The pages of one user."""

    @property
    def app(self) -> ASGIApp: ...

    async def end_events(self) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Session:
    """Invariant: ``pages`` are closed once, when the session is no longer found."""

    user: str
    pages: Pages
    began_ms: int
    used_ms: int
    """When its last request ended, or began if one is in progress."""
    in_progress: int = 0

    def is_over(self, now_ms: int) -> bool:
        is_idle = self.in_progress == 0 and now_ms - self.used_ms >= IDLE_MS
        return is_idle or now_ms - self.began_ms >= LIFETIME_MS


class Sessions:
    def __init__(
        self, clock: Clock, new_token: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES)
    ) -> None:
        self._clock = clock
        self._new_token = new_token
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def begin(self, user: str, pages: Pages) -> str:
        """Add a session, and return its token. Sessions that are over or too many end."""
        token, now_ms = self._new_token(), self._clock.monotonic_ms()
        self._sessions[_hash(token)] = Session(user, pages, now_ms, now_ms)
        await self.end_over()
        own = [key for key, session in self._sessions.items() if session.user == user]
        if len(own) > SESSIONS_OF_USER_MAX:
            await self._end(self._unused(own))
        if len(self._sessions) > SESSIONS_MAX:
            await self._end(self._unused(list(self._sessions)))
        return token

    def find(self, token: str | None) -> Session | None:
        session = None if token is None else self._sessions.get(_hash(token))
        return None if session is None or session.is_over(self._clock.monotonic_ms()) else session

    @contextmanager
    def used(self, session: Session) -> Generator[None]:
        """Count a request of a session as its use, for as long as the request lasts."""
        session.in_progress += 1
        session.used_ms = self._clock.monotonic_ms()
        try:
            yield
        finally:
            session.in_progress -= 1
            session.used_ms = self._clock.monotonic_ms()

    async def end(self, token: str | None) -> None:
        if token is not None:
            await self._end(_hash(token))

    async def end_over(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for key in [key for key, session in self._sessions.items() if session.is_over(now_ms)]:
            await self._end(key)

    async def keep(self) -> None:
        """End sessions when they are over, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.end_over()

    async def end_events(self) -> None:
        for session in list(self._sessions.values()):
            await session.pages.end_events()

    async def close(self) -> None:
        for key in list(self._sessions):
            await self._end(key)

    def _unused(self, keys: list[bytes]) -> bytes:
        """Return the session that was used longest ago."""
        return min(keys, key=lambda key: self._sessions[key].used_ms)

    async def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.pages.close()


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
