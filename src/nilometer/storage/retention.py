"""Deleting old segments: by time, by size, or because the log start offset is above them.

Only whole segments below the high watermark are deleted (KAFKA-5634), oldest first. If the active segment is
to be deleted as well, a new one replaces it. Files are renamed to ``.deleted`` at once, so that a restart
would remove them, and returned to the caller, which removes them later.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise

from nilometer.storage.errors import LogFenced
from nilometer.storage.log_state import LogState
from nilometer.storage.segments.segment import LogSegment
from nilometer.wire.errors import ErrorCode, KafkaError

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
    removable = _delete_while(log, high_watermark, wall_ms, _below_log_start(log))
    if log.config.is_deleted_by_retention:
        if log.config.retention_bytes >= 0:
            removable += _delete_while(log, high_watermark, wall_ms, _beyond_size(log))
        if log.config.retention_ms >= 0:
            removable += _delete_while(log, high_watermark, wall_ms, _beyond_age(log, wall_ms))
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


IsDue = Callable[[LogSegment, LogSegment | None], bool]


def _below_log_start(log: LogState) -> IsDue:
    return lambda _, following: following is not None and following.base_offset <= log.log_start_offset


def _beyond_size(log: LogState) -> IsDue:
    excess = log.size - log.config.retention_bytes

    def is_due(segment: LogSegment, _: LogSegment | None) -> bool:
        nonlocal excess
        excess -= segment.size
        return excess >= 0

    return is_due


def _beyond_age(log: LogState, wall_ms: int) -> IsDue:
    return lambda segment, _: wall_ms - segment.largest_timestamp() > log.config.retention_ms


def _delete_while(log: LogState, high_watermark: int, wall_ms: int, is_due: IsDue) -> list[str]:
    due: list[LogSegment] = []
    for segment, following in pairwise(chain(log.segments, (None,))):
        assert segment is not None, "only the last one is followed by none"
        end = following.base_offset if following is not None else log.log_end_offset
        is_empty_active = following is None and segment.size == 0
        if len(due) == SEGMENTS_AT_ONCE or high_watermark < end or is_empty_active:
            break
        if not is_due(segment, following):
            break
        due.append(segment)
    if not due:
        return []
    try:
        if len(due) == len(log.segments):
            log.roll(wall_ms)
        return _delete(log, due)
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error


def _delete(log: LogState, due: list[LogSegment]) -> list[str]:
    following = log.segments.higher(due[-1].base_offset)
    assert following is not None, "the active segment is never deleted"
    log.move_log_start(following.base_offset)
    log.segments.remove_oldest(len(due))
    log.forget_deleted(due)
    removable: list[str] = []
    for segment in due:
        removable += segment.mark_deleted()
    log.producers.remove_snapshots([segment.base_offset for segment in due])
    return removable
