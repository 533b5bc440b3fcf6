"""Replaying a recording: the state of all replicas, brokers and messages after any of its events.

The state after an event is that of the nearest key frame before it, and the events since: a step to any place
of a long recording costs at most :data:`KEY_FRAME_EVENTS` events.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from nilometer.identifiers import UNKNOWN_OFFSET, BrokerId
from nilometer.replication.follower import FollowerRole
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole
from nilometer.simulation.recording import Change, Event, Kind, Recording, Role, Status, applied_fields

# A replica's state, and what has changed between two of them: the change, its kind, and a text about it.


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """The fields are those of :class:`~nilometer.simulation.recording.Change`."""

    role: Role = Role.NONE
    leader_epoch: int = -1
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    isr: tuple[int, ...] = ()
    followers: dict[int, int] = msgspec.field(default_factory=dict[int, int])


class Difference(NamedTuple):
    kind: Kind
    text: str
    change: Change


def after(state: ReplicaState, change: Change) -> ReplicaState:
    return msgspec.structs.replace(state, **applied_fields(change))


def first_state(partition: str, state: ReplicaState) -> Difference:
    """Return the event of a replica that was not known before; its change has all fields."""
    text = (
        f"has {partition}: log start {state.log_start_offset}, LEO {state.log_end_offset}, "
        f"HW {state.high_watermark}, {_role(state)}"
    )
    return Difference(Kind.REPLICA, text, Change(**_fields(state)))


def difference(
    partition: str, before: ReplicaState, now: ReplicaState, name: Callable[[int], str] = str
) -> Difference | None:
    """Return what has changed; None if nothing has.

    The kind is that of the most important change, the text names all. ``name`` returns a broker's name.
    """
    if before == now:
        return None
    parts = list(_parts(before, now, name))
    old = _fields(before)
    changed = {name: value for name, value in _fields(now).items() if value != old[name]}
    kind = parts[0][0] if parts else Kind.ROLE
    text = "; ".join(text for _, text in parts) or _role(now)
    return Difference(kind, f"{partition}: {text}", Change(**changed))


def _parts(before: ReplicaState, now: ReplicaState, name: Callable[[int], str]) -> Iterator[tuple[Kind, str]]:
    """Yield each change, the most important one first."""
    end = before.log_end_offset
    if (cut := _truncated_to(before, now)) is not None:
        yield Kind.TRUNCATION, f"truncates its log from {end} to {cut}"
        end = cut
    if (before.role, before.leader_epoch) != (now.role, now.leader_epoch):
        yield Kind.ROLE, _role(now)
    if before.isr != now.isr and now.role is Role.LEADER:
        yield Kind.ISR, f"ISR {', '.join(map(name, now.isr))}"
    if now.log_start_offset != before.log_start_offset:
        yield Kind.LOG_START, f"log start {before.log_start_offset} → {now.log_start_offset}"
    if now.log_end_offset > end:
        count = now.log_end_offset - end
        yield (
            Kind.APPEND,
            f"appends {count} record{'s' if count > 1 else ''}, LEO {end} → {now.log_end_offset}",
        )
    if now.high_watermark != before.high_watermark:
        yield Kind.HIGH_WATERMARK, f"HW {before.high_watermark} → {now.high_watermark}"
    for follower, offset in now.followers.items():
        if before.followers.get(follower, -1) != offset:
            yield Kind.FOLLOWER_POSITION, f"knows that {name(follower)} ends at {offset}"


def _truncated_to(before: ReplicaState, now: ReplicaState) -> int | None:
    """Return the offset to which the log was truncated between the states, before any append; None: it was
    not.

    A new epoch that begins below the old end shows a truncation that appends have hidden.
    """
    known = {epoch for epoch, _ in before.epochs}
    begins = [start for epoch, start in now.epochs if epoch not in known]
    lowest = min([now.log_end_offset, *begins])
    return lowest if lowest < before.log_end_offset else None


def _role(state: ReplicaState) -> str:
    match state.role:
        case Role.LEADER:
            return f"leads in epoch {state.leader_epoch}"
        case Role.FOLLOWER:
            return f"follows in epoch {state.leader_epoch}"
        case Role.NONE:
            return "has no role"


def _fields(state: ReplicaState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}


# The recorded state of a replica, from its role and its log. Nothing is changed.


def state_of(
    role: LeaderRole | FollowerRole | NoRole,
    log: tuple[int, int],
    epochs: tuple[tuple[int, int], ...],
    number: Callable[[BrokerId], int] = int,
) -> ReplicaState:
    """``log``: its start and end offset; ``number``: the number of a broker in the recording."""
    start, end = log
    match role:
        case LeaderRole():
            kind = Role.LEADER
        case FollowerRole():
            kind = Role.FOLLOWER
        case NoRole():
            kind = Role.NONE
    leader = role if isinstance(role, LeaderRole) else None
    return ReplicaState(
        role=kind,
        leader_epoch=-1 if isinstance(role, NoRole) else role.leader_epoch,
        log_start_offset=start,
        log_end_offset=end,
        high_watermark=role.high_watermark,
        epochs=epochs,
        isr=() if leader is None else tuple(number(one) for one in leader.isr),
        followers={} if leader is None else _followers(leader, number),
    )


def _followers(leader: LeaderRole, number: Callable[[BrokerId], int]) -> dict[int, int]:
    return {
        number(one.broker_id): one.log_end_offset
        for one in leader.remote_replicas
        if one.log_end_offset != UNKNOWN_OFFSET
    }


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
