"""Signal handlers for Ctrl-C and SIGTERM, for commands that run brokers or Spark.

With them a process exits normally and removes its temporary files; a process killed by a signal does not.
"""

from __future__ import annotations

import signal
import sys


def exit_on_sigterm() -> None:
    """Have SIGTERM raise SystemExit, so that the process cleans up as after Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def stop_on_signals() -> list[int]:
    """Return a list to which the first Ctrl-C or SIGTERM is added; a second one exits at once."""
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        if received:
            sys.exit(128 + number)
        received.append(number)

    signal.signal(signal.SIGINT, receive)
    signal.signal(signal.SIGTERM, receive)
    return received
