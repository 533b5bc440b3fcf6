"""Work in steps: a generator that yields after each step how many elements it had, and returns the result.

Who runs it decides about pauses: :class:`nilometer.broker.turns.LongWork` serves others between two steps,
:func:`with_pauses` pauses before each, :func:`at_once` makes none. Cores of all layers are written so, and
this is below all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")
Listing: TypeAlias = Generator[int, None, list[T]]
Pause: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until the next step may be taken."""


def at_once(steps: Generator[int, None, T]) -> T:
    """Take all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def listing(items: Iterable[Item], show: Callable[[Item], T | None]) -> Listing[T]:
    """Return what ``show`` makes of each item, without None."""
    shown: list[T] = []
    for item in items:
        if (made := show(item)) is not None:
            shown.append(made)
        yield 1
    return shown


class _Iteration:
    def __await__(self) -> Generator[None, None, None]:
        yield


async def next_iteration() -> None:
    """Let the event loop serve others, as ``asyncio.sleep(0)`` does, for cores that know no event loop."""
    await _Iteration()


async def with_pauses(steps: Generator[int, None, T], pause: Pause = next_iteration) -> T:
    """Take all steps, with a pause before each, and return their result.

    Of several that are taken so at once a ``pause`` that they share lets one go on at a time: a turn of the
    event loop would have one step of each.
    """
    while True:
        await pause()
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing, but may pause: here are no others to serve."""
    while True:
        try:
            awaited = work.send(None)
        except StopIteration as done:
            return done.value
        assert awaited is None, "a coroutine that must not wait waits"
