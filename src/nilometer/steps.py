"""Work in steps: a generator that yields after each step how many elements it had, and returns the result.

Who runs it decides about pauses: :class:`nilometer.broker.turns.LongWork` serves others between two steps,
:func:`at_once` makes none. Cores of all layers are written so, and this is below all of them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def at_once(steps: Generator[int, None, T]) -> T:
    """Take all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value
