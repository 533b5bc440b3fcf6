"""The files of a partition's folder, put in order before a log is loaded.

Compaction writes ``.cleaned`` files, renames them to ``.swap`` when they are complete and durable, and
then replaces the old segments by them; deletion renames to ``.deleted``. Whatever a crash left half
done is finished or undone here, exactly once, by names alone.
"""

from __future__ import annotations

import posixpath

from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.log_config import LogConfig
from nilometer.storage.segments.batch_scan import scan
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.wire.errors import KafkaError


def complete_interrupted_swaps(disk: Disk, folder: str) -> None:
    """Remove ``.deleted`` and ``.cleaned`` files; put ``.swap`` files in place of what they replace."""
    cleaned: list[int] = []
    swaps: list[tuple[int, str]] = []
    for name in disk.list_directory(folder):
        stem, suffix = posixpath.splitext(name)
        parsed = names.parse_offset_name(stem)
        if suffix in (names.DELETED_SUFFIX, names.CLEANED_SUFFIX) or suffix == names.TEMPORARY_SUFFIX:
            disk.remove(posixpath.join(folder, name))
            if suffix == names.CLEANED_SUFFIX and parsed:
                cleaned.append(parsed[0])
        elif suffix == names.SWAP_SUFFIX and parsed:
            swaps.append((parsed[0], name))
    # A swap file at or above an unfinished .cleaned one belongs to a split that did not complete.
    for base_offset, name in [swap for swap in swaps if cleaned and swap[0] >= min(cleaned)]:
        swaps.remove((base_offset, name))
        disk.remove(posixpath.join(folder, name))
    if swaps:
        _replace_by_swaps(disk, folder, swaps)


def _replace_by_swaps(disk: Disk, folder: str, swaps: list[tuple[int, str]]) -> None:
    logs = [(base, name) for base, name in swaps if name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX)]
    if logs:
        first = min(base for base, _ in logs)
        end = max(_next_offset(disk, posixpath.join(folder, name), base) for base, name in logs)
        for name in disk.list_directory(folder):
            parsed = names.parse_offset_name(name)
            if parsed and first <= parsed[0] < end and parsed[1] in names.SEGMENT_SUFFIXES:
                disk.remove(posixpath.join(folder, name))
    for _, name in swaps:
        path = posixpath.join(folder, name)
        disk.rename(path, path.removesuffix(names.SWAP_SUFFIX))


def _next_offset(disk: Disk, path: str, base_offset: int) -> int:
    file = disk.open(path, writable=False)
    next_offset = base_offset
    try:
        for batch in scan(file, 0, file.size()):
            next_offset = batch.header.next_offset
    except KafkaError:
        pass  # the end of what can be read; loading the segment judges the rest
    finally:
        file.close()
    return next_offset


def find_segments(files: SegmentFiles, folder: str, config: LogConfig, wall_ms: int) -> list[LogSegment]:
    """The segments of a folder; index files without a log file are removed."""
    disk = files.disk
    found = [parsed for name in disk.list_directory(folder) if (parsed := names.parse_offset_name(name))]
    bases = {offset for offset, suffix in found if suffix == names.LOG_SUFFIX}
    for offset, suffix in found:
        if offset not in bases and suffix in names.SEGMENT_SUFFIXES:
            disk.remove(posixpath.join(folder, names.offset_name(offset, suffix)))
    return [
        LogSegment(
            files,
            folder,
            base_offset,
            size=disk.file_size(posixpath.join(folder, names.offset_name(base_offset, names.LOG_SUFFIX))),
            created_ms=wall_ms,
            index_interval_bytes=config.index_interval_bytes,
        )
        for base_offset in sorted(bases)
    ]
