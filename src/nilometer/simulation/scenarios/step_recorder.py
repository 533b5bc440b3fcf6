"""The events of a scenario, for a recording: messages, what changes in each replica, and the text of steps.

The brokers' numbers in a recording begin at 1. Each event takes one millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.simulation.model_check.process import Process
from nilometer.simulation.recording.format import Event, Kind, Status
from nilometer.simulation.recording.replica_state import Difference, ReplicaState, difference, first_state
from nilometer.simulation.recording.roles import state_of

PARTITION = "topic-0"
EVENT_US = 1_000


class StepRecorder:
    """Invariant: after :meth:`look` the events describe the current states of all replicas."""

    def __init__(self, names: str) -> None:
        self._names = names
        self.events: list[Event] = []
        self._states: dict[int, ReplicaState] = {}
        self._is_up = dict.fromkeys(range(len(names)), True)
        self._messages = 0

    def note(self, text: str, kind: Kind = Kind.NOTE) -> None:
        self._add(kind, text)

    def message(self, source: Process, target: Process, text: str, arrives: bool) -> None:
        """Record a message from ``source`` to ``target``, and whether it arrives."""
        self._messages += 1
        for kind in (Kind.SENT, Kind.DELIVERED if arrives else Kind.DROPPED):
            self._add(kind, text, source.broker, to=target.broker, message=self._messages)

    def look(self, processes: Sequence[Process]) -> None:
        """Record what has changed since the last call."""
        for process in processes:
            if process.is_up != self._is_up[process.broker]:
                self._is_up[process.broker] = process.is_up
                status = Status.RUNNING if process.is_up else Status.DOWN
                self._add(Kind.BROKER, f"is {status}", process.broker, status=status)
        for process in processes:
            if process.is_up:
                self._look_at(process)

    def _look_at(self, process: Process) -> None:
        log, before = process.log, self._states.get(process.broker)
        offsets = (log.log_start_offset, log.log_end_offset)
        now = state_of(process.replica.role, offsets, tuple(log.chain), _number)
        found = (
            first_state(PARTITION, now) if before is None else difference(PARTITION, before, now, self._name)
        )
        if found is not None:
            self._states[process.broker] = now
            self._add(found.kind, found.text, process.broker, found=found)

    def _name(self, number: int) -> str:
        return self._names[number - 1]

    def _add(
        self,
        kind: Kind,
        text: str,
        broker: int | None = None,
        *,
        to: int | None = None,
        message: int | None = None,
        found: Difference | None = None,
        status: Status | None = None,
    ) -> None:
        self.events.append(
            Event(
                at_us=len(self.events) * EVENT_US,
                kind=kind,
                text=text,
                broker=None if broker is None else _number(broker),
                to=None if to is None else _number(to),
                message=message,
                partitions=() if message is None and found is None else (PARTITION,),
                change=None if found is None else found.change,
                status=status,
            )
        )


def _number(broker: int) -> int:
    return broker + 1
