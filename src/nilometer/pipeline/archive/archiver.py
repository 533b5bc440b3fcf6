"""Archives topics: which sealed segments of each partition an archive does not have yet, and how they are
copied.

A run reads the manifest of each partition, decides from its replicas what can be copied, copies it, and
writes the manifest last. Whatever ends a run between, the next one goes on from the manifests.
"""

from __future__ import annotations

import posixpath
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from crc32c import crc32c

from nilometer.identifiers import uuid_to_text
from nilometer.pipeline.archive.archive_target import ArchiveTarget, explained
from nilometer.pipeline.audit.segment_check import check_transaction_index
from nilometer.pipeline.decode.batch_table import CONTROL, BatchTable, walk
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders import archive_manifest
from nilometer.pipeline.source.log_folders.archive_manifest import (
    ArchivedSegment,
    EpochRuns,
    Manifest,
    StoredFile,
    divergence,
    file_name,
)
from nilometer.pipeline.source.log_folders.places import (
    ArchivedPartition,
    ReplicaFolder,
    find_replicas,
    named_files,
    open_place,
    partition_folders,
    read_partition,
    replicas_in,
    shown,
    view_directory,
)
from nilometer.pipeline.source.log_folders.storages import join, open_folder, shown_folder
from nilometer.runtime import Disk
from nilometer.storage import checkpoints, names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import TopicPartition
from nilometer.wire.errors import CorruptBatch, KafkaError
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import ControlType, read_end_txn_marker

if TYPE_CHECKING:
    from nilometer.runtime import Disk, File


# Decides which segments of a partition's replicas are copied. Pure.
#
# A segment is copied if it is sealed (another one follows it), complete below the high watermark, and has an
# offset that no archived segment has. The replica with the newest leader epoch below its high watermark comes
# first; replicas that diverge from it are not used.


