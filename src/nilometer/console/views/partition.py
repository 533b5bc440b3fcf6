"""The page of one partition: its replicas as their brokers describe them, and their segments. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.client.replicas.replica_survey import ReplicaRow, Survey
from nilometer.console.views.figure import Figure, ReplicaOffsets, figures
from nilometer.console.views.hold import Hold, why_held
from nilometer.identifiers import NO_LEADER
from nilometer.wire.own_apis import LEADER, LeaderState, ReplicaState, SegmentsState, SegmentState

# The segments of a partition's replicas, side by side by base offset. Pure.

ROWS_MAX = 50
"""How many base offsets are shown: the newest."""
UNUSABLE = "its log cannot be used"
EARLIER_VERSION = "its broker is of a version that does not describe segments"


class SegmentCell(msgspec.Struct, frozen=True):
    """A segment of one replica."""

    size_bytes: int
    modified_ms: int
    """In ms since the epoch; -1: not known."""
    is_active: bool
    """Whether records are appended to it."""


class SegmentRow(msgspec.Struct, frozen=True):
    base_offset: int
    largest_timestamp: int
    """In ms since the epoch, as one of the brokers knows it; -1: not known."""
    cells: tuple[SegmentCell | None, ...]
    """For each of ``SegmentsView.brokers``; None: its replica has no segment with this base offset."""


class SegmentsView(msgspec.Struct, frozen=True):
    brokers: tuple[int, ...]
    """Those that describe their segments."""
    counts: tuple[int, ...]
    """How many segments each of them has."""
    rows: tuple[SegmentRow, ...]
    """The newest first."""
    is_cut: bool
    """Whether there are older segments that are not shown."""
    absent: tuple[tuple[int, str], ...]
    """The brokers that do not describe theirs, and why."""


def segments_view(rows: Sequence[ReplicaRow]) -> SegmentsView:
    """``rows``: the replicas of one partition."""
    known = {row.broker_id: found for row in rows if (found := _segments(row)) is not None}
    by_offset = {broker: {one.base_offset: one for one in found.newest} for broker, found in known.items()}
    offsets = sorted({offset for found in by_offset.values() for offset in found}, reverse=True)
    shown = offsets[:ROWS_MAX]
    return SegmentsView(
        brokers=tuple(known),
        counts=tuple(found.count for found in known.values()),
        rows=tuple(_row(offset, known, by_offset) for offset in shown),
        is_cut=len(shown) < len(offsets) or any(one.count > len(one.newest) for one in known.values()),
        absent=tuple((row.broker_id, _why_absent(row)) for row in rows if row.broker_id not in known),
    )


def _segments(row: ReplicaRow) -> SegmentsState | None:
    return None if row.state is None else row.state.segments


def _why_absent(row: ReplicaRow) -> str:
    if row.state is None:
        return row.failure or "it does not respond"
    return UNUSABLE if row.state.log_end_offset < 0 else EARLIER_VERSION


def _row(
    offset: int, known: dict[int, SegmentsState], by_offset: dict[int, dict[int, SegmentState]]
) -> SegmentRow:
    found = {broker: segments.get(offset) for broker, segments in by_offset.items()}
    cells = tuple(_cell(known[broker], segment) for broker, segment in found.items())
    largest = max(-1 if segment is None else segment.largest_timestamp for segment in found.values())
    return SegmentRow(offset, largest, cells)


def _cell(log: SegmentsState, segment: SegmentState | None) -> SegmentCell | None:
    if segment is None:
        return None
    return SegmentCell(segment.size_bytes, segment.modified_ms, segment is log.newest[-1])


IN_SYNC, ELIGIBLE, OUT_OF_SYNC, UNKNOWN = "ISR", "ELR", "OSR", "unknown"


class Eligible(msgspec.Struct, frozen=True):
    """Replicas outside the ISR that certainly have all acknowledged records (KIP-966)."""

    replicas: tuple[int, ...] = ()
    last_known_leader: int | None = None


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    broker_id: int
    role: str
    """As its broker reports it, or ``unreachable``."""
    membership: str
    """``ISR``, ``ELR``, ``OSR`` or ``unknown``."""
    is_reachable: bool
    failure: str | None
    """Why its broker does not describe it."""
    is_waited_for: bool
    """Whether the high watermark waits for it."""
    leader_epoch: int | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    flushed_offset: int | None = None
    size_bytes: int | None = None
    remote_log_end_offset: int | None = None
    """Its log end offset as the leader knows it; None for the leader."""
    lag: int | None = None
    """How many offsets the leader's log end is ahead of what the leader knows of it."""
    caught_up_age_ms: int | None = None
    epoch_chain: tuple[tuple[int, int], ...] = ()
    problems: tuple[str, ...] = ()


