"""How much a piece of code does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """How many Python functions ran: a measure of work that no other process can disturb."""
    calls = [0]

    def on_event(_frame: object, event: str, _argument: object) -> None:
        calls[0] += event == "call"

    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)
