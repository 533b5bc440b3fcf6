"""The end of a broker that was not asked to stop, and what excuses it.

It is excused once every log directory of that broker has failed, or when its coordination store has a
fault: no other broker's disk and no single log directory is a reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nilometer.coordination import BrokerIdInUse
from nilometer.simulation.fault_kinds import ENSEMBLE_KINDS, FOLDER_KINDS, Fault, Kind

STORE_GRACE_S = 30.0
"""How long after a fault of the store a broker may end because of it: longer than a start waits for it."""
ENDS_BROKERS = FOLDER_KINDS - {Kind.SIGNAL} | ENSEMBLE_KINDS
DATA = "/data"


@dataclass(frozen=True, slots=True)
class UnexpectedExit:
    error: BaseException | None
    """What its main function raised; None where it returned."""
    at_s: float
    folders: tuple[str, ...]
    """All log directories of the broker."""
    failed_places: frozenset[str]
    """Where the process met errors of disks: the first two names of each path."""

    def is_excused(self, store_faults: Iterable[Kind]) -> bool:
        """``store_faults``: the kinds from which brokers could suffer at that time."""
        if self.failed_places.issuperset(self.folders):
            return True
        if any(not place.startswith(DATA) for place in self.failed_places):
            return True  # the disk of a store that is a folder
        affecting = frozenset(store_faults)
        cause = self.error.__cause__ if self.error is not None else None
        if isinstance(cause, BrokerIdInUse):
            # No fault of an ensemble makes a broker's own earlier session that of another broker: its
            # start waits for that session's end. A folder that hangs may show a session of before.
            return not FOLDER_KINDS.isdisjoint(affecting)
        return not ENDS_BROKERS.isdisjoint(affecting)

    def __str__(self) -> str:
        return "it stopped" if self.error is None else repr(self.error)


class StoreFaults:
    """When the coordination store had faults, and of which kinds."""

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
        """The kinds from which brokers may suffer at that time."""
        return frozenset(
            fault.kind
            for fault, (begun_s, ended_s) in self._spans.items()
            if begun_s <= at_s <= ended_s + STORE_GRACE_S
        )
