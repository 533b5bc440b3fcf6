"""``asyncio.gather`` that has as many callbacks in the event loop with any version of Python.

The flight recorder counts them. Since Python 3.12 asyncio has none for a future that is done before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Literal, TypeVar, overload

T = TypeVar("T")


@overload
def gather(
    *awaitables: Awaitable[T], return_exceptions: Literal[True]
) -> asyncio.Future[list[T | BaseException]]: ...


@overload
def gather(
    *awaitables: Awaitable[T], return_exceptions: Literal[False] = False
) -> asyncio.Future[list[T]]: ...


def gather(*awaitables: Awaitable[T], return_exceptions: bool = False) -> asyncio.Future[Any]:
    """Wait for all of them, as ``asyncio.gather`` does.

    A waiter that is cancelled is cancelled, also while the error of a future that had failed is on its way.
    """
    undone = (_undone(one) if isinstance(one, asyncio.Future) and one.done() else one for one in awaitables)
    return asyncio.gather(*undone, return_exceptions=return_exceptions)


def _undone(done: asyncio.Future[T]) -> Awaitable[T]:
    if not done.cancelled():
        done.exception()  # it counts as retrieved, whether or not it arrives
    return _of(done)


async def _of(done: asyncio.Future[T]) -> T:
    return await done