@dataclass(frozen=True, slots=True)
class SourceLog:
    """What is known of one replica before any of its segments is read."""

    name: str
    bases: tuple[int, ...]
    """The base offsets of its segments; the last one is active."""
    log_start: int
    high_watermark: int
    epochs: EpochRuns
    """Its leader epoch checkpoint."""

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record below the high watermark; -1 if unknown."""
        return max((epoch for epoch, start in self.epochs if start < self.high_watermark), default=-1)


@dataclass(frozen=True, slots=True)
class Copy:
    """One segment to copy: the number of the replica in the plan, and the segment's offsets [base, end)."""

    source: int
    base_offset: int
    end_offset: int
    start_offset: int
    """Its first offset that may be read."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """A replica that is not used, because its log is another one from ``offset`` on."""

    name: str
    offset: int


def in_order(sources: Sequence[SourceLog]) -> list[int]:
    """Return the numbers of the replicas in the order in which they are used."""

    def rank(number: int) -> tuple[int, int, int]:
        one = sources[number]
        return -one.last_epoch, -one.high_watermark, one.log_start

    return sorted(range(len(sources)), key=rank)


def diverging(sources: Sequence[SourceLog]) -> dict[int, Diverging]:
    """Return the replicas whose log differs from that of the first one in order, by number."""
    order = in_order(sources)
    if not order:
        return {}
    first = sources[order[0]]
    found: dict[int, Diverging] = {}
    for number in order[1:]:
        one = sources[number]
        offset = divergence(first.epochs, first.high_watermark, one.epochs, one.high_watermark)
        if offset is not None:
            found[number] = Diverging(one.name, offset)
    return found


def decide_copies(sources: Sequence[SourceLog], archived: Iterable[tuple[int, int]]) -> list[Copy]:
    """Return the segments to copy, in the order of offsets; ``archived`` are ranges [start, end)."""
    unusable = diverging(sources)
    covered = list(archived)
    copies: list[Copy] = []
    for number in in_order(sources):
        if number in unusable:
            continue
        for base, end in sealed(sources[number]):
            start = max(base, sources[number].log_start)
            if not covers(covered, start, end):
                copies.append(Copy(number, base, end, start))
                covered.append((base, end))
    return sorted(copies, key=lambda one: (one.base_offset, one.end_offset))


def sealed(source: SourceLog) -> list[tuple[int, int]]:
    """Return base and end offset of the segments that are sealed, committed and not below the log start."""
    return [
        (base, end) for base, end in pairwise(source.bases) if source.log_start < end <= source.high_watermark
    ]


def why_none(sources: Sequence[SourceLog]) -> str | None:
    """Return why the log has no segment to copy; None if it has some."""
    order = in_order(sources)
    if not order:
        return "no replica of it is there"
    first = sources[order[0]]
    if len(first.bases) < 2:
        return (
            "its only segment is the active one, which is not copied: segment.bytes and segment.ms of the "
            "topic say when it is sealed"
        )
    if not sealed(first):
        return (
            f"its sealed segments are not known to be committed: {first.name} has a high watermark of "
            f"{first.high_watermark}, which its broker writes down when it stops, and every "
            "replica.high.watermark.checkpoint.interval.ms while it runs. Run this command again then"
        )
    return None


def covers(ranges: Iterable[tuple[int, int]], start: int, end: int) -> bool:
    """Whether the ranges together contain all of [start, end)."""
    for low, high in sorted(ranges):
        if low > start:
            break
        start = max(start, high)
    return start >= end


def lost(archived_end: int | None, sources: Sequence[SourceLog], end: int) -> list[tuple[int, int]]:
    """Return the range that no replica has any more and that the archive has not: deleted too early.

    ``archived_end`` is where the archive ended before, None if it was empty; ``end`` is its present end. What
    is missing between archived segments shows in the archive itself.
    """
    if archived_end is None or not sources:
        return []
    start = min(one.log_start for one in sources)
    return [(archived_end, start)] if start > archived_end and end <= archived_end else []


# Archives topics: copies the sealed segments of each partition that an archive does not have yet.
#
# Every batch of a segment is checked while the segment and its other files are copied; manifests commit what
# is copied.

# Reads one sealed segment, checks every batch of it, and copies it with its other files.
#
# The log is read twice: once to check it and for its checksum, which is part of its name, and once to copy
# it. The other files are read before the log is opened: a broker renames the log first when it deletes a
# segment, so that those of a log that is still there are complete.

CHUNK_BYTES = 8 * 1024 * 1024

Write = Callable[[str, Iterator[bytes]], object]
"""Writes a file of the archive's partition: its name, its pieces."""


class SegmentChanged(Exception):
    """The segment was deleted, or replaced by another one, since it was listed: the message says which."""


@dataclass(slots=True)
class ExaminedLog:
    """What the batches of a segment's log say."""

    end_offset: int
    bytes: int = 0
    crc32c: int = 0
    records: int = 0
    max_timestamp: int = -1
    epochs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    aborts: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """(producer id, offset) of each abort marker."""


def copy_segment(
    disk: Disk, folder: str, base_offset: int, end_offset: int, start_offset: int, token: int, write: Write
) -> ArchivedSegment:
    """Copy the segment with the offsets [base_offset, end_offset) of a replica's folder.

    ``token`` makes the names of the copies unique. Raises SegmentChanged, SourceError for a damaged segment,
    and what ``write`` raises.
    """
    others = _other_files(disk, folder, base_offset, end_offset)
    path = posixpath.join(folder, names.offset_name(base_offset, names.LOG_SUFFIX))
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError as error:
        raise SegmentChanged(f"{path} was listed and then deleted") from error
    try:
        log = examine(file, base_offset)
        if log.end_offset != end_offset:
            raise SegmentChanged(
                f"{path} ends at offset {log.end_offset}, but the next segment begins at {end_offset}: "
                "records are missing between them"
            )
        _check_aborted(path, base_offset, log, others.get(names.TXN_INDEX_SUFFIX))
        stored = {
            names.LOG_SUFFIX: StoredFile(
                file_name(base_offset, log.crc32c, token, names.LOG_SUFFIX), log.bytes, log.crc32c
            )
        }
        write(stored[names.LOG_SUFFIX].name, _pieces(file, log))
    finally:
        file.close()
    for suffix, data in others.items():
        checksum = crc32c(data)
        stored[suffix] = StoredFile(file_name(base_offset, checksum, token, suffix), len(data), checksum)
        write(stored[suffix].name, iter([data]))
    return ArchivedSegment(
        base_offset,
        start_offset,
        log.end_offset,
        log.records,
        log.max_timestamp,
        tuple(log.epochs),
        stored,
    )


