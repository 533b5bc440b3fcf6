"""Unexpected ends of brokers, and whether a fault excuses them.

An end is excused if every log directory of that broker has failed, or if its coordination store has a fault;
a fault of another broker's disk or of a single log directory is no excuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nilometer.coordination import BrokerIdInUse
from nilometer.simulation.fault_kinds import ENSEMBLE_KINDS, FOLDER_KINDS, Fault, Kind

STORE_GRACE_S = 30.0
"""How long after a fault of the store a broker may end because of it: longer than a start waits for the
store."""
ENDS_BROKERS = FOLDER_KINDS - {Kind.SIGNAL} | ENSEMBLE_KINDS
DATA = "/data"


@dataclass(frozen=True, slots=True)
class UnexpectedExit:
    error: BaseException | None
    """The exception of its main function; None if it returned."""
    at_s: float
    folders: tuple[str, ...]
    """All log directories of the broker."""
    failed_places: frozenset[str]
    """The places where the process got disk errors: the first two names of each path."""

    def is_excused(self, store_faults: Iterable[Kind]) -> bool:
        """Return whether a fault explains the end; ``store_faults``: the store's faults at that time."""
        if self.failed_places.issuperset(self.folders):
            return True
        if any(not place.startswith(DATA) for place in self.failed_places):
            return True  # the disk of a store that is a folder
        affecting = frozenset(store_faults)
        cause = self.error.__cause__ if self.error is not None else None
        if isinstance(cause, BrokerIdInUse):
            # A ZooKeeper fault is no excuse for this error: a broker's start waits for the end of its own
            # earlier session. A folder on a stalled disk may still show that session.
            return not FOLDER_KINDS.isdisjoint(affecting)
        return not ENDS_BROKERS.isdisjoint(affecting)

    def __str__(self) -> str:
        return "it stopped" if self.error is None else repr(self.error)


class StoreFaults:
    """The times and kinds of the coordination store's faults."""

    def __init__(self) -> None:
        self._spans: dict[Fault, tuple[float, float]] = {}

    def begin(self, fault: Fault, now_s: float) -> None:
        if fault.kind in FOLDER_KINDS | ENSEMBLE_KINDS:
            self._spans[fault] = (now_s, float("inf"))

    def end(self, fault: Fault, now_s: float) -> None:
        if fault in self._spans:
            begun_s, ended_s = self._spans[fault]
            self._spans[fault] = (begun_s, min(ended_s, now_s))

    def end_all(self, now_s: float) -> None:
        for fault in self._spans:
            self.end(fault, now_s)

    def affecting_at(self, at_s: float) -> frozenset[Kind]:
        """Return the kinds of store faults that may affect brokers at that time."""
        return frozenset(
            fault.kind
            for fault, (begun_s, ended_s) in self._spans.items()
            if begun_s <= at_s <= ended_s + STORE_GRACE_S
        )
