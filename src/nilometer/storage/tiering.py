"""What remote storage needs of a log: its sealed segments, to be copied; and a log that begins above records
that are in remote storage only.

A sealed segment is described on the thread of the log's owner. Its files are read on any thread, while the
owner goes on; afterwards the owner asks whether the segment is still in the log (:func:`is_unchanged`), as
after a truncation a file of the same name may have other records.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

import msgspec

from nilometer.identifiers import Offset
from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.checkpoints import make_durable
from nilometer.storage.errors import CorruptRecordFound, LogFenced
from nilometer.storage.log_state import LogState
from nilometer.storage.producers import CorruptSnapshot, ProducerStateManager, decode_snapshot
from nilometer.storage.reading import read
from nilometer.storage.removal import Truncation, truncate_fully_and_start_at
from nilometer.storage.segments.batch_scan import ScannedBatch, scan
from nilometer.storage.segments.indexes import NO_TIMESTAMP, CorruptIndex, SegmentIndexes
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.transaction_index import PackedEntries
from nilometer.storage.time_search import batches_in_order
from nilometer.wire.errors import CorruptBatch, KafkaError
from nilometer.wire.record_batch import BatchHeader, check_batch, read_header

Epochs = Sequence[tuple[int, int]]
"""Leader epochs with their start offsets."""


class SealedSegment(msgspec.Struct, frozen=True):
    """A segment to which nothing is appended any more, as it was when it was described."""

    segment: LogSegment
    base_offset: Offset
    end_offset: Offset
    """The offset after its last one: the base offset of the next segment."""
    size: int
    """The bytes of its log file."""
    epochs: Epochs
    """The leader epochs of its records; the first one starts at the base offset."""
    folder: str
    segments: Sequence[LogSegment]
    """All segments of the log then."""
    snapshots: Sequence[Offset]
    """The offsets of the snapshots of producers then."""
    truncations: int

    @property
    def log_path(self) -> str:
        return self.segment.log_path


class IndexesOfBatches:
    """The indexes of a segment, made of its batches: those in files may be damaged, and would be so in every
    copy.

    The transaction index is made of the batches, too, if it is known which transactions were open where the
    segment begins; otherwise it is what the file has.
    """

    def __init__(self, sealed: SealedSegment) -> None:
        self._segment = sealed.segment
        self._indexes = SegmentIndexes.empty(sealed.base_offset)
        self._bytes_since_entry = 0
        self._largest = NO_TIMESTAMP, sealed.base_offset
        """The largest timestamp, and the last offset of the first batch that has it."""
        self._producers: ProducerStateManager | None = None
        """Those of transactions, after the last batch; None if they are unknown."""
        self._aborted = bytearray()

    def begin(self, log: LogState, sealed: SealedSegment) -> None:
        """Begin with the transactions that are open at the base offset. Blocks. Raises OSError, and
        CorruptIndex if these are unknown and the segment's transaction index is damaged."""
        disk = log.files.disk
        self._producers = _producers_at_base(log, sealed)
        path = sealed.segment.path(names.TXN_INDEX_SUFFIX)
        if self._producers is not None or not disk.exists(path):
            return
        self._aborted += disk.read_file(path)
        try:
            PackedEntries(sealed.base_offset, bytes(self._aborted))
        except CorruptIndex as error:
            raise CorruptIndex(
                f"{path}: {error}. It cannot be made of the records again, as the snapshot of producers at "
                f"offset {sealed.base_offset} cannot be used. Let another replica lead the partition: it "
                "copies the segment from its own disk"
            ) from error

    def add(self, batch: ScannedBatch) -> None:
        """Add the next batch. Raises CorruptBatch if the records of a control batch cannot be decoded."""
        position, header = batch.position, batch.header
        if header.max_timestamp > self._largest[0]:
            self._largest = header.max_timestamp, header.last_offset
        since, interval = self._bytes_since_entry, self._segment.index_interval_bytes
        self._bytes_since_entry = self._indexes.add(
            position, header.last_offset, header.size, self._largest, since, interval
        )
        if self._producers is not None and header.is_transactional:
            aborted = self._producers.replay(batch.buffer, batch.at, header)
            self._aborted += b"".join(one.encode() for one in aborted)

    def largest_timestamp(self) -> int:
        """Return the time (ms) that retention uses: the largest of the batches, or else when the log file
        changed. May block. Raises OSError."""
        newest = self._largest[0]
        return newest if newest >= 0 else self._segment.modified_ms()

    def encoded(self) -> tuple[bytes, bytes, bytes]:
        """Return the content of the offset index file, the time index file and the transaction index file,
        after the last batch."""
        self._indexes.times.maybe_append(*self._largest)
        return self._indexes.offsets.to_bytes(), self._indexes.times.to_bytes(), bytes(self._aborted)


