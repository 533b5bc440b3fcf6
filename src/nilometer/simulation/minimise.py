"""The fewest faults that still make a seed fail, found by leaving some out. Delta debugging, bounded.

Leaving faults out changes the course of everything behind them, so what is found is a small schedule that
fails in the same way (the same exit code), not the smallest there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

RUNS_MAX = 40


def minimise(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> tuple[list[int], int]:
    """A small subset of ``numbers`` for which ``fails`` holds, as it must for all; and how often it asked."""
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
