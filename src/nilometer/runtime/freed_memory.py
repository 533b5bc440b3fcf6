"""Collects the oldest garbage, and gives freed memory back to the system after large requests.

The C library (glibc) keeps what is freed below the highest block that is in use. After a hundred megabytes of
requests that is some tens of megabytes, until the process ends.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable

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
