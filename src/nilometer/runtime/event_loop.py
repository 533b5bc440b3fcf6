"""What a process with an event loop does beside its work: it logs what the loop can tell no caller, collects
the oldest garbage, and gives freed memory back to the system.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from typing import Any

# What an event loop reports that no caller can be told.

logger = logging.getLogger("nilometer.runtime")

_PEER_HAS_GONE = "the handler is closed"


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error that reached the event loop: an exception handler for :mod:`asyncio`.

    uvloop's TLS reports a RuntimeError if it still has bytes to send when its connection has been reset, or
    when an attempt to connect is cancelled at that moment. The peer has gone: that is no fault of this
    process, and the owner of the connection sees a reset. All else is logged with its traceback, also the
    same error of a task or a callback that writes to a connection that has ended.
    """
    error = context.get("exception")
    is_of_tls = type(context.get("protocol")).__name__ == "SSLProtocol"
    if is_of_tls and isinstance(error, RuntimeError) and _PEER_HAS_GONE in str(error):
        logger.debug("A TLS connection ended while it was being closed: %s", error)
    else:
        loop.default_exception_handler(context)


# Collects the oldest garbage, and gives freed memory back to the system after large requests.
#
# The C library (glibc) keeps what is freed below the highest block that is in use. After a hundred megabytes
# of requests that is some tens of megabytes, until the process ends.

CHECK_S = 10.0
GROWN_BYTES = 16 * 1024 * 1024
"""By so much the process must have grown since it started. What is in use cannot be told from what is freed,
so a large process tries each time."""
GARBAGE_CHECK_S = 1.0
GARBAGE_CHECKS_MAX = 30
OLD_COLLECTIONS = 2_000
"""After so many collections of the second generation, the oldest one is due."""
_STATM = "/proc/self/statm"


async def give_back_freed_memory() -> None:
    """Do so every ``CHECK_S``, on another thread; return where that is not possible (no glibc, no Linux)."""
    trim = _malloc_trim()
    try:
        at_start = _resident_bytes()
    except OSError:
        return
    while trim is not None:
        await asyncio.sleep(CHECK_S)
        if _resident_bytes() >= at_start + GROWN_BYTES:
            await asyncio.to_thread(trim, 0)


async def collect_old_garbage(is_busy: Callable[[], bool], on_collected: Callable[[], None]) -> None:
    """Collect the oldest generation when it is due and no request is under way whose hundreds of thousands of
    objects would be walked with it, or after ``GARBAGE_CHECKS_MAX`` seconds in which there was always one.

    For an interpreter whose own third threshold is never reached.
    """
    put_off = 0
    while True:
        await asyncio.sleep(GARBAGE_CHECK_S)
        if gc.get_count()[2] < OLD_COLLECTIONS:
            continue
        if is_busy() and put_off < GARBAGE_CHECKS_MAX:
            put_off += 1
            continue
        put_off = 0
        gc.collect()
        on_collected()


def _resident_bytes() -> int:
    with open(_STATM) as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _malloc_trim() -> Callable[[int], int] | None:
    import ctypes  # takes 2 ms

    return getattr(ctypes.CDLL(None), "malloc_trim", None)
