"""What Ctrl-C and SIGTERM do to commands that run brokers or Spark.

A process that ends of itself removes what it has put on disk; one that a signal ends does not.
"""

from __future__ import annotations

import signal
import sys


def exit_on_sigterm() -> None:
    """SIGTERM ends the process as Ctrl-C does: through whatever is to be cleaned up."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def stop_on_signals() -> list[int]:
    """A list that is empty until Ctrl-C or SIGTERM; a second one ends the program at once."""
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        if received:
            sys.exit(128 + number)
        received.append(number)

    signal.signal(signal.SIGINT, receive)
    signal.signal(signal.SIGTERM, receive)
    return received