def examine(file: File, base_offset: int) -> ExaminedLog:
    """Check all batches of a sealed segment's log: checksums, offsets without a gap, leader epochs.

    Raises SourceError for the first batch that is wrong.
    """
    log = ExaminedLog(base_offset)
    size, wanted = file.size(), CHUNK_BYTES
    while log.bytes < size:
        buffer = file.read_at(log.bytes, min(wanted, size - log.bytes))
        end = _examine_batches(file.path, buffer, log)
        if end:
            with memoryview(buffer) as view:
                log.crc32c = crc32c(view[:end], log.crc32c)
            log.bytes += end
            wanted = CHUNK_BYTES
            continue
        batch = _batch_size(buffer)
        if batch <= len(buffer) or log.bytes + batch > size:
            raise SourceError(f"{file.path} is damaged at byte {log.bytes}: its last batch is not complete")
        wanted = batch
    return log


def _examine_batches(path: str, buffer: bytes, log: ExaminedLog) -> int:
    """Check the complete batches of ``buffer``; return the position after them."""
    at = 0
    while True:
        table = walk(buffer, at)
        if len(table):
            _look_at(path, table, log)
        at = table.end
        if not table.is_header:
            _refuse(path, buffer, at, log.bytes + at)
        if not len(table):
            return at


def _look_at(path: str, table: BatchTable, log: ExaminedLog) -> None:
    from nilometer.pipeline.decode import batch_kernels as fields

    try:
        table.check()
    except CorruptBatch as error:
        raise SourceError(f"{path} is damaged: {error.message}") from error
    rows = table.rows
    for base, delta, epoch in zip(
        rows[:, fields.BASE_OFFSET].tolist(),
        rows[:, fields.LAST_OFFSET_DELTA].tolist(),
        rows[:, fields.LEADER_EPOCH].tolist(),
        strict=True,
    ):
        if base != log.end_offset:
            raise SourceError(
                f"{path}: a batch has the base offset {base}, but the one before it ends at {log.end_offset}"
            )
        if not log.epochs or epoch != log.epochs[-1][0]:
            if log.epochs and epoch < log.epochs[-1][0]:
                raise SourceError(
                    f"{path}: leader epoch {epoch} at offset {base} comes after epoch {log.epochs[-1][0]}"
                )
            log.epochs.append((epoch, base))
        log.end_offset = base + delta + 1
    log.records += int(rows[:, fields.RECORDS_COUNT].sum())
    log.max_timestamp = max(log.max_timestamp, int(rows[:, fields.MAX_TIMESTAMP].max()))
    for row in rows[rows[:, fields.ATTRIBUTES] & CONTROL != 0]:
        position = int(row[fields.POSITION])
        marker = read_end_txn_marker(table.buffer, position, read_header(table.buffer, position))
        if marker is not None and marker.control_type is ControlType.ABORT:
            log.aborts.add((int(row[fields.PRODUCER_ID]), int(row[fields.BASE_OFFSET])))


def _refuse(path: str, buffer: bytes, at: int, position: int) -> None:
    try:
        read_header(buffer, at)
    except KafkaError as error:
        raise SourceError(f"{path} is damaged at byte {position}: {error.message}") from error


def _batch_size(buffer: bytes) -> int:
    try:
        return read_header(buffer).size
    except KafkaError:
        return 0  # fewer bytes than a header has


