"""One compaction round over one log: read the newest offset of each key, then rewrite segments by groups.

The work is divided into slices: :meth:`CleaningRound.steps` yields after each. Steps run on any thread, one
after another. Between two steps the owner of the log decides whether the round continues, and replaces the
segments of each group as soon as it is rewritten. An abandoned round needs no undo: every replaced group is
valid without the others. Groups are rewritten in ascending order of offsets, so an older value never remains
after the tombstone that deletes it is removed.

Nothing here changes the log. The CRC of every batch is checked before its records are used.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Generator, Iterator, Sequence

import msgspec

from nilometer.runtime import Disk, File
from nilometer.storage import names, swapping
from nilometer.storage.cleaning.batch_cleaner import (
    BatchCleaner,
    CleaningRules,
    Newest,
    TransactionTracker,
    read_keys,
)
from nilometer.storage.cleaning.cleaning_plan import CleaningPlan, group_segments
from nilometer.storage.cleaning.offset_map import LOAD_FACTOR, OffsetMap, RecordMarks
from nilometer.storage.errors import CorruptRecordFound, LogFenced
from nilometer.storage.log_state import LogState
from nilometer.storage.producers import Producers
from nilometer.storage.segments.batch_scan import ScannedBatch, scan
from nilometer.storage.segments.indexes import NO_TIMESTAMP, CorruptIndex, SegmentIndexes
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.swapping import Replacement
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import CorruptBatch, ErrorCode, KafkaError
from nilometer.wire.record_batch import BatchHeader, check_batch
from nilometer.wire.records import records_data

# Writing a cleaned segment, ``<base>.log.cleaned`` with its indexes, which will replace other segments.
#
# The files are complete and durable before the replacement starts. A manifest (``<base>.inputs.cleaned``)
# lists the segments that they replace; see :mod:`nilometer.storage.swapping`. Safe on any thread; the file
# pool is not used.

WRITE_BYTES = 256 << 10
"""How many bytes are buffered before they are written."""


class CleanedSegmentWriter:
    def __init__(self, disk: Disk, folder: str, inputs: Sequence[int], index_interval_bytes: int) -> None:
        """Create the log file. ``inputs``: base offsets of the segments to replace, in order."""
        self._disk = disk
        self._folder = folder
        self._inputs = tuple(inputs)
        self._base_offset = base_offset = inputs[0]
        self._index_interval_bytes = index_interval_bytes
        self._indexes = SegmentIndexes.empty(base_offset)
        self._aborted: list[AbortedTxn] = []
        self._gathered: list[Bytes] = []
        self._gathered_bytes = 0
        self._bytes_since_index_entry = 0
        self._largest = NO_TIMESTAMP, base_offset
        """The largest timestamp, and the last offset of the first batch that has it."""
        self._made: list[str] = []
        self.size = 0
        self._log: File | None = self._create(names.LOG_SUFFIX)

    def append(self, data: Bytes, header: BatchHeader) -> None:
        """Append a complete batch, with offsets above the previous ones."""
        if header.max_timestamp > self._largest[0]:
            self._largest = header.max_timestamp, header.last_offset
        since, interval = self._bytes_since_index_entry, self._index_interval_bytes
        self._bytes_since_index_entry = self._indexes.add(
            self.size, header.last_offset, header.size, self._largest, since, interval
        )
        self._gathered.append(data)
        self._gathered_bytes += header.size
        self.size += header.size
        if self._gathered_bytes >= WRITE_BYTES:
            self._write_gathered()

    def append_aborted(self, entry: AbortedTxn) -> None:
        self._aborted.append(entry)

    def finish(self) -> Replacement:
        """Write the indexes and the manifest, and make all files durable. Blocks. Raises OSError."""
        self._write_gathered()
        log = self._log
        assert log is not None, "a cleaned segment is finished only once"
        log.sync()
        log.close()
        self._log = None
        self._indexes.times.maybe_append(*self._largest)
        outputs = [names.LOG_SUFFIX]
        contents = {
            names.INDEX_SUFFIX: self._indexes.offsets.to_bytes(),
            names.TIME_INDEX_SUFFIX: self._indexes.times.to_bytes(),
        }
        if self._aborted:
            contents[names.TXN_INDEX_SUFFIX] = b"".join(entry.encode() for entry in self._aborted)
        for suffix, content in contents.items():
            self._write_whole(suffix, content)
            outputs.append(suffix)
        manifest = swapping.encode_manifest(self._inputs, outputs)
        self._write_whole(names.SWAP_INPUTS_SUFFIX, manifest)
        self._disk.sync_directory(self._folder)
        return Replacement(self._folder, self._inputs, tuple(outputs), self.size)

    def discard(self) -> None:
        """Remove the files that were written. Raises OSError.

        Nothing is removed if the renaming to ``.swap`` was interrupted by an error: the remaining
        ``.cleaned`` files show a restart that the ``.swap`` files are not complete.
        """
        if self._log is not None:
            self._log.close()
            self._log = None
        swaps = [path.removesuffix(names.CLEANED_SUFFIX) + names.SWAP_SUFFIX for path in self._made]
        if any(self._disk.exists(path) for path in swaps):
            return
        for path in self._made:
            if self._disk.exists(path):
                self._disk.remove(path)

    def _create(self, suffix: str) -> File:
        path = posixpath.join(self._folder, names.offset_name(self._base_offset, suffix))
        path += names.CLEANED_SUFFIX
        file = self._disk.open(path, create=True)
        self._made.append(path)
        if file.size():
            file.truncate(0)
        return file

    def _write_whole(self, suffix: str, content: bytes) -> None:
        file = self._create(suffix)
        try:
            if content:
                file.append([content])
            file.sync()
        finally:
            file.close()

    def _write_gathered(self) -> None:
        if self._gathered:
            assert self._log is not None, "nothing is appended to a finished segment"
            self._log.append([b"".join(self._gathered)])
            self._gathered.clear()
            self._gathered_bytes = 0


SLICE_BYTES = 128 << 10
"""Bytes read or written in one slice, unless one batch is larger: a few milliseconds of work."""
BUFFER_BYTES = 128 << 20
"""Kafka's default of ``log.cleaner.dedupe.buffer.size``."""
BUFFER_BYTES_PER_MARK = 8
"""The marks of records may use an eighth of the offset map's memory, in addition to it."""


