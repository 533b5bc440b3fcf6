"""The producer state of a log: the last sequence numbers and the open transaction of each idempotent
producer, how an append changes them, the snapshots, and the last stable offset.
"""

from __future__ import annotations

import enum
import posixpath
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import msgspec
from crc32c import crc32c

from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, BatchHeader
from nilometer.wire.records import ControlType, EndTxnMarker, read_end_txn_marker

# The producer state of a log at one offset, as a file (``<offset>.snapshot``).
#
# Big-endian: version (int16, 1), CRC-32C of all bytes after it (uint32), count (int32), then 46 bytes
# for each of the last batches of a producer, the newest last. Apache Kafka writes that one alone, and when it
# reads several it keeps the last; but a producer that has five requests in flight when the broker ends sends
# all five again, and each must be known. A file with a wrong checksum is rejected (KAFKA-9892).

SNAPSHOT_VERSION = 1

_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(Exception):
    pass


class SnapshotEntry(NamedTuple):
    """One producer's fields, in the order of the file. -1 means "none", except in ``offset_delta``. Of an
    earlier batch than the last, ``current_txn_first_offset`` is -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _PREFIX.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    """Parse a snapshot file. Raises CorruptSnapshot."""
    if len(data) < _PREFIX.size + _COUNT.size:
        raise CorruptSnapshot(f"{len(data)} bytes are too few")
    version, crc = _PREFIX.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshot(f"unknown version {version}")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise CorruptSnapshot("the checksum does not match")
    (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    entries = memoryview(data)[_PREFIX.size + _COUNT.size :]
    if count * _ENTRY.size != len(entries):
        raise CorruptSnapshot(f"{len(entries)} bytes cannot be {count} entries")
    return [SnapshotEntry._make(fields) for fields in _ENTRY.iter_unpack(entries)]


# The state of one idempotent producer in one log: its epoch, its last five batches, its open transaction.
#
# Sequence numbers run from 0 to 2^31 - 1 and then wrap to 0.

BATCHES_MAX = 5
"""A client has at most five requests in flight, so a duplicate is one of the last five batches."""

SEQUENCE_MAX = 2**31 - 1
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


class BatchMetadata(msgspec.Struct, frozen=True, gc=False):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + SEQUENCE_MAX + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerStateEntry:
    """One producer's state. Invariant: all ``batches`` have epoch ``producer_epoch``; the oldest is first."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp = NO_TIMESTAMP
        self.current_txn_first_offset = NO_OFFSET
        self.batches: tuple[BatchMetadata, ...] = ()

    def copy(self) -> ProducerStateEntry:
        copy = ProducerStateEntry.__new__(ProducerStateEntry)
        copy.producer_id = self.producer_id
        copy.producer_epoch = self.producer_epoch
        copy.coordinator_epoch = self.coordinator_epoch
        copy.last_timestamp = self.last_timestamp
        copy.current_txn_first_offset = self.current_txn_first_offset
        copy.batches = self.batches
        return copy

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def add_batch(self, producer_epoch: int, batch: BatchMetadata) -> None:
        if producer_epoch != self.producer_epoch:
            self.enter_epoch(producer_epoch)
        self.batches = (*self.batches[-(BATCHES_MAX - 1) :], batch)
        self.last_timestamp = batch.timestamp

    def enter_epoch(self, producer_epoch: int) -> None:
        if producer_epoch != self.producer_epoch:
            self.producer_epoch = producer_epoch
            self.batches = ()

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """Return the batch with the same epoch and sequence numbers if it is among the last five, or None."""
        if header.producer_epoch != self.producer_epoch:
            return None
        if self.batches and header.base_sequence == self.batches[-1].last_sequence + 1:
            return None  # the usual case: it continues the last batch
        last_sequence = header.last_sequence
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return None

    def to_snapshot(self) -> Iterator[SnapshotEntry]:
        """Yield an entry for each batch, the oldest first; one entry if there is no batch."""
        for batch in self.batches[:-1]:
            yield self._entry(batch, batch.timestamp, NO_OFFSET)
        last = self.batches[-1] if self.batches else BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
        yield self._entry(last, self.last_timestamp, self.current_txn_first_offset)

    def _entry(self, batch: BatchMetadata, timestamp: int, txn_first_offset: int) -> SnapshotEntry:
        return SnapshotEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=batch.last_sequence,
            last_offset=batch.last_offset,
            offset_delta=batch.offset_delta,
            timestamp=timestamp,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=txn_first_offset,
        )

    @classmethod
    def from_snapshot(cls, saved: SnapshotEntry, earlier: ProducerStateEntry | None) -> ProducerStateEntry:
        """``earlier``: the state after the entry before, if that is of the same producer."""
        entry = cls(saved.producer_id)
        entry.producer_epoch = saved.producer_epoch
        entry.coordinator_epoch = saved.coordinator_epoch
        entry.last_timestamp = saved.timestamp
        entry.current_txn_first_offset = saved.current_txn_first_offset
        if earlier is not None and earlier.producer_epoch == saved.producer_epoch:
            entry.batches = earlier.batches[-(BATCHES_MAX - 1) :]
        if saved.last_offset >= 0:
            batch = BatchMetadata(saved.last_sequence, saved.last_offset, saved.offset_delta, saved.timestamp)
            entry.batches = (*entry.batches, batch)
        return entry