def _other_files(disk: Disk, folder: str, base_offset: int, end_offset: int) -> dict[str, bytes]:
    """Read the indexes and the producer snapshot at the end of the segment, those that exist."""
    indexes = (names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX, names.TXN_INDEX_SUFFIX)
    offsets: dict[str, int] = {**dict.fromkeys(indexes, base_offset), names.SNAPSHOT_SUFFIX: end_offset}
    found: dict[str, bytes] = {}
    for suffix, offset in offsets.items():
        try:
            found[suffix] = disk.read_file(posixpath.join(folder, names.offset_name(offset, suffix)))
        except FileNotFoundError:
            continue
    return found


def _check_aborted(path: str, base_offset: int, log: ExaminedLog, index: bytes | None) -> None:
    if index is None:
        return
    for _, _, what in check_transaction_index(base_offset, index, log.aborts, log.end_offset):
        raise SourceError(f"the transaction index of {path} does not match it: {what}")


def _pieces(file: File, log: ExaminedLog) -> Iterator[bytes]:
    """Yield the bytes of a log that was examined. Raises SegmentChanged if they are others now."""
    position = checksum = 0
    while position < log.bytes:
        piece = file.read_at(position, min(CHUNK_BYTES, log.bytes - position))
        checksum = crc32c(piece, checksum)
        position += len(piece)
        if not piece or (position == log.bytes and checksum != log.crc32c):
            raise SegmentChanged(f"{file.path} was changed while it was copied")
        yield piece


# Copies what is missing of one partition into an archive, and commits it in manifests.
#
# A manifest is written after the segments that it names, and with it those named before: when the copies
# since the last one have sixteen times its size, at the end, and when the command is interrupted. The
# manifests that it was made from are removed then. If segments are deleted or replaced meanwhile, the copies
# are decided again.
#
# Invariants: nothing above a checkpointed high watermark is copied; a segment is copied from the folder of
# the topic id that its manifest has; a log that diverges from the archive is never added to it.

ROUNDS = 20
COMMIT_SHARE = 16
"""How many times larger than the manifest the copies are that it commits."""