class RoundOptions(msgspec.Struct, frozen=True, kw_only=True):
    wall_ms: int
    buffer_bytes: int = BUFFER_BYTES
    load_factor: float = LOAD_FACTOR
    slice_bytes: int = SLICE_BYTES


class RoundStatistics(msgspec.Struct):
    """The work that a round has done so far."""

    bytes_mapped: int = 0
    """Bytes read to find the newest offset of each key."""
    bytes_read: int = 0
    """Bytes read to be rewritten."""
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    keys: int = 0
    map_utilization: float = 0.0

    @property
    def bytes_processed(self) -> int:
        return self.bytes_mapped + self.bytes_read + self.bytes_written


class ReadyGroup(msgspec.Struct, frozen=True):
    """A group of segments (``inputs``) whose replacement is written and durable."""

    inputs: tuple[LogSegment, ...]
    replacement: Replacement


Step = ReadyGroup | None
"""The result of one slice of work: a group that is ready to be replaced, or None."""


class CleaningRound:
    def __init__(
        self,
        disk: Disk,
        folder: str,
        plan: CleaningPlan,
        config: LogConfig,
        sealed: Sequence[LogSegment],
        aborted: Sequence[AbortedTxn],
        producers: Producers,
        options: RoundOptions,
    ) -> None:
        """Prepare a round; no file is read yet.

        ``sealed``: all segments of the log except the active one; ``aborted``: the aborted transactions with
        their marker in the active segment; ``producers``: the log's producers, which may change meanwhile.
        """
        self._disk = disk
        self._folder = folder
        self._plan = plan
        self._config = config
        self._sealed = sealed
        self._aborted = list(aborted)
        self._producers = producers
        self._options = options
        self._slice = 0
        self._writer: CleanedSegmentWriter | None = None
        self._offsets: OffsetMap | None = None
        self.statistics = RoundStatistics()
        self.end_offset = plan.first_dirty_offset
        """The offset below which the log is clean after the round; final when all keys have been read."""

    def steps(self) -> Generator[Step, None, None]:
        """Do the round slice by slice; yield after each slice. In the end, also of an abandoned round, call
        :meth:`discard`.

        Blocks on the disk. Raises CorruptRecordFound; KafkaError if a transaction index is damaged; OSError,
        also if a segment was removed meanwhile.
        """
        self._find_aborted()
        self._offsets = offsets = OffsetMap(
            self._options.buffer_bytes,
            self._options.load_factor,
            self._plan.end_offset - self._plan.first_dirty_offset,
        )
        marks = RecordMarks(
            self._plan.first_dirty_offset, self._options.buffer_bytes // BUFFER_BYTES_PER_MARK
        )
        yield from self._learn(offsets, marks)
        self.statistics.keys, self.statistics.map_utilization = len(offsets), offsets.utilization
        rules = CleaningRules(
            newest=Newest(offsets, marks, self.end_offset),
            wall_ms=self._options.wall_ms,
            delete_retention_ms=self._config.delete_retention_ms,
            round_end=self._plan.end_offset,
            is_last_of_producer=last_batches(self._producers, self._plan.end_offset),
            decompressed_bytes_max=self._config.max_decompressed_message_bytes,
        )
        cleaner = BatchCleaner(rules, TransactionTracker(self._aborted))
        reached = [one for one in self._plan.segments if one.base_offset < self.end_offset]
        for group in group_segments(reached, self._plan.end_offset, self._config.segment_bytes):
            yield from self._rewrite(group, cleaner)

    def discard(self) -> None:
        """Free the memory of the round, and remove the files of a rewritten group that has not replaced its
        segments. Blocks. Raises OSError.

        The generator does not do this itself, because Python may close an abandoned generator at any time.
        """
        offsets, self._offsets = self._offsets, None
        if offsets is not None:
            offsets.release()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.discard()

    def _find_aborted(self) -> None:
        try:
            for segment in self._sealed:
                self._aborted += segment.aborted_apart()
        except CorruptIndex as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    def _learn(self, offsets: OffsetMap, marks: RecordMarks) -> Generator[Step, None, None]:
        transactions = TransactionTracker(self._aborted)
        first_dirty = self._plan.first_dirty_offset
        ends = [*(segment.base_offset for segment in self._plan.segments[1:]), self._plan.end_offset]
        for segment, end in zip(self._plan.segments, ends, strict=True):
            if end <= first_dirty:
                continue
            for batch in self._batches(segment):
                header = batch.header
                self.statistics.bytes_mapped += header.size
                if (
                    not header.is_control
                    and not transactions.on_batch(header)
                    and header.last_offset >= first_dirty
                ):
                    full_at = self._learn_batch(offsets, marks, segment, batch)
                    if full_at is not None:
                        self.end_offset = full_at
                        return
                if self._is_slice_over(header.size):
                    yield None
            self.end_offset = end

    def _learn_batch(
        self, offsets: OffsetMap, marks: RecordMarks, segment: LogSegment, batch: ScannedBatch
    ) -> int | None:
        """Put the keys of a batch into ``offsets``, and mark the records that they replace.

        Returns the offset of the first record that did not fit into the map; None if all did.
        """
        header = batch.header
        if not header.records_count:
            return None
        base_offset, first_dirty = header.base_offset, self._plan.first_dirty_offset
        try:
            data = records_data(batch.buffer, batch.at, header, self._config.max_decompressed_message_bytes)
            keys, deltas, tombstones = read_keys(data, header)
        except CorruptBatch as error:
            raise _damage(segment, batch.position, base_offset, error) from error
        marks.add(header, deltas, tombstones)
        found = zip(keys, deltas, strict=True)
        if base_offset + min(deltas) < first_dirty:
            found = ((key, delta) for key, delta in found if base_offset + delta >= first_dirty)
        full_at = offsets.put_all(found, base_offset, marks)
        if full_at is not None:
            marks.forget(base_offset)
        return full_at

    def _rewrite(self, group: tuple[LogSegment, ...], cleaner: BatchCleaner) -> Generator[Step, None, None]:
        statistics = self.statistics
        inputs = [segment.base_offset for segment in group]
        self._writer = writer = CleanedSegmentWriter(
            self._disk, self._folder, inputs, self._config.indexed_bytes
        )
        for segment in group:
            for batch in self._batches(segment):
                try:
                    cleaned = cleaner.clean(batch.buffer, batch.at, batch.header)
                except CorruptBatch as error:
                    raise _damage(segment, batch.position, batch.header.base_offset, error) from error
                statistics.bytes_read += batch.header.size
                statistics.records_read += batch.header.records_count
                statistics.records_kept += cleaned.records
                if cleaned.aborted is not None:
                    writer.append_aborted(cleaned.aborted)
                if cleaned.data:
                    writer.append(cleaned.data, cleaned.header)
                    statistics.bytes_written += cleaned.header.size
                if self._is_slice_over(batch.header.size):
                    yield None
        yield ReadyGroup(group, writer.finish())
        self._writer = None

    def _batches(self, segment: LogSegment) -> Iterator[ScannedBatch]:
        """Yield all batches of a segment after checking them. Raises CorruptRecordFound, OSError."""
        size = segment.size
        file = self._disk.open(segment.log_path, writable=False)
        end, next_offset = 0, segment.base_offset
        try:
            for batch in scan(file, 0, size, self._options.slice_bytes):
                check_batch(batch.buffer, batch.at, batch.header)
                if batch.header.base_offset < next_offset:
                    raise CorruptBatch(
                        f"batch with base offset {batch.header.base_offset}, but {next_offset} is expected"
                    )
                end, next_offset = batch.position + batch.header.size, batch.header.next_offset
                yield batch
            if end != size:
                raise CorruptBatch(f"the last batch does not end at the end of the segment, byte {size}")
        except KafkaError as error:
            if isinstance(error, CorruptRecordFound):
                raise
            raise _damage(segment, end, next_offset, error) from error
        finally:
            file.close()

    def _is_slice_over(self, size: int) -> bool:
        self._slice += size
        if self._slice < self._options.slice_bytes:
            return False
        self._slice = 0
        return True