# The changes that one append makes in the producer state: checked first, applied after the write.
#
# The checks follow Kafka: an older producer epoch is fenced; a batch must continue the sequence of the
# previous one; a new epoch starts at sequence 0; an unknown producer may start at any sequence, since its
# records may have been deleted (KIP-360). Only the leader checks sequences, and only in clients' records; a
# follower accepts all batches that the leader accepted (KAFKA-6003).


class AppendOrigin(enum.Enum):
    """The source of the records, which decides how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


_CLIENT = AppendOrigin.CLIENT


class CompletedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


_SECRET = hash("producer ids")
"""Of this process: the hashes of texts are keyed by a random number, those of integers by none."""


class Producers:
    """The states of producers by id, in the order in which they came.

    Clients choose ids. In a dictionary by id they could all take each other's places: one insertion would
    hold the event loop for seconds.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, ProducerStateEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return (key ^ _SECRET for key in self._entries)

    def __contains__(self, producer_id: int) -> bool:
        return (producer_id ^ _SECRET) in self._entries

    def __getitem__(self, producer_id: int) -> ProducerStateEntry:
        return self._entries[producer_id ^ _SECRET]

    def __setitem__(self, producer_id: int, entry: ProducerStateEntry) -> None:
        self._entries[producer_id ^ _SECRET] = entry

    def __delitem__(self, producer_id: int) -> None:
        del self._entries[producer_id ^ _SECRET]

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._entries.get(producer_id ^ _SECRET)

    def values(self) -> Iterable[ProducerStateEntry]:
        return self._entries.values()

    def update(self, other: Producers) -> None:
        self._entries.update(other._entries)

    def clear(self) -> None:
        self._entries.clear()


