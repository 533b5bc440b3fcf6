"""Named invariants, checked at run time.

A broken invariant means that this code is wrong: the shell stops the replica at once, since going on would
spread the damage. What a peer or a client sends can never break one; that is answered with an error.
"""

from __future__ import annotations


class InvariantBroken(AssertionError):
    """``sentence`` is the invariant that does not hold; ``values`` are those it was checked with."""

    def __init__(self, sentence: str, values: tuple[object, ...]) -> None:
        super().__init__(f"{sentence}: {', '.join(map(str, values))}" if values else sentence)
        self.sentence = sentence
        self.values = values


def check(holds: bool, sentence: str, *values: object) -> None:
    """Raises InvariantBroken unless ``holds``. ``values`` are formatted only then."""
    if not holds:
        raise InvariantBroken(sentence, values)