def last_batches(producers: Producers, end_offset: int) -> Callable[[BatchHeader], bool]:
    """Return a function: whether a batch is its producer's last one below ``end_offset``.

    A producer's last batch of all may be above ``end_offset`` and be truncated later: then this one has its
    last sequence number. For a producer without batches it is the marker with its current epoch. Only the
    last five batches of a producer are known.
    """

    def is_last(header: BatchHeader) -> bool:
        entry = producers.get(header.producer_id)
        if entry is None:
            return False
        if not entry.batches:
            return header.is_control and header.producer_epoch == entry.producer_epoch
        below = [batch.last_offset for batch in entry.batches if batch.last_offset < end_offset]
        return bool(below) and header.last_offset == max(below)

    return is_last


def _damage(segment: LogSegment, position: int, offset: int, error: KafkaError) -> CorruptRecordFound:
    return CorruptRecordFound(segment.log_path, position, offset, str(error))


# One compaction round over a log in use: the part that runs on the thread of the log's owner.
#
# The round itself works on files and does not see changes of the log. Here is decided whether the round may
# continue, and segments are replaced by the cleaned segment made from them: on disk with
# :mod:`nilometer.storage.swapping`, in memory by one assignment, so that readers have the old segments or the
# new one. A reader on another thread that combined a file of one with an index of the other notices it by
# :attr:`LogState.replacements` and reads again.


