"""The damage at which recovery ended a log: its position, reason, and the bytes kept as evidence; and gaps.

A tail is *torn* if no valid batch follows the first bad byte: the usual result of a process or
machine that failed while writing. It is *damaged* if a valid batch follows: bytes that were once
valid have changed. Damaged bytes are kept as evidence in the folder (``<base>.log.<position>.corrupt``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from nilometer.runtime import File
from nilometer.storage import names
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, MAGIC, check_batch, read_header

SEARCH_BYTES_MAX = 16 << 20
"""Within how many bytes after the first bad byte a valid batch is searched for."""

_MAGIC_AT = 16
_MAGIC_BYTE = bytes([MAGIC])
_COPY_BYTES = 1 << 20


class DamageKind(enum.Enum):
    TORN = "torn tail"
    DAMAGED = "damaged"

    @classmethod
    def classify(cls, file: File, position: int, size: int, next_offset: int) -> DamageKind:
        rest = file.read_at(position, min(size - position, SEARCH_BYTES_MAX))
        return cls.DAMAGED if _holds_valid_batch(rest, next_offset) else cls.TORN


@dataclass(frozen=True, slots=True)
class Damage:
    """The log was ended at ``offset``, because the file ``path`` is invalid from byte ``position`` on."""

    path: str
    position: int
    offset: int
    reason: str
    kind: DamageKind
    evidence: tuple[str, ...] = ()
    """Paths of the files to which the bytes after the damage were moved or copied."""

    def with_evidence(self, paths: list[str]) -> Damage:
        return replace(self, evidence=(*self.evidence, *paths))

    def __str__(self) -> str:
        return f"{self.path}: {self.kind.value} at byte {self.position}, offset {self.offset}: {self.reason}"


def cut_off_damage(files: SegmentFiles, segment: LogSegment, damage: Damage) -> list[str]:
    """Truncate the segment at the damage; return the paths of the evidence.

    Unless it is a torn tail, the bytes after the damage are copied to a file first.
    """
    evidence: list[str] = []
    file = segment.open_log()
    if damage.kind is DamageKind.DAMAGED:
        path = f"{segment.log_path}.{damage.position}{names.CORRUPT_SUFFIX}"
        copy = files.disk.open(path, create=True)
        try:
            copy.truncate(0)
            for position in range(damage.position, segment.size, _COPY_BYTES):
                copy.append([file.read_at(position, min(_COPY_BYTES, segment.size - position))])
        finally:
            copy.close()
        evidence.append(path)
    file.truncate(damage.position)
    segment.size = damage.position
    return evidence


def _holds_valid_batch(data: bytes, next_offset: int) -> bool:
    """Whether a complete, valid batch with a base offset of ``next_offset`` or more starts in ``data``."""
    magic_at = data.find(_MAGIC_BYTE, _MAGIC_AT)
    while magic_at >= 0:
        position = magic_at - _MAGIC_AT
        if len(data) - position < HEADER_BYTES:
            return False
        try:
            header = read_header(data, position)
            if header.base_offset >= next_offset and header.size <= len(data) - position:
                check_batch(data, position, header)
                return True
        except KafkaError:
            pass
        magic_at = data.find(_MAGIC_BYTE, magic_at + 1)
    return False


# A gap between two segments of a log that was not cleanly shut down and was never compacted.
#
# Compaction may remove the records at the end of a segment, which leaves a gap before the next one. A power
# failure may leave one, too: the end of a segment is lost, the segment after it is not. The files look the
# same. So a marker file in the folder (``LogState.may_have_gaps``) is created before the first record is
# removed, whether by this replica or by the leader that it follows, and it stays when the topic's policy
# changes. With the marker gaps are valid. Without it a gap is a loss of data: the log is ended before it, and
# the segments after it are kept as ``.corrupt`` files, since readers would not notice the missing records.
#
# Until the log is cut at the gap it has all its segments, and must not count as cleanly shut down.


class SegmentGap(NamedTuple):
    path: str
    """The log file after the gap."""
    offset: int
    """The offset at which the segment before the gap ends."""
    next_offset: int
    """The base offset of the segment after the gap."""

    def as_damage(self, evidence: list[str]) -> Damage:
        reason = f"segment begins at offset {self.next_offset}, the one before ended at {self.offset}"
        return Damage(self.path, 0, self.offset, reason, DamageKind.DAMAGED, tuple(evidence))
