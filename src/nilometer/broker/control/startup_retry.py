"""Repeats a starting broker's requests to the coordination store while no response comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nilometer.coordination.store import OutcomeUnknown, StoreUnavailable
from nilometer.runtime import Clock

T = TypeVar("T")
logger = logging.getLogger("nilometer.broker.control")

RETRY_MS_MIN = 3_000
RETRY_S = 0.2


async def retry_while_starting(clock: Clock, session_timeout_ms: int, ask: Callable[[], Awaitable[T]]) -> T:
    """Await ``ask`` and return its result; repeat it if a server does not respond or a connection is lost.

    Tries for two session timeouts, or three seconds if that is longer; then raises StoreUnavailable or
    OutcomeUnknown.
    """
    deadline_ms = clock.monotonic_ms() + max(RETRY_MS_MIN, 2 * session_timeout_ms)
    while True:
        try:
            return await ask()
        except (StoreUnavailable, OutcomeUnknown) as error:
            if clock.monotonic_ms() >= deadline_ms:
                raise
            logger.info("The coordination store did not answer during startup, trying again: %s", error)
            await asyncio.sleep(RETRY_S)