@dataclass(slots=True)
class PartitionResult:
    """What was done for one partition, and what its archive has now. Offsets are [start, end)."""

    part: TopicPartition
    topic_id: str
    start: int = 0
    end: int = 0
    high_watermark: int = 0
    segments_copied: int = 0
    bytes_copied: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Offsets that were deleted from the log before they were archived, as far as this run found it out."""
    notes: list[str] = field(default_factory=list[str])
    problem: str | None = None
    """Why the partition was not archived up to its last sealed segment."""


class PartitionArchiver:
    """Archives one partition of one topic id; ``replicas`` are its folders."""

    def __init__(
        self, target: ArchiveTarget, replicas: Sequence[ReplicaFolder], say: Callable[[str], None]
    ) -> None:
        first = replicas[0]
        if first.topic_id is None:
            raise SourceError(
                f"{shown(first.place)} has no topic id (partition.metadata): its records could not be told "
                "from those of a topic that had this name before"
            )
        self._target = target
        self._replicas = list(replicas)
        self._say = say
        self._token = secrets.randbits(32)
        self._path = f"{first.part.topic}/{first.topic_id}/{first.part.partition}"
        self._topic_id = first.topic_id
        self._manifest = Manifest(first.part.topic, first.topic_id, first.part.partition, ())
        self._manifest_names: list[str] = []
        self._manifest_bytes = 0
        self._pending: list[ArchivedSegment] = []
        self._incomplete: list[ArchivedSegment] = []
        self.result = PartitionResult(first.part, first.topic_id)

    def run(self) -> None:
        """Copy and commit what is missing, and set ``result``. Raises SourceError, TargetError."""
        self._read_manifest()
        before = self._linked()
        try:
            self._copy_all()
        finally:
            self._commit()
            self._conclude(before)

    def _read_manifest(self) -> None:
        manifest = self._manifest
        with explained(self._target.place):
            found = read_partition(self._target.place, manifest.topic, manifest.topic_id, manifest.partition)
        if found is not None:
            self._manifest, self._manifest_names = found.manifest, list(found.manifest_names)
            self._manifest_bytes = len(archive_manifest.encode(self._manifest))

    def _copy_all(self) -> None:
        changed = None
        for _ in range(ROUNDS):
            sources = self._sources()
            stored = self._stored_ranges()
            copies = decide_copies(sources, stored)
            self._require_untiered([*stored, *((one.base_offset, one.end_offset) for one in copies)])
            self._note_diverging(sources)
            self._require_same_history(sources)
            try:
                for copy in copies:
                    self._copy(copy, sources[copy.source])
                return
            except SegmentChanged as error:
                changed = error
            self._replicas = self._present_replicas()
        raise SourceError(f"{changed} ({ROUNDS} times in a row)")

    # --- what is there

    def _sources(self) -> list[SourceLog]:
        found: list[SourceLog] = []
        for one in self._replicas:
            disk, folder = open_place(one.place)
            try:
                bases = one.segments()
                if _is_compacted(one):
                    raise SourceError(
                        f"{shown(one.place)} was compacted: its sealed segments change with each cleaning, "
                        "so an archive of them would not be the log. The pipeline `table` keeps a row per key"
                    )
                epochs = checkpoints.read_epochs(disk, posixpath.join(folder, names.LEADER_EPOCH_CHECKPOINT))
            except FileNotFoundError:
                bases, epochs = [], []  # deleted meanwhile
            except CorruptCheckpoint as error:
                raise SourceError(str(error)) from error
            if one.high_watermark is None:
                raise SourceError(
                    f"no high watermark is checkpointed for {shown(one.place)}, so it is unknown which "
                    "records are committed: try again once the broker has written one"
                )
            start = one.log_start(bases)
            name = one.directory.name
            found.append(SourceLog(name, tuple(bases), start, one.high_watermark, tuple(epochs)))
        return found

    def _present_replicas(self) -> list[ReplicaFolder]:
        """Read the replicas' checkpoints again; without those that were deleted or are of another topic."""
        directories = sorted({one.directory.place for one in self._replicas})
        present = [one for place in directories for one in replicas_in(view_directory(place))]
        places = {one.place for one in self._replicas}
        return [one for one in present if one.place in places and one.topic_id == self._topic_id]

    def _stored_ranges(self) -> list[tuple[int, int]]:
        """Return the offsets of the archived segments whose files are there, in full size.

        Those of others are copied again, and the manifest drops them when that is done.
        """
        sizes = {name: one.bytes for name, one in self._target.files(self._path).items()}
        stored: list[ArchivedSegment] = []
        self._incomplete = []
        for one in (*self._manifest.segments, *self._pending):
            is_complete = all(sizes.get(file.name) == file.bytes for file in one.files.values())
            (stored if is_complete else self._incomplete).append(one)
        return [(one.base_offset, one.end_offset) for one in stored]

    def _require_untiered(self, covered: Sequence[tuple[int, int]]) -> None:
        """Raise SourceError if records are in remote storage only, and would be missing in the archive."""
        for one in self._replicas:
            try:
                only_there = one.only_in_tier(one.segments())
            except FileNotFoundError:
                continue  # deleted meanwhile
            if only_there is not None and not covers(covered, *only_there):
                raise SourceError(
                    f"{shown(one.place)} begins in remote storage, because the topic is tiered: offsets "
                    f"{only_there[0]} to {only_there[1] - 1} are not in the folder, and not in the archive. "
                    "Remote storage keeps them: a tiered topic needs no archive"
                )

    def _linked(self) -> list[ArchivedSegment]:
        return archive_manifest.chain(self._manifest.segments)

    def _note_diverging(self, sources: Sequence[SourceLog]) -> None:
        for one in diverging(sources).values():
            note = f"{one.name} is not used: its log differs from offset {one.offset} on"
            if note not in self.result.notes:
                self.result.notes.append(note)

    def _require_same_history(self, sources: Sequence[SourceLog]) -> None:
        """Raise SourceError if the log has other records than the archive at some offset."""
        linked = self._linked()
        order = in_order(sources)
        if not linked or not order:
            return
        log = sources[order[0]]
        offset = archive_manifest.chain_divergence(linked, log.epochs, log.high_watermark)
        if offset is not None:
            raise SourceError(
                f"the archive of {self.result.part} and the log of {log.name} diverge at offset {offset}: "
                "their leader epochs differ. An unclean election may have removed archived records. Archive "
                "into another place"
            )

    # --- copying

    def _copy(self, copy: Copy, source: SourceLog) -> None:
        replica = self._replicas[copy.source]
        disk, folder = open_place(replica.place)
        self._say(f"{replica.part} offset {copy.base_offset:,}")
        segment = copy_segment(
            disk,
            folder,
            copy.base_offset,
            copy.end_offset,
            copy.start_offset,
            self._token,
            lambda name, pieces: self._target.write(f"{self._path}/{name}", pieces),
        )
        self._require_unchanged(replica)
        self._require_epochs(replica, segment, source)
        self._pending.append(segment)
        self.result.segments_copied += 1
        self.result.bytes_copied += segment.bytes
        if sum(one.bytes for one in self._pending) >= COMMIT_SHARE * self._manifest_bytes:
            self._commit()

    def _require_unchanged(self, replica: ReplicaFolder) -> None:
        """Check after a copy that it was not of another topic, or of a log whose compaction had begun."""
        disk, folder = open_place(replica.place)
        try:
            found = checkpoints.read_partition_metadata(
                disk, posixpath.join(folder, names.PARTITION_METADATA)
            )
        except CorruptCheckpoint:
            found = None
        if found is None or uuid_to_text(found) != self._topic_id:
            raise SegmentChanged(f"{shown(replica.place)} was deleted")
        if _is_compacted(replica):
            raise SegmentChanged(f"{shown(replica.place)} is being compacted")

    def _require_epochs(self, replica: ReplicaFolder, segment: ArchivedSegment, source: SourceLog) -> None:
        offset = archive_manifest.divergence(
            segment.epochs, segment.end_offset, source.epochs, source.high_watermark
        )
        if offset is not None:
            raise SourceError(
                f"{shown(replica.place)} is damaged: the leader epoch at offset {offset} is not that of its "
                f"{names.LEADER_EPOCH_CHECKPOINT}"
            )

    def _commit(self) -> None:
        replaced = self._replaced()
        if not self._pending and not replaced:
            return
        manifest = self._manifest.without(replaced).with_segments(self._pending)
        known = [archive_manifest.sequence_of(name) or 0 for name in self._manifest_names]
        name = archive_manifest.manifest_name(max(known, default=0) + 1, secrets.randbits(32))
        text = archive_manifest.encode(manifest)
        self._target.write(f"{self._path}/{name}", iter([text]))
        superseded, self._manifest_names = self._manifest_names, [name]
        self._manifest, self._manifest_bytes, self._pending = manifest, len(text), []
        self._incomplete = [one for one in self._incomplete if one not in replaced]
        for former in superseded:
            self._target.remove(f"{self._path}/{former}")

    def _replaced(self) -> list[ArchivedSegment]:
        """Return the segments without all their files whose offsets others have by now."""
        known = (*self._manifest.segments, *self._pending)
        ranges = [(one.base_offset, one.end_offset) for one in known if one not in self._incomplete]
        return [one for one in self._incomplete if covers(ranges, one.base_offset, one.end_offset)]

    def _conclude(self, before: Sequence[ArchivedSegment]) -> None:
        linked, result = self._linked(), self.result
        sources = [one for one in self._sources_if_readable() if one.bases]
        result.start = min((one.start_offset for one in linked), default=0)
        result.end = linked[-1].end_offset if linked else 0
        result.high_watermark = max((one.high_watermark for one in sources), default=result.end)
        if not linked and sources and (why := why_none(sources)) is not None:
            result.notes.append(f"Nothing of {result.part} is copied: {why}.")
        result.gaps = archive_manifest.gaps(linked)
        known = set(archive_manifest.gaps(before))
        archived_end = before[-1].end_offset if before else None
        result.lost = [one for one in result.gaps if one not in known]
        result.lost += lost(archived_end, sources, result.end)

    def _sources_if_readable(self) -> list[SourceLog]:
        try:
            return self._sources()
        except SourceError:
            return []  # it was reported as the reason why nothing more was copied