class SideFiles(msgspec.Struct, frozen=True):
    """What belongs to a sealed segment beside its records."""

    offset_index: bytes
    time_index: bytes
    transaction_index: bytes
    """Empty if no transaction was aborted in the segment."""
    producers: bytes
    """A snapshot of the producers at the segment's end."""


def sealed_segments(log: LogState, from_offset: int, stable_offset: int) -> Iterator[SealedSegment]:
    """Yield the sealed segments that end above ``from_offset`` and have no record at or above
    ``stable_offset``, which is the last stable one. Does not block."""
    segments = tuple(log.segments)
    for segment in log.segments.from_offset(from_offset):
        following = log.segments.higher(segment.base_offset)
        if following is None or following.base_offset > stable_offset:
            break
        base_offset, end_offset = segment.base_offset, following.base_offset
        yield SealedSegment(
            segment,
            base_offset,
            end_offset,
            segment.size,
            log.epochs.between(base_offset, end_offset),
            log.folder,
            segments,
            log.producers.snapshot_offsets,
            log.truncations,
        )


def is_unchanged(log: LogState, sealed: SealedSegment) -> bool:
    """Whether the segment is still in the log, and the log was not truncated since it was described."""
    is_here = log.segments.floor(sealed.base_offset) is sealed.segment
    return is_here and log.truncations == sealed.truncations


def check_records(log: LogState, sealed: SealedSegment, indexes: IndexesOfBatches) -> Iterator[BatchHeader]:
    """Check the CRC and the offsets of each batch of the segment; adds it to ``indexes``, and yields its
    header.

    So that no damaged copy takes the place of good ones. Blocks; on any thread. Raises CorruptRecordFound,
    OSError, and CorruptIndex as :meth:`IndexesOfBatches.begin`.
    """
    indexes.begin(log, sealed)
    file = log.files.disk.open(sealed.log_path, writable=False)
    end_offset = sealed.base_offset
    try:
        for batch in batches_in_order(log, sealed.segment, file, 0, sealed.size):
            end_offset = batch.header.next_offset
            try:
                check_batch(batch.buffer, batch.at, batch.header)
                indexes.add(batch)
            except KafkaError as error:
                raise _damage(sealed, batch.position, batch.header.base_offset, error) from error
            yield batch.header
    finally:
        file.close()
    if end_offset > sealed.end_offset or (end_offset < sealed.end_offset and not log.may_have_gaps):
        reason = CorruptBatch(f"the next segment begins at {sealed.end_offset}")
        raise _damage(sealed, sealed.size, end_offset, reason)


def _damage(sealed: SealedSegment, position: int, offset: int, reason: KafkaError) -> CorruptRecordFound:
    return CorruptRecordFound(sealed.log_path, position, offset, str(reason))


def telling_crc(log: LogState, header: BatchHeader) -> int | None:
    """Return the batch's CRC if every replica has the same one; None if compaction, which rewrites batches in
    each replica at another time, may have changed the batch."""
    is_whole = header.records_count == header.last_offset_delta + 1
    return header.crc if is_whole and not log.may_have_gaps else None


def crc_at(log: LogState, offset: Offset) -> int | None:
    """Return the :func:`telling_crc` of the batch with ``offset``.

    Blocks; on any thread. Raises OSError, OffsetOutOfRange, OffsetInTier, CorruptRecordFound.
    """
    found = read(log, offset, 1, log.log_end_offset)
    assert found is not None, "a read that may wait finds what is in the log"
    return telling_crc(log, read_header(found.records)) if found.records else None


