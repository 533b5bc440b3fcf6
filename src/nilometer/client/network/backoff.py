"""How long to wait before trying again: exponential, jittered, bounded (KIP-580)."""

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
        """The pause after ``failures`` failures in a row (1 after the first)."""
        if failures < 1:
            return 0
        # The exponent is bounded: long series of failures must not make huge numbers.
        base = min(self.initial_ms * MULTIPLIER ** min(failures - 1, 30), self.max_ms)
        return min(round(base * entropy.uniform(1 - JITTER, 1 + JITTER)), self.max_ms)