def _is_compacted(replica: ReplicaFolder) -> bool:
    disk, folder = open_place(replica.place)
    return replica.cleaned_up_to > 0 or disk.exists(posixpath.join(folder, names.GAPS_MARKER))


# Archives topics: every partition that has a replica in some folders, one after the other.
#
# A partition that cannot be archived does not stop the others: its result says why. What the archive's
# storage refuses ends the run.


def archive(
    places: Sequence[str],
    topics: Collection[str],
    target: ArchiveTarget,
    say: Callable[[str], None] = lambda what: None,
) -> list[PartitionResult]:
    """Copy the sealed segments that are missing in the archive; return a result for each partition.

    Raises SourceError if a topic is not in ``places``, TargetError.
    """
    replicas = [one for one in find_replicas(places) if one.part.topic in topics]
    missing = sorted(set(topics) - {one.part.topic for one in replicas})
    if missing:
        where = ", ".join(shown(one) for one in places)
        raise SourceError(
            f"topic {missing[0]} has no replica in {where}: `nilometer topic list` shows topics"
        )
    target.require()
    _require_no_tier(target, replicas)
    ordered = sorted(replicas, key=lambda one: (one.part, one.topic_id or ""))
    groups = [list(group) for _, group in groupby(ordered, key=lambda one: (one.part, one.topic_id))]
    return [_archive_partition(target, group, say) for group in groups]


