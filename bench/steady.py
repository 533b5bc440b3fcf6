"""Warming a system up until it is steady: compilers have compiled, caches are filled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

ROUNDS = 3
WITHIN = 0.10
"""The spread of so many rounds in a row, as a share of the lowest, at which a system counts as steady."""


def until_steady(play: Callable[[], float], limit_s: float) -> list[float]:
    """Repeat a round of the row's own shape until three in a row are within 10 %, or ``limit_s`` are over.

    Returns the number of each round, for the reader to judge: the last ones tell whether it became steady.
    """
    until = time.monotonic() + limit_s
    found: list[float] = []
    while len(found) < ROUNDS or (not is_steady(found) and time.monotonic() < until):
        found.append(play())
    return found


def is_steady(rounds: Sequence[float]) -> bool:
    """Whether the last three are within 10 %."""
    latest = rounds[-ROUNDS:]
    return len(latest) == ROUNDS and max(latest) - min(latest) <= WITHIN * min(latest)