class RoundOvertaken(Exception):
    """The log has changed so that the round must be abandoned; the message says how."""


class LogCleaning:
    def __init__(self, log: LogState, plan: CleaningPlan, options: RoundOptions) -> None:
        """Start a round, and mark the log as one that may have gaps. Raises OSError, RoundOvertaken."""
        self._log = log
        self._truncations = log.truncations
        self._log_start_offset = log.log_start_offset
        self._folder = log.folder
        self.plan = plan
        self.check(plan.segments)
        log.allow_gaps()
        self.round = CleaningRound(
            log.files.disk,
            log.folder,
            plan,
            log.config,
            # The round reads the aborted transactions of sealed segments itself, on its own thread.
            tuple(log.segments)[:-1],
            tuple(log.segments.active.aborted()),
            log.producers.producers,
            options,
        )

    def check(self, inputs: Sequence[LogSegment] = ()) -> None:
        """Check that the round may continue and may replace ``inputs``. Raises RoundOvertaken."""
        log = self._log
        if log.failure is not None or log.folder != self._folder:
            raise RoundOvertaken("the log was deleted, or is offline")
        if log.truncations != self._truncations:
            raise RoundOvertaken("the log was truncated")
        if log.log_start_offset != self._log_start_offset:
            raise RoundOvertaken("records were deleted")
        if not log.config.is_compacted:
            raise RoundOvertaken("the topic is not compacted any more")
        if inputs and not self._are_live(inputs):
            raise RoundOvertaken("its segments no longer exist")

    def _are_live(self, inputs: Sequence[LogSegment]) -> bool:
        """Whether ``inputs`` are still adjacent segments of the log, and none of them is the active one."""
        live = tuple(self._log.segments)
        slot = next((slot for slot, segment in enumerate(live) if segment is inputs[0]), None)
        if slot is None or slot + len(inputs) >= len(live):
            return False
        return all(one is other for one, other in zip(live[slot:], inputs, strict=False))

    def replace(self, group: ReadyGroup, *, wall_ms: int) -> list[str]:
        """Replace the group's segments by the cleaned one; return the ``.deleted`` files, to remove later.

        Raises RoundOvertaken; LogFenced if a rename fails.
        """
        self.check(group.inputs)
        log, replacement = self._log, group.replacement
        cleaned = LogSegment(
            log.files,
            log.folder,
            replacement.base_offset,
            size=replacement.size,
            created_ms=wall_ms,
            index_interval_bytes=log.config.indexed_bytes,
        )
        removable: list[str] = []
        log.begin_replacement()
        try:
            swapping.commit(log.files.disk, replacement)
            for segment in group.inputs:
                removable += segment.mark_deleted()
            swapping.put_in_place(log.files.disk, replacement)
            log.segments.replace(group.inputs, cleaned)
            log.producers.remove_snapshots([segment.base_offset for segment in group.inputs[1:]])
        except OSError as error:
            log.fence(error)
            raise LogFenced(log.name, error) from error
        finally:
            log.end_replacement()
        return removable

    def finish(self) -> None:
        """Record, after the last group was replaced, the offset below which the log is clean.

        Raises RoundOvertaken.
        """
        self.check()
        self._log.advance_cleaned(self.round.end_offset)
