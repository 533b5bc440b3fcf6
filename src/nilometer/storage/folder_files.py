"""Finding the segments in a partition's folder before a log is loaded.

Interrupted replacements of segments must have been completed or undone (:mod:`nilometer.storage.swapping`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from nilometer.storage import names
from nilometer.storage.log_config import LogConfig
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.segment_files import SegmentFiles


def find_segments(
    files: SegmentFiles, folder: str, file_names: Iterable[str], config: LogConfig, wall_ms: int
) -> list[LogSegment]:
    """Return the segments among the files of a folder, by base offset; remove index files that have no log
    file."""
    disk = files.disk
    found = [parsed for name in file_names if (parsed := names.parse_offset_name(name))]
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
