"""The pause before a retry: exponential, with jitter, bounded (KIP-580)."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.runtime import Entropy

MULTIPLIER = 2
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that start at ``initial_ms`` and double up to ``max_ms``, each off by up to a fifth."""

    initial_ms: int
    max_ms: int

    def delay_ms(self, failures: int, entropy: Entropy) -> int:
        """Return the pause after ``failures`` failures in a row: 0 if there was none.

        ``entropy`` is the source of randomness for the jitter.
        """
        if failures < 1:
            return 0
        # The exponent is bounded: a long series of failures must not compute huge numbers.
        base = min(self.initial_ms * MULTIPLIER ** min(failures - 1, 30), self.max_ms)
        return min(round(base * entropy.uniform(1 - JITTER, 1 + JITTER)), self.max_ms)