class PartitionView(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    partitions: int
    """The number of partitions of the topic."""
    leader_id: int | None
    leader_epoch: int | None
    epoch_start_offset: int | None
    partition_epoch: int | None
    assigned: tuple[int, ...]
    isr: tuple[int, ...]
    pending_isr: tuple[int, ...] | None
    """The ISR that the leader has requested from the controller."""
    maximal_isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known_leader: int | None
    osr: tuple[int, ...]
    needed_in_sync: int | None
    log_start_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    log_end_offset: int | None
    hold: Hold
    replicas: tuple[ReplicaView, ...]
    figures: tuple[Figure, ...]
    segments: SegmentsView

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """The leader's epoch chain, or the longest that is known."""
        chains = [one.epoch_chain for one in self.replicas]
        of_leader = [one.epoch_chain for one in self.replicas if one.broker_id == self.leader_id]
        return of_leader[0] if of_leader and of_leader[0] else max(chains, key=len, default=())


def partition_view(survey: Survey, topic: str, partition: int, eligible: Eligible) -> PartitionView:
    """Return the page of a partition from a survey of it.

    ``eligible``: its ELR, as a broker's metadata has it.
    """
    rows = [row for row in survey.rows if (row.topic, row.partition) == (topic, partition)]
    newest = _newest(rows)
    leader_id = _leader_id(survey, newest, topic, partition)
    led = next((row.state for row in rows if row.broker_id == leader_id), None)
    leader = led.leader if led is not None and led.role == LEADER else None
    isr = leader.isr if leader is not None else newest.isr if newest is not None else ()
    assigned = newest.replicas if newest is not None else tuple(row.broker_id for row in rows)
    elr = tuple(one for one in eligible.replicas if one not in isr)
    hold = why_held(rows, leader_id)
    replicas = tuple(_replica(row, isr, elr, led if leader is not None else None, hold) for row in rows)
    return PartitionView(
        topic=topic,
        partition=partition,
        partitions=survey.metadata.partition_count(topic),
        leader_id=None if leader_id == NO_LEADER else leader_id,
        leader_epoch=None if newest is None else newest.leader_epoch,
        epoch_start_offset=None if leader is None else leader.epoch_start_offset,
        partition_epoch=None if newest is None else newest.partition_epoch,
        assigned=assigned,
        isr=isr,
        pending_isr=None if leader is None else leader.pending_isr,
        maximal_isr=isr if leader is None else leader.maximal_isr,
        elr=elr,
        last_known_leader=eligible.last_known_leader,
        osr=tuple(one for one in assigned if one not in isr),
        needed_in_sync=None if leader is None else leader.needed_in_sync,
        log_start_offset=_of(led, "log_start_offset") if leader is not None else None,
        high_watermark=_of(led, "high_watermark") if leader is not None else None,
        last_stable_offset=_of(led, "last_stable_offset") if leader is not None else None,
        log_end_offset=_of(led, "log_end_offset") if leader is not None else None,
        hold=hold,
        replicas=replicas,
        figures=figures([_offsets(one) for one in replicas]),
        segments=segments_view(rows),
    )


def _newest(rows: Sequence[ReplicaRow]) -> ReplicaState | None:
    states = [row.state for row in rows if row.state is not None]
    return max(states, key=lambda state: (state.partition_epoch, state.leader_epoch), default=None)


def _leader_id(survey: Survey, newest: ReplicaState | None, topic: str, partition: int) -> int:
    if newest is not None:
        return newest.leader_id
    listed = survey.metadata.topics.get(topic)
    if listed is None or partition >= len(listed.partitions):
        return NO_LEADER
    return listed.partitions[partition].leader_id


def _replica(
    row: ReplicaRow, isr: Sequence[int], elr: Sequence[int], led: ReplicaState | None, hold: Hold
) -> ReplicaView:
    state, seen = row.state, row.seen_by_leader
    remote = None if seen is None or seen.log_end_offset < 0 else seen.log_end_offset
    return ReplicaView(
        broker_id=row.broker_id,
        role="unreachable" if state is None else state.role,
        membership=_membership(row, isr, elr),
        is_reachable=state is not None,
        failure=row.failure,
        is_waited_for=row.broker_id in hold.replicas,
        leader_epoch=_of(state, "leader_epoch"),
        log_start_offset=_of(state, "log_start_offset"),
        log_end_offset=_of(state, "log_end_offset"),
        high_watermark=_of(state, "high_watermark"),
        last_stable_offset=_of(state, "last_stable_offset"),
        flushed_offset=_of(state, "flushed_offset"),
        size_bytes=_of(state, "size_bytes"),
        remote_log_end_offset=remote,
        lag=None if led is None or remote is None else max(0, led.log_end_offset - remote),
        caught_up_age_ms=None if seen is None else seen.caught_up_age_ms,
        epoch_chain=() if state is None else state.epoch_chain,
        problems=() if state is None else state.problems,
    )


def _membership(row: ReplicaRow, isr: Sequence[int], elr: Sequence[int]) -> str:
    if row.broker_id in isr:
        return IN_SYNC
    if row.in_sync is None:
        return UNKNOWN
    return ELIGIBLE if row.broker_id in elr else OUT_OF_SYNC


def _of(state: ReplicaState | LeaderState | None, name: str) -> int | None:
    """Return a number that the broker reports; None if it does not (-1)."""
    value: int = -1 if state is None else getattr(state, name)
    return None if value < 0 else value


def _offsets(one: ReplicaView) -> ReplicaOffsets:
    return ReplicaOffsets(
        broker_id=one.broker_id,
        log_start_offset=one.log_start_offset,
        log_end_offset=one.log_end_offset,
        high_watermark=one.high_watermark,
        last_stable_offset=one.last_stable_offset,
        remote_end_offset=one.remote_log_end_offset,
        epoch_chain=one.epoch_chain,
    )
