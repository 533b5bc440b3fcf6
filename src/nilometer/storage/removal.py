"""Removing records of a log: old segments, by time, size or the log start offset; its end, where it diverges
from the leader's; or all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise
from typing import NamedTuple

from nilometer.storage import names
from nilometer.storage.errors import LogFenced
from nilometer.storage.log_state import LogState
from nilometer.storage.recovery import Damage
from nilometer.storage.segments.batch_scan import scan
from nilometer.storage.segments.segment import LogSegment
from nilometer.wire.errors import ErrorCode, KafkaError

# Deleting old segments: by time, by size, or because the log start offset is above them.
#
# Only whole segments below the high watermark are deleted (KAFKA-5634), oldest first. If the active segment
# is to be deleted as well, a new one replaces it. Files are renamed to ``.deleted`` at once, so that a
# restart would remove them, and returned to the caller, which removes them later.
#
# A log that is copied to remote storage still begins at its log start offset when the segments are deleted
# that are there: by ``local.retention.*``, and none that is not there yet. Its log start offset moves when
# the records leave the remote storage, too.

SEGMENTS_AT_ONCE = 16
"""Each of them is several files to rename, and a client may have made a segment of every batch."""


def delete_below_log_start(log: LogState, wall_ms: int) -> list[str]:
    """Delete the oldest segments below the log start offset, as :func:`delete_old_segments` does."""
    return _delete_while(log, log.log_end_offset, wall_ms, _below_log_start(log))


def delete_old_segments(log: LogState, high_watermark: int, wall_ms: int) -> list[str]:
    """Apply the retention policy to the oldest segments; return the renamed files, which the caller removes.

    More segments are due, unless there are none: call it again. Raises LogFenced.
    """
    if log.failure is not None:
        return []
    config, limit, delete = log.config, high_watermark, _delete
    retention_bytes, retention_ms = config.retention_bytes, config.retention_ms
    if config.is_copied_to_tier:
        retention_bytes, retention_ms = config.local_bytes, config.local_ms
        limit, delete = min(high_watermark, log.tiered_offset), _delete_locally
    elif log.begins_in_tier and not config.remote_storage_enable:
        _leave_tier(log)
    removable = _delete_while(log, high_watermark, wall_ms, _below_log_start(log))
    if config.is_deleted_by_retention or config.is_copied_to_tier:  # with an empty cleanup.policy (KIP-1190)
        if retention_bytes >= 0:
            removable += _delete_while(log, limit, wall_ms, _beyond_size(log, retention_bytes), delete)
        if retention_ms >= 0:
            removable += _delete_while(log, limit, wall_ms, _beyond_age(wall_ms, retention_ms), delete)
    return removable


def advance_log_start_offset(log: LogState, offset: int, high_watermark: int) -> bool:
    """Make records below ``offset`` unreadable; return whether the log start offset moved.

    ``offset`` may be inside a batch. Raises KafkaError if it is above the high watermark, LogFenced.
    """
    if offset > high_watermark or offset > log.log_end_offset:
        raise KafkaError(
            ErrorCode.offset_out_of_range,
            f"cannot delete records of {log.name} below {offset}: the high watermark is {high_watermark}",
        )
    before = log.log_start_offset
    try:
        log.move_log_start(offset)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error
    return log.log_start_offset > before


def _leave_tier(log: LogState) -> None:
    try:
        log.leave_tier()
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error


IsDue = Callable[[LogSegment, LogSegment | None], bool]
Delete = Callable[[LogState, list[LogSegment]], list[str]]


def _below_log_start(log: LogState) -> IsDue:
    return lambda _, following: following is not None and following.base_offset <= log.log_start_offset


def _beyond_size(log: LogState, retention_bytes: int) -> IsDue:
    excess = log.size - retention_bytes

    def is_due(segment: LogSegment, _: LogSegment | None) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    return is_due


def _beyond_age(wall_ms: int, retention_ms: int) -> IsDue:
    return lambda segment, _: wall_ms - segment.largest_timestamp() > retention_ms


def _delete(log: LogState, due: list[LogSegment]) -> list[str]:
    following = log.segments.higher(due[-1].base_offset)
    assert following is not None, "the active segment is never deleted"
    log.move_log_start(following.base_offset)
    return _delete_files(log, due)


def _delete_locally(log: LogState, due: list[LogSegment]) -> list[str]:
    log.begin_in_tier()
    return _delete_files(log, due)


def _delete_while(
    log: LogState, limit: int, wall_ms: int, is_due: IsDue, delete: Delete = _delete
) -> list[str]:
    due: list[LogSegment] = []
    for segment, following in pairwise(chain(log.segments, (None,))):
        assert segment is not None, "only the last one is followed by none"
        end = following.base_offset if following is not None else log.log_end_offset
        is_empty_active = following is None and segment.size == 0
        if len(due) == SEGMENTS_AT_ONCE or limit < end or is_empty_active:
            break
        if not is_due(segment, following):
            break
        due.append(segment)
    if not due:
        return []
    try:
        if len(due) == len(log.segments):
            log.roll(wall_ms)
        return delete(log, due)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error


def _delete_files(log: LogState, due: list[LogSegment]) -> list[str]:
    log.segments.remove_oldest(len(due))
    log.forget_deleted(due)
    removable: list[str] = []
    for segment in due:
        removable += segment.mark_deleted()
    log.producers.remove_snapshots([segment.base_offset for segment in due])
    return removable


# Truncating a log: from its end, or completely.
#
# Epoch cache and producer state are truncated too (KAFKA-10706, KAFKA-12153). Segments above the offset are
# removed first, durably, from the last one down, then the one that contains it is truncated: if the process
# or the machine dies at any moment, a prefix of the log remains. The caller must hold the log
# (:meth:`LogCheckpoints.hold_truncated`) until no checkpoint file has a higher offset, or a machine crash
# could leave torn bytes below a recovery point; and until the truncation is durable, or one could leave
# removed records below new ones.


class Truncation(NamedTuple):
    """The result of a truncation. ``removable``: files renamed to ``.deleted``, which the caller removes."""

    log_end_offset: int
    removable: list[str]


def truncate_to(log: LogState, offset: int, *, wall_ms: int) -> Truncation:
    """Remove every batch that contains ``offset`` or a higher offset.

    Syncs the folder if whole segments are removed, so it may block. Raises LogFenced, ValueError if
    ``offset`` is negative.
    """
    log.check_writable()
    if offset < 0:
        raise ValueError(f"cannot truncate {log.name} to {offset}")
    if offset >= log.log_end_offset:
        # An epoch that starts at the log end offset has no record; it may contradict the leader (KAFKA-10706)
        log.epochs.truncate_from_end(log.log_end_offset)
        log.note_epochs_written()
        return Truncation(log.log_end_offset, [])
    try:
        if offset < log.segments.first.base_offset:
            if log.begins_in_tier:  # what its producers had done by then is in remote storage only
                offset = log.log_start_offset
            return truncate_fully_and_start_at(log, offset, wall_ms=wall_ms)
        return _cut(log, offset, wall_ms)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error


def truncate_fully_and_start_at(log: LogState, offset: int, *, wall_ms: int) -> Truncation:
    """Remove all records; the next record gets ``offset``, which is the log start offset, too.

    For a follower whose log end offset is no longer in the leader's log. Rare; syncs the folder, so it may
    block. Raises LogFenced.
    """
    log.check_writable()
    try:
        log.begin_truncation()
        removable: list[str] = []
        gone = tuple(log.segments)
        log.segments.remove(gone)
        for segment in reversed(gone):
            removable += segment.mark_deleted()
        log.epochs.clear()
        log.producers.truncate_fully(offset)
        log.empty_at(offset)
        log.new_segment(offset, wall_ms)
        log.leave_tier()
        log.files.disk.sync_directory(log.folder)  # or a power failure could bring the old segments back
        return Truncation(offset, removable)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error


def resolve_gap(log: LogState, *, wall_ms: int) -> Damage | None:
    """End the log before the gap that was found when it was opened; return the damage, None without gap.

    Called when the caller has decided that the gap is a loss of data. The files after it are renamed to
    ``.corrupt``. Raises LogFenced.
    """
    gap = log.take_gap()
    if gap is None:
        return None
    log.check_writable()
    try:
        damage = gap.as_damage(_cut(log, gap.offset, wall_ms, names.CORRUPT_SUFFIX).removable)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error
    log.note_damage(damage)
    return damage


def _cut(log: LogState, offset: int, wall_ms: int, suffix: str = names.DELETED_SUFFIX) -> Truncation:
    log.begin_truncation()
    removable: list[str] = []
    gone = [segment for segment in log.segments if segment.base_offset > offset]
    log.segments.remove(gone)
    log.note_synced([segment.base_offset for segment in gone])
    for segment in reversed(gone):
        removable += segment.mark_deleted(suffix)
    log.producers.remove_snapshots([segment.base_offset for segment in gone])
    if gone:  # or a power failure could leave them beside the shortened segment, below a recovery point
        log.files.disk.sync_directory(log.folder)
    active = log.segments.active
    position, end_offset = _find_cut(active, offset, log.may_have_gaps)
    active.truncate_to(end_offset, position)
    log.note_synced([active.base_offset])
    log.shorten_to(end_offset)
    log.epochs.truncate_from_end(end_offset)
    replay_producers(log, wall_ms)
    return Truncation(end_offset, removable)


def _find_cut(segment: LogSegment, offset: int, may_have_gaps: bool) -> tuple[int, int]:
    """Return the byte position at which to truncate the segment, and the log end offset after that.

    It is the position of the first batch that contains ``offset`` or a higher one. An unreadable header ends
    the log earlier, since no batch can be found after it; so does a batch whose base offset is below the end
    of the batch before it, or above that in a log without gaps (the CRC does not cover the base offset).
    """
    position = segment.position_near(offset)
    floor, is_exact = segment.base_offset, position == 0
    try:
        for batch in scan(segment.open_log(), position, segment.size):
            base_offset = batch.header.base_offset
            if base_offset < floor or (base_offset > floor and is_exact and not may_have_gaps):
                return batch.position, min(offset, floor)
            floor, is_exact = batch.header.next_offset, True
            if batch.header.last_offset >= offset:
                return batch.position, min(offset, base_offset)
            position = batch.position + batch.header.size
    except KafkaError:
        return _before_damage(segment)
    return (segment.size, offset) if position == segment.size else _before_damage(segment)


def _before_damage(segment: LogSegment) -> tuple[int, int]:
    position, end_offset = 0, segment.base_offset
    try:
        for batch in scan(segment.open_log(), 0, segment.size):
            if batch.header.base_offset < end_offset:
                break
            position, end_offset = batch.position + batch.header.size, batch.header.next_offset
    except KafkaError:
        pass  # the damage: the log ends before it
    return position, end_offset


def replay_producers(log: LogState, wall_ms: int) -> None:
    """Rebuild the producer state at the log end offset: newest valid snapshot, then the batches after it."""
    producers = log.producers
    producers.load_latest(log.log_start_offset, log.log_end_offset, wall_ms)
    start = producers.map_end_offset
    try:
        for segment in log.segments.from_offset(start):
            for batch in scan(segment.open_log(), segment.position_near(start), segment.size):
                if batch.header.last_offset >= start:
                    producers.replay(batch.buffer, batch.at, batch.header)
    except KafkaError:
        pass  # damage below the cut: reads will report it
    producers.map_end_offset = log.log_end_offset
