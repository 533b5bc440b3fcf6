"""The judge of histories, under the name that tests of real processes know it by."""

from __future__ import annotations

from nilometer.simulation.checkers.history import (
    Anomaly,
    History,
    Moved,
    Outcome,
    Poll,
    ReadToEnd,
    Seen,
    Send,
    check,
)

__all__ = ["Anomaly", "History", "Moved", "Outcome", "Poll", "ReadToEnd", "Seen", "Send", "check"]
