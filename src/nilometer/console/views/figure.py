"""The figure of a partition: one track for each replica, all on the same axis of offsets. Pure.

Places are percentages of the figure's width, so that a page can scale it. A log may have millions of records,
and its replicas differ in the last few: :func:`figures` returns the whole log and, if that hides the
differences, the end of it magnified.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

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
