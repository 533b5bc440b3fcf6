"""Truncating a log: from its end, or completely.

Epoch cache and producer state are truncated too (KAFKA-10706, KAFKA-12153). Segments above the offset are
removed first, from the last one down, then the one that contains it is truncated: if the process dies at any
moment, a prefix of the log remains. The caller must hold the log until no checkpoint file has a higher offset
(:meth:`LogCheckpoints.hold_if_exceeded`), or a machine crash could leave torn bytes below a recovery point.
"""

from __future__ import annotations

from typing import NamedTuple

from nilometer.storage import names
from nilometer.storage.damage import Damage
from nilometer.storage.errors import LogFenced
from nilometer.storage.log_state import LogState
from nilometer.storage.segments.batch_scan import scan
from nilometer.storage.segments.segment import LogSegment
from nilometer.wire.errors import KafkaError


class Truncation(NamedTuple):
    """The result of a truncation. ``removable``: files renamed to ``.deleted``, which the caller removes."""

    log_end_offset: int
    removable: list[str]


def truncate_to(log: LogState, offset: int, *, wall_ms: int) -> Truncation:
    """Remove every batch that contains ``offset`` or a higher offset.

    Raises LogFenced, ValueError if ``offset`` is negative.
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
