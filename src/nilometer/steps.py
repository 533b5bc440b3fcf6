"""Work in steps: a generator that yields after each step how many elements it had, and returns the result.

Who runs it decides about pauses: :class:`nilometer.broker.turns.LongWork` serves others between two steps,
:func:`at_once` makes none. Cores of all layers are written so, and this is below all of them.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(steps: Generator[int, None, T]) -> T:
    """Take all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing. It may let others have their turn between two
    steps (``sleep(0)``): here are none."""
    while True:
        try:
            awaited = work.send(None)
        except StopIteration as done:
            return done.value
        assert awaited is None, "a coroutine that must not wait waits"
