"""Copying a log into another folder, slice by slice, while it is appended to, truncated and deleted from.

The copy follows its *source* as a follower follows its leader: the leader epochs show where the two differ
(:func:`next_step`). While a function here runs, on any thread, nothing else uses the copy; the source may be
used by its owner. The caller compares both logs again before the copy replaces the source
(:meth:`~.log_state.LogState.exchange_with`).
"""

from __future__ import annotations

import contextlib
import enum
from typing import NamedTuple

from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.storage import flushing
from nilometer.storage.checkpoints import make_durable
from nilometer.storage.errors import (
    CorruptRecordFound,
    OffsetInTier,
    OffsetOutOfRange,
    UnexpectedAppendOffset,
)
from nilometer.storage.log import Log
from nilometer.storage.log_state import LogState
from nilometer.storage.producers import CorruptSnapshot
from nilometer.storage.removal import delete_below_log_start
from nilometer.wire.compression import Bytes


class StepKind(enum.Enum):
    COPY = "copy"
    """The copy is a prefix of its source."""
    TRUNCATE = "truncate"
    """The copy has records that its source does not have, or other ones."""
    START_AGAIN = "start again"
    """The copy has no record that its source has, or lacks the first ones."""
    NOTHING = "nothing"
    """Both logs end at the same offset."""


class Step(NamedTuple):
    kind: StepKind
    offset: int = 0
    """Where to truncate the copy, or to start again."""


def next_step(source: LogState, copy: LogState) -> Step:
    """Return what brings ``copy`` nearer to ``source``. After TRUNCATE the next step may be another one.

    For two logs whose records are the same wherever their leader epochs are (KIP-101).
    """
    end, start = copy.log_end_offset, source.local_start_offset
    if end < start or copy.log_start_offset > start:
        return Step(StepKind.START_AGAIN, start)
    common = min(_common_end(source, copy), source.log_end_offset)
    if common < end:
        if common <= copy.log_start_offset:
            return Step(StepKind.START_AGAIN, start)
        return Step(StepKind.TRUNCATE, common)
    return Step(StepKind.COPY if end < source.log_end_offset else StepKind.NOTHING)


def _common_end(source: LogState, copy: LogState) -> int:
    """Return an offset below the end of ``copy`` at which the logs may diverge, else the end of ``copy``."""
    latest = copy.latest_epoch
    if latest == NO_LEADER_EPOCH:
        return copy.log_end_offset
    epoch, end = source.end_offset_for_epoch(latest)
    if epoch == latest:
        return min(end, copy.log_end_offset)
    if epoch == NO_LEADER_EPOCH:  # all epochs of the source are earlier
        epoch, end = source.latest_epoch, source.log_end_offset
        if epoch == NO_LEADER_EPOCH:
            return copy.log_start_offset
    known, own_end = copy.end_offset_for_epoch(epoch)
    if known == NO_LEADER_EPOCH:
        return copy.log_start_offset
    return min(own_end, end) if known == epoch else own_end


class SourceUnreadable(Exception):
    """The source could not be read: ``reason`` is the error of its disk, or the damage found."""

    def __init__(self, reason: OSError | CorruptRecordFound) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Slice(NamedTuple):
    """The result of :func:`copy_slice`."""

    size: int
    """The bytes that were copied; 0 also if the source was truncated, or its first records were deleted."""
    is_at_gap: bool = False
    """Whether the source has no records from the end of the copy to its own: compaction removed them."""


def copy_slice(source: Log, copy: Log, bytes_max: int, *, truncations: int, wall_ms: int) -> Slice:
    """Append the next batches of ``source``, about ``bytes_max`` bytes, to ``copy``.

    ``truncations``: those of the source when the copy was a prefix of it. Nothing is appended that was read
    after another one: behind records that the source has no more it would hide them, since only the last
    leader epoch of the copy is compared. May block. Raises SourceUnreadable, LogFenced (the copy), KafkaError
    (a batch is damaged).
    """
    copied = 0
    while copied < bytes_max:
        size, is_at_gap = _copy_some(source, copy, bytes_max - copied, truncations, wall_ms)
        if not size:
            return Slice(copied, is_at_gap)
        copied += size
    return Slice(copied)


def _copy_some(source: Log, copy: Log, bytes_max: int, truncations: int, wall_ms: int) -> Slice:
    try:
        found = source.read(copy.log_end_offset, bytes_max, source.log_end_offset)
    except (OffsetInTier, OffsetOutOfRange):
        return Slice(0)
    except (OSError, CorruptRecordFound) as error:
        raise SourceUnreadable(error) from error
    if found is None or source.truncations != truncations:
        return Slice(0)
    if not found.records:
        return Slice(0, copy.log_end_offset < source.log_end_offset)
    return Slice(append_copied(source, copy, found.records, wall_ms=wall_ms))


def append_copied(source: Log, copy: Log, records: Bytes, *, wall_ms: int) -> int:
    """Append batches of ``source`` to ``copy``; return their size. Raises LogFenced, KafkaError."""
    try:
        info = copy.append_as_follower(records, wall_ms=wall_ms)
    except UnexpectedAppendOffset:  # a batch of the source contains the end of the copy
        start_again(source, copy, source.local_start_offset, wall_ms=wall_ms)
        return 0
    return 0 if info is None else info.size


def extend_over_gap(source: LogState, copy: LogState, *, wall_ms: int) -> None:
    """Let ``copy`` end where ``source`` ends, which has no records between: compaction removed them.

    Raises OSError.
    """
    if copy.log_end_offset < source.log_end_offset:
        copy.allow_gaps()
        copy.extend_to(source.log_end_offset, wall_ms)


def truncate(copy: Log, offset: int, *, wall_ms: int) -> None:
    """Remove the records of ``copy`` from ``offset`` on. May block. Raises LogFenced, OSError."""
    truncation = copy.truncate_to(offset, wall_ms=wall_ms)
    make_durable(copy.files.disk, copy.segments.active.log_path)  # before the next append
    _remove(copy, truncation.removable)


def start_again(source: LogState, copy: Log, offset: int, *, wall_ms: int) -> None:
    """Remove all records of ``copy``, which starts at ``offset`` then. Raises as :func:`truncate`.

    If the records of ``source`` below are in remote storage, its snapshot says which producers had written
    them: a transaction may end here that began there.
    """
    _remove(copy, copy.truncate_fully_and_start_at(offset, wall_ms=wall_ms).removable)
    if source.begins_in_tier:
        # Without a snapshot they are unknown, as in a log that is opened without one.
        with contextlib.suppress(FileNotFoundError, CorruptSnapshot):
            snapshot = source.files.disk.read_file(source.producers.snapshot_path(offset))
            copy.producers.restore(snapshot, offset, wall_ms)
            copy.producers.take_snapshot(sync=True)


def follow_log_start(copy: Log, offset: int, *, wall_ms: int) -> None:
    """Raise the log start offset of ``copy`` to the local one of its source, and delete the segments below.

    May block. Raises LogFenced, OSError.
    """
    if offset > copy.log_start_offset:
        copy.advance_log_start_offset(min(offset, copy.log_end_offset), copy.log_end_offset)
        while removable := delete_below_log_start(copy, wall_ms):
            _remove(copy, removable)


def flush(copy: Log, *, wall_ms: int) -> None:
    """Make ``copy`` durable. Blocks on the disk. Raises OSError."""
    plan = flushing.plan_flush(copy)
    plan.run()
    flushing.mark_flushed(copy, plan, wall_ms=wall_ms)


def _remove(copy: Log, paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            copy.files.disk.remove(path)
