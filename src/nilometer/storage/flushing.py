"""Making a log durable in three steps: plan (owner's thread), sync (any thread), record (owner's thread).

A plan lists files by path and opens them itself, so it does not use the log while it runs. It makes the
records below ``offset`` durable: it syncs their log files, all files of segments sealed since the last flush,
the epoch checkpoint if it changed, and the folder if names in it changed. If the log was truncated while the
plan ran, its result is ignored.
"""

from __future__ import annotations

import contextlib
import posixpath

import msgspec

from nilometer.runtime import Disk
from nilometer.storage.log_state import LogState
from nilometer.storage.producers import DeferredSnapshot


class FlushPlan(msgspec.Struct, frozen=True):
    disk: Disk
    offset: int
    """Every record below is durable once :meth:`run` has returned."""
    paths: tuple[str, ...]
    """The files to sync; those that exist."""
    folders: tuple[str, ...]
    """The folders to sync."""
    sealed: tuple[int, ...]
    """Base offsets of the sealed segments whose files are in ``paths``."""
    snapshot: DeferredSnapshot | None
    """The snapshot of producers to write."""
    truncations: int
    """This and the next two: the log's counters when the plan was made."""
    name_changes: int
    epoch_writes: int

    def run(self) -> None:
        """Sync the files and folders. Blocks, so run it on another thread.

        Raises OSError: the caller must then fence the log with it.
        """
        if self.snapshot is not None:
            with contextlib.suppress(FileNotFoundError):  # its folder was deleted since the plan was made
                self.snapshot.write(self.disk)
        for path in self.paths:
            try:
                file = self.disk.open(path)
            except FileNotFoundError:
                continue  # the segment needs none, or has been removed since the plan was made
            try:
                file.sync()
            finally:
                file.close()
        for folder in self.folders:
            if self.disk.is_directory(folder):
                self.disk.sync_directory(folder)


def plan_flush(log: LogState) -> FlushPlan:
    """Return a plan that makes all records appended so far durable. Raises OSError."""
    paths: list[str] = []
    for segment in log.unsynced_sealed.values():
        paths += segment.paths
        following = log.segments.higher(segment.base_offset)
        if following is not None:
            paths.append(log.producers.snapshot_path(following.base_offset))
    paths += [
        segment.log_path
        for segment in log.segments.from_offset(log.flushed_offset)
        if segment.base_offset not in log.unsynced_sealed
    ]
    has_epochs = log.epoch_writes > log.epoch_writes_durable and log.files.disk.exists(log.epochs.path)
    if has_epochs:
        paths.append(log.epochs.path)
    return FlushPlan(
        disk=log.files.disk,
        offset=log.log_end_offset,
        paths=tuple(paths),
        folders=_folders(log, has_epochs),
        sealed=tuple(log.unsynced_sealed),
        snapshot=log.producers.deferred,
        truncations=log.truncations,
        name_changes=log.name_changes,
        epoch_writes=log.epoch_writes,
    )


def mark_flushed(log: LogState, plan: FlushPlan, *, wall_ms: int) -> None:
    """Advance ``flushed_offset`` and the recovery point after ``plan.run()``; ignored after a truncation.

    If that raised, fence the log instead. Raises OSError.
    """
    if plan.snapshot is not None:
        segment = log.segments.floor(plan.snapshot.offset)
        is_base = segment is not None and segment.base_offset == plan.snapshot.offset
        log.publish_snapshot(plan.snapshot, is_wanted=is_base and plan.truncations == log.truncations)
    if plan.truncations != log.truncations:
        return
    for base_offset in plan.sealed:
        if base_offset in log.unsynced_sealed:
            log.unsynced_sealed[base_offset].has_unsynced_aborted = False
    log.note_synced(plan.sealed)
    log.advance_flushed(
        plan.offset, name_changes=plan.name_changes, epoch_writes=plan.epoch_writes, wall_ms=wall_ms
    )


def is_flush_due(log: LogState, wall_ms: int) -> bool:
    """Return whether ``flush.messages`` or ``flush.ms`` requires a sync now."""
    if log.log_end_offset - log.flushed_offset >= log.config.flush_messages:
        return True
    return log.first_unflushed_ms is not None and wall_ms - log.first_unflushed_ms >= log.config.flush_ms


def close(log: LogState, *, wall_ms: int) -> None:
    """Flush and close all files. A log that is fenced, or that has a gap, is not flushed.

    Blocks on the disk. Raises OSError.
    """
    try:
        if log.is_in_order:
            flush_all(log, wall_ms)
    finally:
        log.files.pool.forget_folder(log.folder)


def flush_all(log: LogState, wall_ms: int) -> None:
    """Complete the active segment's indexes, write a producer snapshot, and make everything durable.

    So that the log can be opened without recovery. Does nothing if nothing was written since it was opened,
    or it never had a record. Blocks on the disk. Raises OSError.
    """
    active = log.segments.active
    if _is_all_durable(log) or not log.log_end_offset:
        return
    active.complete_indexes()
    if log.log_end_offset and log.log_end_offset not in log.producers.snapshot_offsets:
        log.producers.map_end_offset = log.log_end_offset
        log.producers.take_snapshot(sync=True)
    log.note_sealed(active)
    plan = plan_flush(log)
    plan.run()
    mark_flushed(log, plan, wall_ms=wall_ms)
    log.note_synced([active.base_offset])


def _is_all_durable(log: LogState) -> bool:
    return (
        log.recovery_point == log.log_end_offset
        and log.log_end_offset in log.producers.snapshot_offsets
        and log.name_changes == log.name_changes_durable
        and log.epoch_writes == log.epoch_writes_durable
    )


def _folders(log: LogState, has_epochs: bool) -> tuple[str, ...]:
    """Return the folders to sync: the log's, if names in it changed; at the first flush its parent, too,
    since the folder's own name may not be durable yet."""
    if not log.name_changes_durable:
        return log.folder, posixpath.dirname(log.folder)
    return (log.folder,) if has_epochs or log.name_changes > log.name_changes_durable else ()
