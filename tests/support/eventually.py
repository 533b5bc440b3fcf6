"""Waits for a condition with a time-out: for results that a server promises soon, but not at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_POLL_S = 0.02


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s:.0f} s still not so: {what}")
        time.sleep(_POLL_S)


async def becomes(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait for ``condition`` without blocking the event loop. Raises AssertionError after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout_s:.0f} s still not so: {what}")
        await asyncio.sleep(_POLL_S)
