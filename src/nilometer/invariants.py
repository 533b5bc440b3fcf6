"""Named invariants, checked at run time.

A broken invariant means a bug in this code, or that what it reads was not written by it: a broker fences the
replica, or ends, since continuing would spread the damage. Invalid input from a peer or client never breaks
one; it gets an error response. The owner of a state checks each change of it. ``assert`` only narrows types.
"""

from __future__ import annotations


class InvariantBroken(AssertionError):
    """An invariant does not hold: ``sentence`` describes it, ``values`` are the values that were checked."""

    def __init__(self, sentence: str, values: tuple[object, ...] = ()) -> None:
        super().__init__(f"{sentence}: {', '.join(map(str, values))}" if values else sentence)
        self.sentence = sentence
        self.values = values


def check(holds: bool, sentence: str, *values: object) -> None:
    """Raise InvariantBroken unless ``holds``. ``values`` are formatted only then."""
    if not holds:
        raise InvariantBroken(sentence, values)