def _require_no_tier(target: ArchiveTarget, replicas: Sequence[ReplicaFolder]) -> None:
    """Raise SourceError if the target is the remote storage of the replicas' brokers, who write it alone."""
    for cluster_id in sorted({one.directory.cluster_id or "" for one in replicas} - {""}):
        place = join(target.place, cluster_id)
        disk, folder = open_folder(place)
        with explained(target.place):
            is_tier = disk.is_directory(folder)
        if is_tier:
            raise SourceError(
                f"{shown_folder(target.place)} is the remote storage of tiered topics of cluster "
                f"{cluster_id}, which brokers write: give another place"
            )


def _archive_partition(
    target: ArchiveTarget, replicas: Sequence[ReplicaFolder], say: Callable[[str], None]
) -> PartitionResult:
    first = replicas[0]
    result = PartitionResult(first.part, first.topic_id or "")
    try:
        archiver = PartitionArchiver(target, replicas, say)
        result = archiver.result
        archiver.run()
    except SourceError as error:
        result.problem = str(error)
    return result


# Reads an archive again: every file against its manifest, every batch of every segment, and files of no
# manifest.


@dataclass(slots=True)
class CheckedArchive:
    """The result for some partitions."""

    segments: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list[str])
    unnamed_files: int = 0
    """Files that no manifest names: an interrupted run left them, or another one writes them."""
    unnamed_bytes: int = 0


def check(
    target: ArchiveTarget,
    archived: list[ArchivedPartition],
    say: Callable[[str], None] = lambda what: None,
) -> CheckedArchive:
    """Read every file of these partitions. Raises TargetError if the storage cannot be read."""
    checked = CheckedArchive()
    for one in archived:
        with explained(target.place):
            _check_partition(target, one, checked, say)
    return checked