def read_side_files(
    disk: Disk, sealed: SealedSegment, indexes: IndexesOfBatches, *, wall_ms: int
) -> SideFiles:
    """Return what belongs to the segment, of whose batches ``indexes`` were made. Blocks; on any thread.
    Raises OSError."""
    return SideFiles(*indexes.encoded(), _producers_at_end(disk, sealed, wall_ms))


def _producers_at_base(log: LogState, sealed: SealedSegment) -> ProducerStateManager | None:
    """Return the producers where the segment begins; None if they are unknown, or compaction may have removed
    what ended their transactions."""
    if log.may_have_gaps:
        return None
    producers = ProducerStateManager(log.files.disk, sealed.folder)
    if sealed.base_offset:
        try:
            found = log.files.disk.read_file(producers.snapshot_path(sealed.base_offset))
            producers.restore(
                found, sealed.base_offset, wall_ms=0
            )  # none has expired: it may have ended here
        except (FileNotFoundError, CorruptSnapshot):
            return None
    return producers


def _producers_at_end(disk: Disk, sealed: SealedSegment, wall_ms: int) -> bytes:
    """Return the snapshot at the segment's end; made from an earlier one and the batches after that, if there
    is no valid one."""
    path = posixpath.join(sealed.folder, names.offset_name(sealed.end_offset, names.SNAPSHOT_SUFFIX))
    try:
        found = disk.read_file(path)
        decode_snapshot(found)
        return found
    except (FileNotFoundError, CorruptSnapshot):
        return _rebuilt_producers(disk, sealed, wall_ms)


def _rebuilt_producers(disk: Disk, sealed: SealedSegment, wall_ms: int) -> bytes:
    producers = ProducerStateManager(disk, sealed.folder)
    for offset in reversed([offset for offset in sealed.snapshots if offset < sealed.end_offset]):
        try:
            producers.restore(disk.read_file(producers.snapshot_path(offset)), offset, wall_ms)
            break
        except (FileNotFoundError, CorruptSnapshot):
            continue
    start = producers.map_end_offset
    for segment, following in zip(sealed.segments, sealed.segments[1:], strict=False):
        if segment.base_offset >= sealed.end_offset or following.base_offset <= start:
            continue
        file = disk.open(segment.log_path, writable=False)
        try:
            for batch in scan(file, 0, segment.size):
                if batch.header.last_offset >= start:
                    producers.replay(batch.buffer, batch.at, batch.header)
        finally:
            file.close()
    return producers.encoded()


def start_in_tier(
    log: LogState,
    offset: int,
    *,
    log_start_offset: int,
    epochs: Epochs,
    producers: bytes,
    wall_ms: int,
) -> Truncation:
    """Remove all records; the next record gets ``offset``. The log begins at ``log_start_offset``: the
    records between are in remote storage, which has their ``epochs`` and a snapshot of the ``producers`` at
    ``offset``.

    After a crash the log has begun so, or is empty at ``log_start_offset``. Syncs files, so it may block.
    Raises CorruptSnapshot, with nothing changed; LogFenced.
    """
    decode_snapshot(producers)
    truncation = truncate_fully_and_start_at(log, log_start_offset, wall_ms=wall_ms)
    try:
        more = _begin_above(log, offset, epochs, producers, wall_ms)
        return Truncation(offset, list(dict.fromkeys((*truncation.removable, *more))))
    except OSError as error:
        log.fence(error)
        raise LogFenced(log.name, error) from error


def _begin_above(log: LogState, offset: int, epochs: Epochs, producers: bytes, wall_ms: int) -> list[str]:
    start, first = log.log_start_offset, log.segments.first
    log.epochs.replace(epoch for epoch in epochs if epoch[1] < offset)
    log.epochs.truncate_from_start(start)
    log.note_epochs_written()
    log.producers.restore(producers, offset, wall_ms)
    log.producers.take_snapshot(sync=True)
    log.begin_in_tier()
    make_durable(log.files.disk, log.epochs.path)
    if offset == start:
        return []
    log.segments.remove([first])
    removable = first.mark_deleted()
    log.empty_at(offset, start)
    log.new_segment(offset, wall_ms)
    log.files.disk.sync_directory(log.folder)
    return removable
