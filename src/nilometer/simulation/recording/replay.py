"""Replaying a recording: the state of all replicas, brokers and messages after any of its events.

The state after an event is that of the nearest key frame before it, and the events since: a step to any place
of a long recording costs at most :data:`KEY_FRAME_EVENTS` events.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from nilometer.simulation.recording.format import Event, Kind, Recording, Status
from nilometer.simulation.recording.replica_state import ReplicaState, after

KEY_FRAME_EVENTS = 256
NOTABLE = frozenset(
    {Kind.ROLE, Kind.ISR, Kind.TRUNCATION, Kind.BROKER, Kind.FAULT, Kind.FINDING, Kind.NOTE, Kind.REMOVED}
)
"""The kinds of events between which a reader jumps."""
ALWAYS_SHOWN = frozenset({Kind.BROKER, Kind.FAULT, Kind.FINDING, Kind.NOTE})
"""Kinds that concern every partition if they name none."""


@dataclass(slots=True)
class Moment:
    """The state after an event. Only :func:`apply` changes it."""

    replicas: dict[tuple[str, int], ReplicaState] = field(default_factory=dict[tuple[str, int], ReplicaState])
    """By partition and broker."""
    statuses: dict[int, Status] = field(default_factory=dict[int, Status])
    in_flight: dict[int, int] = field(default_factory=dict[int, int])
    """The messages that were sent and not delivered or dropped yet: number → index of the event of the
    sending."""

    def copy(self) -> Moment:
        return Moment(dict(self.replicas), dict(self.statuses), dict(self.in_flight))


def apply(moment: Moment, index: int, event: Event) -> None:
    """Change ``moment`` by the event with this index."""
    if event.message is not None:
        if event.kind is Kind.SENT:
            moment.in_flight[event.message] = index
        else:
            moment.in_flight.pop(event.message, None)
    if event.broker is None:
        return
    if event.status is not None:
        moment.statuses[event.broker] = event.status
    if event.kind is Kind.REMOVED:
        for partition in event.partitions:
            moment.replicas.pop((partition, event.broker), None)
    elif event.change is not None:
        for partition in event.partitions[:1]:
            before = moment.replicas.get((partition, event.broker), ReplicaState())
            moment.replicas[partition, event.broker] = after(before, event.change)


class Replay:
    """A recording, from which the state after any of its events is computed.

    Invariant: ``_frames[n]`` is the state before the event with the index n × KEY_FRAME_EVENTS.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.events = recording.events
        self._frames: list[Moment] = []
        self._of_partition: dict[str, list[int]] = {}
        self._hosts: dict[str, dict[int, None]] = {}
        self._ends: dict[str, int] = {}
        """Partition → its highest log end offset."""
        self._latest_partition: list[str | None] = []
        """For each event, the partition that the last event up to it concerns."""
        brokers: set[int] = set()
        moment = Moment()
        for index, event in enumerate(self.events):
            if index % KEY_FRAME_EVENTS == 0:
                self._frames.append(moment.copy())
            apply(moment, index, event)
            brokers.update(one for one in (event.broker, event.to) if one is not None)
            self._index(index, event, moment)
        self.brokers = tuple(sorted(brokers))
        self.partitions = tuple(sorted(self._hosts, key=_natural))
        self._anywhere = [index for index, event in enumerate(self.events) if _is_anywhere(event)]
        self.findings = tuple(event.text for event in self.events if event.kind is Kind.FINDING)
        self.notable = tuple(index for index, event in enumerate(self.events) if event.kind in NOTABLE)
        self._shown = {
            partition: tuple(sorted({*of, *self._anywhere})) for partition, of in self._of_partition.items()
        }
        self._notable_of = {
            partition: tuple(index for index in shown if self.events[index].kind in NOTABLE)
            for partition, shown in self._shown.items()
        }

    def _index(self, index: int, event: Event, moment: Moment) -> None:
        latest = self._latest_partition[-1] if self._latest_partition else None
        for partition in event.partitions:
            self._of_partition.setdefault(partition, []).append(index)
            if event.broker is not None and (state := moment.replicas.get((partition, event.broker))):
                self._hosts.setdefault(partition, {})[event.broker] = None
                self._ends[partition] = max(self._ends.get(partition, 0), state.log_end_offset)
        latest = next((one for one in event.partitions if one in self._hosts), latest)
        self._latest_partition.append(latest)

    def after(self, index: int) -> Moment:
        """Return the state after the event with this index."""
        frame = index // KEY_FRAME_EVENTS
        moment = self._frames[frame].copy()
        for at in range(frame * KEY_FRAME_EVENTS, index + 1):
            apply(moment, at, self.events[at])
        return moment

    def hosts_of(self, partition: str) -> tuple[int, ...]:
        """Return the brokers that have a replica of it at any time."""
        return tuple(sorted(self._hosts.get(partition, ())))

    def highest_end_of(self, partition: str) -> int:
        return self._ends.get(partition, 0)

    def shown(self, partition: str | None) -> Sequence[int]:
        """Return the indexes of the events that concern ``partition``; of all events for None."""
        return range(len(self.events)) if partition is None else self._shown.get(partition, ())

    def notable_of(self, partition: str | None) -> Sequence[int]:
        return self.notable if partition is None else self._notable_of.get(partition, ())

    def partition_at(self, index: int) -> str | None:
        """Return the partition that the last event up to ``index`` concerns, else the first partition."""
        return self._latest_partition[index] or (self.partitions[0] if self.partitions else None)


def before(indexes: Sequence[int], index: int) -> int | None:
    """Return the last of the sorted ``indexes`` below ``index``."""
    place = bisect_left(indexes, index)
    return indexes[place - 1] if place > 0 else None


def behind(indexes: Sequence[int], index: int) -> int | None:
    """Return the first of the sorted ``indexes`` above ``index``."""
    place = bisect_right(indexes, index)
    return indexes[place] if place < len(indexes) else None


def _is_anywhere(event: Event) -> bool:
    return event.kind in ALWAYS_SHOWN and not event.partitions


def _natural(partition: str) -> tuple[str, int]:
    """Return the key that sorts ``t-2`` before ``t-10``."""
    found = re.fullmatch(r"(.*)-([0-9]{1,9})", partition, re.DOTALL)
    return (found[1], int(found[2])) if found is not None else (partition, -1)
