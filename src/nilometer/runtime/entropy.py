"""The only source of randomness, so that a simulation can seed it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Entropy(Protocol):
    def uuid(self) -> uuid.UUID:
        """Return a random (version 4) UUID."""
        ...

    def bytes(self, count: int) -> bytes:
        """Return ``count`` random bytes that cannot be guessed, for keys and nonces."""
        ...

    def below(self, bound: int) -> int:
        """Return an integer in ``[0, bound)``; ``bound`` must be positive."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """Return a number in ``[low, high]``, for example as jitter of a back-off."""
        ...

    def choice(self, options: Sequence[T]) -> T:
        """Return one of ``options``, which must not be empty."""
        ...


class SeededEntropy:
    """Entropy drawn from a ``random.Random``: the system's by default, a seeded one for replay."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source if source is not None else random.SystemRandom()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]
