"""Exports the simulation's history checker for tests of real processes."""

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
