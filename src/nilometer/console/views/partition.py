"""The page of one partition: its replicas as their brokers describe them, their figure on one axis of
offsets, and their segments. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.client.admin.replica_survey import ReplicaRow, Survey
from nilometer.console.views.hold import Hold, why_held
from nilometer.identifiers import NO_LEADER
from nilometer.wire.own_apis import LEADER, LeaderState, ReplicaState, SegmentsState, SegmentState

# The figure of a partition: one track for each replica, all on the same axis of offsets. Pure.
#
# Places are percentages of the figure's width, so that a page can scale it. A log may have millions of
# records, and its replicas differ in the last few: :func:`figures` returns the whole log and, if that hides
# the differences, the end of it magnified.

EPOCH_COLOURS = 6
TICKS_MAX = 6
MARGIN = 0.08
"""How much room the magnified end has on each side of what it must show, as a share of it."""
MAGNIFY_BELOW = 0.5
"""The end is magnified if it is less than this share of the whole log."""
CELLS_MAX = 48
"""Up to this many offsets the figure has a line between each two records."""


class ReplicaOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure needs of a replica; None: not known."""

    broker_id: int
    log_start_offset: int | None
    log_end_offset: int | None
    high_watermark: int | None
    last_stable_offset: int | None
    remote_end_offset: int | None = None
    """The log end offset as the leader knows it."""
    epoch_chain: tuple[tuple[int, int], ...] = ()
    """(leader epoch, start offset), oldest first."""


class Run(msgspec.Struct, frozen=True):
    """The records of one leader epoch in a replica's log: offsets from ``start`` up to ``end``, exclusive."""

    epoch: int
    start: int
    end: int
    colour: int
    """0 to :data:`EPOCH_COLOURS` - 1; the same for an epoch in every track."""
    x: float
    width: float


class Track(msgspec.Struct, frozen=True):
    broker_id: int
    runs: tuple[Run, ...]
    log_x: float | None
    """Where the visible part of the log begins; None: the log is empty, outside the axis, or not known."""
    log_width: float
    uncommitted_x: float | None
    uncommitted_width: float
    high_watermark_x: float | None
    last_stable_x: float | None
    end_x: float | None
    remote_x: float | None


class Tick(msgspec.Struct, frozen=True):
    offset: int
    x: float


class Figure(msgspec.Struct, frozen=True):
    low: int
    """The first offset of the axis."""
    high: int
    """The offset at the end of the axis."""
    ticks: tuple[Tick, ...]
    cells: tuple[float, ...]
    """Where one record ends and the next begins; empty if there are too many."""
    tracks: tuple[Track, ...]


def figures(replicas: Sequence[ReplicaOffsets], high_min: int = 0) -> tuple[Figure, ...]:
    """Return the figure of the whole log, and that of its end if it must be magnified.

    Returns nothing if no replica's log end offset is known. ``high_min``: the axis reaches at least to this
    offset.
    """
    known = [
        end for one in replicas for end in (one.log_end_offset, one.remote_end_offset) if end is not None
    ]
    if not known:
        return ()
    starts = [one.log_start_offset for one in replicas if one.log_start_offset is not None]
    low, high = min(starts, default=min(known)), max(*known, high_min)
    colours = _colours(replicas)
    whole = _figure(replicas, low, max(high, low + 1), colours)
    begin = _begin_of_end(replicas, low, high)
    if high - begin < MAGNIFY_BELOW * (high - low) and high - low > CELLS_MAX:
        return whole, _figure(replicas, begin, high, colours)
    return (whole,)


def _begin_of_end(replicas: Sequence[ReplicaOffsets], low: int, high: int) -> int:
    """Return the offset from which on the replicas differ, with a margin before it."""
    marks = [
        mark
        for one in replicas
        for mark in (
            one.log_end_offset,
            one.high_watermark,
            one.last_stable_offset,
            one.remote_end_offset,
            one.epoch_chain[-1][1] if len(one.epoch_chain) > 1 else None,
        )
        if mark is not None
    ]
    near = [mark for mark in marks if high - mark < MAGNIFY_BELOW * (high - low) / (1 + 2 * MARGIN)]
    first = min(near, default=high)
    return max(low, first - max(8, round((high - first) * MARGIN)))


def _colours(replicas: Sequence[ReplicaOffsets]) -> dict[int, int]:
    epochs = sorted({epoch for one in replicas for epoch, _ in one.epoch_chain})
    return {epoch: index % EPOCH_COLOURS for index, epoch in enumerate(epochs)}


def _figure(replicas: Sequence[ReplicaOffsets], low: int, high: int, colours: dict[int, int]) -> Figure:
    axis = _Axis(low, high)
    count = high - low
    cells = tuple(axis.x(low + index) for index in range(1, count)) if count <= CELLS_MAX else ()
    return Figure(low, high, _ticks(axis), cells, tuple(_track(one, axis, colours) for one in replicas))


class _Axis(msgspec.Struct, frozen=True):
    low: int
    high: int

    def x(self, offset: int) -> float:
        """Return the place of an offset, at most the axis' ends."""
        share = (offset - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def mark(self, offset: int | None) -> float | None:
        """Return the place of an offset; None if it is not known or not on the axis."""
        return None if offset is None or not self.low <= offset <= self.high else self.x(offset)


def _ticks(axis: _Axis) -> tuple[Tick, ...]:
    step = _step(axis.high - axis.low)
    first = -(-axis.low // step) * step
    return tuple(Tick(offset, axis.x(offset)) for offset in range(first, axis.high + 1, step))


def _step(count: int) -> int:
    """Return a round distance of ticks: 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if count // (factor * power) < TICKS_MAX:
                return factor * power
        power *= 10


def _track(one: ReplicaOffsets, axis: _Axis, colours: dict[int, int]) -> Track:
    start, end, high_watermark = one.log_start_offset, one.log_end_offset, one.high_watermark
    log_x: float | None = None
    log_width = 0.0
    uncommitted_x: float | None = None
    uncommitted_width = 0.0
    if start is not None and end is not None and end > max(start, axis.low):
        log_x = axis.x(start)
        log_width = round(axis.x(end) - log_x, 3)
        if high_watermark is not None and high_watermark < end:
            uncommitted_x = axis.x(max(start, high_watermark))
            uncommitted_width = round(axis.x(end) - uncommitted_x, 3)
    return Track(
        one.broker_id,
        _runs(one, axis, colours),
        log_x,
        log_width,
        uncommitted_x,
        uncommitted_width,
        axis.mark(high_watermark),
        axis.mark(one.last_stable_offset),
        axis.mark(end),
        axis.mark(one.remote_end_offset),
    )


def _runs(one: ReplicaOffsets, axis: _Axis, colours: dict[int, int]) -> tuple[Run, ...]:
    """Return the epochs that have records on the axis; records before the chain begins belong to none."""
    if one.log_end_offset is None or one.log_start_offset is None or not one.epoch_chain:
        return ()
    ends = [start for _, start in one.epoch_chain[1:]] + [one.log_end_offset]
    runs: list[Run] = []
    for (epoch, begin), end in zip(one.epoch_chain, ends, strict=True):
        first, last = max(begin, one.log_start_offset), min(end, one.log_end_offset)
        if first < last and last > axis.low and first < axis.high:
            x = axis.x(first)
            runs.append(Run(epoch, first, last, colours[epoch], x, round(axis.x(last) - x, 3)))
    return tuple(runs)


# The page of one partition: its replicas as their brokers describe them, and their segments. Pure.

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
