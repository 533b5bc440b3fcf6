"""Reducing the faults of a failing seed by leaving some out (delta debugging, with a limit of runs).

Leaving faults out changes everything after them, so the result is a small schedule that fails in the same way
(the same exit code), not necessarily the smallest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

RUNS_MAX = 40


def minimise(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> tuple[list[int], int]:
    """Return a small subset of ``numbers`` for which ``fails`` is true, and how often ``fails`` was called.

    ``fails`` must be true for all of ``numbers``.
    """
    kept = list(numbers)
    asked = 0
    size = max(1, len(kept) // 2)
    while kept:
        removed = False
        for begin in range(0, len(kept), size):
            rest = kept[:begin] + kept[begin + size :]
            if asked >= RUNS_MAX:
                return kept, asked
            asked += 1
            if fails(rest):
                kept, removed = rest, True
                break
        if not removed:
            if size == 1:
                return kept, asked
            size = max(1, size // 2)
        else:
            size = max(1, min(size, len(kept) // 2))
    return kept, asked