def _check_partition(
    target: ArchiveTarget, archived: ArchivedPartition, checked: CheckedArchive, say: Callable[[str], None]
) -> None:
    disk, folder = open_folder(archived.folder)
    for segment in archived.manifest.segments:
        say(f"{archived.part} offset {segment.base_offset:,}")
        checked.problems += _problems(disk, folder, shown_folder(archived.folder), segment)
        checked.segments += 1
        checked.bytes += segment.bytes
    manifest = archived.manifest
    files = target.files(f"{manifest.topic}/{manifest.topic_id}/{manifest.partition}")
    unnamed = [one.bytes for name, one in files.items() if name not in named_files(archived)]
    checked.unnamed_files += len(unnamed)
    checked.unnamed_bytes += sum(unnamed)


def _problems(disk: Disk, folder: str, where: str, segment: ArchivedSegment) -> Iterator[str]:
    """Yield what is wrong with a segment, at most one problem per file."""
    for suffix, stored in segment.files.items():
        path = f"{where}/{stored.name}"
        try:
            what = _difference(disk, posixpath.join(folder, stored.name), stored)
        except FileNotFoundError:
            what = "is missing"
        if what is None and suffix == names.LOG_SUFFIX:
            what = _difference_of_batches(disk, posixpath.join(folder, stored.name), segment)
        if what is not None:
            yield f"{path} {what}"


def _difference(disk: Disk, path: str, stored: StoredFile) -> str | None:
    file = disk.open(path, writable=False)
    try:
        size, checksum, position = file.size(), 0, 0
        if size != stored.bytes:
            return f"has {size} bytes, not {stored.bytes}"
        while piece := file.read_at(position, CHUNK_BYTES):
            checksum = crc32c(piece, checksum)
            position += len(piece)
    finally:
        file.close()
    return None if checksum == stored.crc32c else "is damaged: its checksum does not match the manifest"


def _difference_of_batches(disk: Disk, path: str, segment: ArchivedSegment) -> str | None:
    file = disk.open(path, writable=False)
    try:
        log = examine(file, segment.base_offset)
    except SourceError as error:
        return f"is damaged: {error}"
    finally:
        file.close()
    found = (log.end_offset, log.records, tuple(log.epochs))
    if found != (segment.end_offset, segment.records, segment.epochs):
        return "has other offsets, records or leader epochs than its manifest says"
    return None


# Finds and removes what an interrupted run left in an archive: files that no manifest names.
#
# Invariants: a file that a manifest names is no orphan; an orphan has a name that ``archive`` gives, and is
# older than a limit. A run that has not ended writes a file before the manifest that names it, so the limit
# is to be longer than a run takes between two manifests.

_WRITTEN_BY_ARCHIVE = re.compile(r"\d{20}-[0-9a-f]{8}-[0-9a-f]{8}\.[a-z]+|\..+\.tmp")


@dataclass(frozen=True, slots=True)
class Orphan:
    path: str
    """Relative to the archive."""
    bytes: int
    modified_s: float
    """The time when it was written, in seconds since 1970."""


def find_orphans(
    target: ArchiveTarget, topics: Collection[str] | None, written_before_s: float
) -> list[Orphan]:
    """Return the orphans of these topics, or of all, that were written before a time.

    Raises SourceError if the place is not a folder or a manifest is damaged, TargetError.
    """
    orphans: list[Orphan] = []
    with explained(target.place):
        for topic, topic_id, partition in partition_folders(target.place, topics):
            folder = f"{topic}/{topic_id}/{partition}"
            files = target.files(folder)  # before the manifests, which name what is added meanwhile
            archived = read_partition(target.place, topic, topic_id, partition)
            named = named_files(archived) if archived is not None else set[str]()
            orphans += [
                Orphan(f"{folder}/{name}", one.bytes, one.modified_s)
                for name, one in sorted(files.items())
                if name not in named
                and _WRITTEN_BY_ARCHIVE.fullmatch(name)
                and one.modified_s < written_before_s
            ]
    return orphans