class ProducerUpdates:
    """The changes of one append: each batch is checked against the state after the batches before it."""

    __slots__ = ("_known", "_origin", "completed", "entries", "started")

    def __init__(self, known: Producers, origin: AppendOrigin) -> None:
        self._known = known
        self._origin = origin
        self.entries = Producers()
        self.started: list[tuple[int, int]] = []
        """(first offset, producer id) of the transactions that start in this append."""
        self.completed: list[CompletedTxn] = []

    def add_batch(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Check and add a data batch that will get ``base_offset``. Raises KafkaError if it is rejected."""
        entry = self._entry(header.producer_id)
        known_before = entry.producer_epoch != NO_PRODUCER_EPOCH
        if header.producer_epoch < entry.producer_epoch:
            self._check_epoch(entry, header.producer_epoch)
        if self._origin is _CLIENT and known_before:
            self._check_sequence(entry, header)
        last_offset = base_offset + header.last_offset_delta
        entry.add_batch(
            header.producer_epoch,
            BatchMetadata(header.last_sequence, last_offset, header.last_offset_delta, max_timestamp),
        )
        in_transaction, is_transactional = (
            entry.current_txn_first_offset != NO_OFFSET,
            header.is_transactional,
        )
        if in_transaction and not is_transactional:
            if self._origin is not AppendOrigin.REPLICATION:
                raise KafkaError(
                    ErrorCode.invalid_txn_state,
                    f"producer {header.producer_id} sent a batch outside of its open transaction",
                )
        elif is_transactional and not in_transaction:
            entry.current_txn_first_offset = base_offset
            self.started.append((base_offset, header.producer_id))

    def add_marker(self, header: BatchHeader, offset: int, marker: EndTxnMarker) -> None:
        """Check and add a transaction marker that will get ``offset``. Raises KafkaError if rejected."""
        entry = self._entry(header.producer_id)
        self._check_epoch(entry, header.producer_epoch)
        if (
            marker.coordinator_epoch < entry.coordinator_epoch
            and self._origin is not AppendOrigin.REPLICATION
        ):
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"coordinator epoch {marker.coordinator_epoch} is older than {entry.coordinator_epoch}",
            )
        if entry.current_txn_first_offset != NO_OFFSET:
            aborted = marker.control_type is ControlType.ABORT
            self.completed.append(
                CompletedTxn(header.producer_id, entry.current_txn_first_offset, offset, aborted)
            )
        entry.enter_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.current_txn_first_offset = NO_OFFSET
        entry.last_timestamp = marker.timestamp

    def _entry(self, producer_id: int) -> ProducerStateEntry:
        entry = self.entries.get(producer_id)
        if entry is None:
            known = self._known.get(producer_id)
            entry = ProducerStateEntry(producer_id) if known is None else known.copy()
            self.entries[producer_id] = entry
        return entry

    def _check_epoch(self, entry: ProducerStateEntry, producer_epoch: int) -> None:
        if producer_epoch < entry.producer_epoch and self._origin is not AppendOrigin.REPLICATION:
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"producer {entry.producer_id} has epoch {entry.producer_epoch}, but sent {producer_epoch}",
            )

    def _check_sequence(self, entry: ProducerStateEntry, header: BatchHeader) -> None:
        first = header.base_sequence
        if header.producer_epoch != entry.producer_epoch:
            if first != 0:
                raise _out_of_order(header, "0, because its epoch is new")
            return
        last = entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE
        expected = 0 if last in (NO_SEQUENCE, SEQUENCE_MAX) else last + 1
        if first != expected:
            raise _out_of_order(header, str(expected))


def _out_of_order(header: BatchHeader, expected: str) -> KafkaError:
    return KafkaError(
        ErrorCode.out_of_order_sequence_number,
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence {header.base_sequence}"
        f", but the log expects {expected}",
    )


# The producers of one log: idempotence, open transactions, the last stable offset.
#
# The state results from all batches of the log up to ``map_end_offset``. Snapshots (``.snapshot``) avoid
# replaying the whole log; they are written when a segment is rolled and when the log is closed, and rebuilt
# from the log if damaged (KAFKA-9892). A producer is kept after the deletion of its records, until it expires
# (KAFKA-7190).
#
# Invariant: ``ongoing`` has exactly the transactions that are some producer's ``current_txn_first_offset``:
# those without a marker below ``map_end_offset``.

PRODUCER_ID_EXPIRATION_MS = 86_400_000
EXPIRY_STEP = 1_000
SNAPSHOT_AT_ONCE = 2_000
"""A snapshot of so many producers is written when a segment is rolled. One of more is left to the next flush,
which runs on another thread: a client may have made a million of them, and have a segment rolled by each
batch."""


def _entries(producers: Iterable[ProducerStateEntry]) -> Iterator[SnapshotEntry]:
    return chain.from_iterable(entry.to_snapshot() for entry in producers)


class DeferredSnapshot(NamedTuple):
    """A snapshot that another thread writes, under a temporary name; what it has does not change any more."""

    path: str
    offset: int
    producers: tuple[ProducerStateEntry, ...]

    @property
    def temporary_path(self) -> str:
        return self.path + names.TEMPORARY_SUFFIX

    def write(self, disk: Disk) -> None:
        """Write and sync the file. Blocks on the disk. Raises OSError."""
        data = encode_snapshot(_entries(self.producers))
        file = disk.open(self.temporary_path, create=True)
        try:
            file.truncate(0)
            file.append((data,))
            file.sync()
        finally:
            file.close()


class ProducerStateManager:
    __slots__ = (
        "_completed",
        "_disk",
        "_expiration_ms",
        "_folder",
        "_snapshots",
        "deferred",
        "map_end_offset",
        "ongoing",
        "producers",
    )

    def __init__(self, disk: Disk, folder: str, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> None:
        self._disk = disk
        self._folder = folder
        self._expiration_ms = expiration_ms
        self.producers = Producers()
        self.ongoing: dict[int, int] = {}
        """First offset of each open transaction → its producer id, the earliest first."""
        self._completed: deque[tuple[int, int]] = deque()
        """First and last offsets of completed transactions whose marker may not be replicated yet. Both rise:
        one that began after another that ends later does not matter for the last stable offset."""
        self._snapshots: list[int] = []
        self.deferred: DeferredSnapshot | None = None
        """The snapshot of the newest roll, if the next flush is to write it."""
        self.map_end_offset = 0
        """The state includes all batches below this offset."""

    def forget(self) -> list[ProducerStateEntry]:
        """Forget all producers, whose log is deleted; return what was known of them."""
        known, self.producers = list(self.producers.values()), Producers()
        return known

    # -- queries

    def updates(self, origin: AppendOrigin) -> ProducerUpdates:
        """Return an empty collection of changes, which an append fills and passes to :meth:`apply`."""
        return ProducerUpdates(self.producers, origin)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction that is open, or whose marker is not below the
        high watermark; None if there is none."""
        earliest = next(iter(self.ongoing), None)
        for first, last in self._completed:
            if last >= high_watermark:
                return first if earliest is None else min(first, earliest)
        return earliest

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is below the high watermark."""
        while self._completed and self._completed[0][1] < high_watermark:
            self._completed.popleft()

    # -- changes

    def apply(self, updates: ProducerUpdates) -> list[AbortedTxn]:
        """Apply the changes of an append; return the entries for the segment's ``.txnindex``."""
        self.producers.update(updates.entries)
        for first_offset, producer_id in updates.started:
            self.ongoing[first_offset] = producer_id
        if not updates.completed:
            return []
        return [entry for completed in updates.completed for entry in self._complete(completed)]

    def replay(self, buffer: Bytes, position: int, header: BatchHeader) -> list[AbortedTxn]:
        """Update the state with a batch that is in the log; return the entries for ``.txnindex``.

        The batch is at byte ``position`` of ``buffer``.
        """
        aborted: list[AbortedTxn] = []
        if header.has_producer_id:
            updates = self.updates(AppendOrigin.REPLICATION)
            if not header.is_control:
                updates.add_batch(header, header.base_offset, header.max_timestamp)
            elif (marker := read_end_txn_marker(buffer, position, header)) is not None:
                updates.add_marker(header, header.base_offset, marker)
            aborted = self.apply(updates)
        self.map_end_offset = header.next_offset
        return aborted

    def _complete(self, completed: CompletedTxn) -> Iterator[AbortedTxn]:
        others = (first for first, owner in self.ongoing.items() if owner != completed.producer_id)
        last_stable_offset = next(others, completed.last_offset + 1)
        self.ongoing.pop(completed.first_offset, None)
        while self._completed and self._completed[-1][0] >= completed.first_offset:
            self._completed.pop()
        self._completed.append((completed.first_offset, completed.last_offset))
        if completed.is_aborted:
            yield AbortedTxn(
                completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset
            )

    def remove_expired(self, wall_ms: int) -> Iterator[int]:
        """Forget producers that were idle too long and have no open transaction, in steps; each yields how
        many producers it looked at."""
        producer_ids = list(self.producers)
        for begin in range(0, len(producer_ids), EXPIRY_STEP):
            step = producer_ids[begin : begin + EXPIRY_STEP]
            for producer_id in step:
                entry = self.producers.get(producer_id)
                if entry is not None and self._is_expired(entry, wall_ms):
                    del self.producers[producer_id]
            yield len(step)

    def _is_expired(self, entry: ProducerStateEntry, wall_ms: int) -> bool:
        return (
            entry.current_txn_first_offset == NO_OFFSET
            and wall_ms - entry.last_timestamp >= self._expiration_ms
        )

    def exchange_state(self, other: ProducerStateManager) -> None:
        """Exchange all but the snapshots with ``other``, whose log has the same records in another folder.

        The state of a copied log lacks the producers whose records were deleted before they were copied.
        """
        self.producers, other.producers = other.producers, self.producers
        self.ongoing, other.ongoing = other.ongoing, self.ongoing
        self._completed, other._completed = other._completed, self._completed
        self.map_end_offset, other.map_end_offset = other.map_end_offset, self.map_end_offset

    # -- snapshots

    def snapshot_path(self, offset: int) -> str:
        return posixpath.join(self._folder, names.offset_name(offset, names.SNAPSHOT_SUFFIX))

    @property
    def snapshot_offsets(self) -> tuple[int, ...]:
        return tuple(self._snapshots)

    def moved_to(self, folder: str) -> None:
        self._folder = folder
        self.deferred = None

    def find_snapshots(self, file_names: Iterable[str]) -> None:
        """Register the snapshots among ``file_names``, the files of the partition's folder."""
        parsed = (names.parse_offset_name(name) for name in file_names)
        self._snapshots = sorted(found[0] for found in parsed if found and found[1] == names.SNAPSHOT_SUFFIX)

    def encoded(self) -> bytes:
        """Return a snapshot of the state at ``map_end_offset``."""
        return encode_snapshot(_entries(self.producers.values()))

    def take_snapshot(self, *, sync: bool) -> None:
        """Write the state at ``map_end_offset`` to a snapshot file. With ``sync`` it may block."""
        self._disk.replace_file(self.snapshot_path(self.map_end_offset), self.encoded(), sync=sync)
        self._register(self.map_end_offset)

    def on_roll(self) -> None:
        """Write the state at ``map_end_offset``, where a segment begins, or have the next flush write it."""
        if len(self.producers) <= SNAPSHOT_AT_ONCE:
            self.take_snapshot(sync=False)
        else:
            path = self.snapshot_path(self.map_end_offset)
            self.deferred = DeferredSnapshot(path, self.map_end_offset, tuple(self.producers.values()))

    def publish(self, written: DeferredSnapshot, *, is_wanted: bool) -> bool:
        """Give a snapshot that a flush has written its name, or remove it if it is not wanted any more.

        Returns whether it has its name now.
        """
        if self.deferred is written:
            self.deferred = None
        if not self._disk.exists(written.temporary_path):
            return False  # with its folder, which was deleted meanwhile
        if not is_wanted:
            self._disk.remove(written.temporary_path)
            return False
        self._disk.rename(written.temporary_path, written.path)
        self._register(written.offset)
        return True

    def _register(self, offset: int) -> None:
        if offset not in self._snapshots:
            self._snapshots.append(offset)
            self._snapshots.sort()

    def load_latest(self, log_start_offset: int, end_offset: int, wall_ms: int) -> None:
        """Load the newest valid snapshot in ``[log_start_offset, end_offset]``.

        Newer or invalid snapshots, and those outside the range, are removed. A snapshot exactly at the log
        start offset is valid: it has producers whose records are deleted (KAFKA-7190). Afterwards the caller
        must replay the log from ``map_end_offset`` on.
        """
        for offset in self._snapshots[:]:
            if not log_start_offset <= offset <= end_offset:
                self._remove_snapshot(offset)
        self._clear(log_start_offset)
        while self._snapshots:
            offset = self._snapshots[-1]
            try:
                self.restore(self._disk.read_file(self.snapshot_path(offset)), offset, wall_ms)
                return
            except (CorruptSnapshot, FileNotFoundError):
                self._remove_snapshot(offset)

    def restore(self, snapshot: bytes, offset: int, wall_ms: int) -> None:
        """Use the state in ``snapshot``, which was taken at ``offset``. Raises CorruptSnapshot."""
        saved = decode_snapshot(snapshot)
        self._clear(offset)
        read = Producers()
        for one in saved:
            read[one.producer_id] = ProducerStateEntry.from_snapshot(one, read.get(one.producer_id))
        for entry in read.values():
            if not self._is_expired(entry, wall_ms):
                self._take(entry)
        self.ongoing = dict(sorted(self.ongoing.items()))

    def truncate_fully(self, offset: int) -> None:
        """Remove all producers and snapshots: the log was truncated fully and starts at ``offset``."""
        for snapshot in self._snapshots[:]:
            self._remove_snapshot(snapshot)
        self._clear(offset)

    def remove_snapshots(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._remove_snapshot(offset)

    def remove_stray_snapshots(self, base_offsets: Iterable[int]) -> None:
        """Remove the snapshots that are not at a segment's base offset, except the last one if it is above
        all of them (the snapshot of a clean shutdown)."""
        keep = set(base_offsets)
        highest = max(keep, default=-1)
        stray = [offset for offset in self._snapshots if offset not in keep]
        self.remove_snapshots(stray if not stray or stray[-1] < highest else stray[:-1])

    def _remove_snapshot(self, offset: int) -> None:
        if offset in self._snapshots:
            self._snapshots.remove(offset)
            path = self.snapshot_path(offset)
            if self._disk.exists(path):
                self._disk.remove(path)

    def _take(self, entry: ProducerStateEntry) -> None:
        self.producers[entry.producer_id] = entry
        if entry.current_txn_first_offset != NO_OFFSET:
            self.ongoing[entry.current_txn_first_offset] = entry.producer_id

    def _clear(self, offset: int) -> None:
        self.producers.clear()
        self.ongoing.clear()
        self._completed.clear()
        self.deferred = None
        self.map_end_offset = offset
