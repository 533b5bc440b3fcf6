"""A compacted log, and a simple model of it: a list of all records.

A scenario appends batches (plain, idempotent, in transactions that commit or abort), rolls segments, advances
the clock, and cleans the log; then the log is compared with the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.compression import Codec
from nilometer.wire.record_batch import BatchHeader, batches
from nilometer.wire.records import (
    BatchBuilder,
    ControlType,
    EndTxnMarker,
    Record,
    build_end_txn_marker,
    decode_records,
)
from support.logs.log_cleaner import clean_log, make_durable
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
FOLDER = "/data/t-0"
RETENTION_MS = 1_000
CONFIG = LogConfig(
    is_compacted=True,
    is_deleted_by_retention=False,
    segment_bytes=600,
    index_interval_bytes=100,
    delete_retention_ms=RETENTION_MS,
)


@dataclass
class CompactionScenario:
    """A log, and the model of everything that was written to it."""

    disk: MemoryDisk = field(default_factory=MemoryDisk)
    now_ms: int = 1_000_000
    records: dict[int, Record] = field(default_factory=dict[int, Record])
    """Offset to every data record."""
    aborted: set[int] = field(default_factory=set[int])
    """Offsets of records of aborted transactions."""
    open: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Offsets of the records of each producer's open transaction."""
    sequences: dict[int, int] = field(default_factory=dict[int, int])
    tombstone_seen_ms: dict[int, int] = field(default_factory=dict[int, int])
    """Offset of a tombstone that is its key's newest record to the time when a round first cleaned it."""

    def __post_init__(self) -> None:
        self.log = self.reopen()

    def reopen(self) -> Log:
        self.disk.crash_process()
        options = OpenOptions(
            clean=False,
            wall_ms=self.now_ms,
            recovery_point=0 if not self.records else self.log.recovery_point,
        )
        self.log = Log.open(SegmentFiles.on(self.disk), FOLDER, KEY, CONFIG, options)
        return self.log

    def append(
        self,
        pairs: list[tuple[bytes, bytes | None]],
        *,
        producer: int | None = None,
        in_transaction: bool = False,
        codec: Codec = Codec.NONE,
    ) -> int:
        builder = BatchBuilder(codec)
        for number, (key, value) in enumerate(pairs):
            builder.append(self.now_ms + number, key, value, (("h", b"%d" % number),))
        who = (-1, -1, -1) if producer is None else self._who(producer, len(pairs))
        batch = builder.build(0, *who, transactional=in_transaction)
        info = self.log.append_as_leader(batch, leader_epoch=0, wall_ms=self.now_ms)
        for number, (key, value) in enumerate(pairs):
            offset = info.first_offset + number
            self.records[offset] = Record(offset, self.now_ms + number, key, value, (("h", b"%d" % number),))
            if in_transaction:
                assert producer is not None
                self.open.setdefault(producer, []).append(offset)
        return info.first_offset

    def _who(self, producer: int, count: int) -> tuple[int, int, int]:
        first = self.sequences.get(producer, 0)
        self.sequences[producer] = first + count
        return producer, 0, first

    def end_transaction(self, producer: int, kind: ControlType) -> None:
        offsets = self.open.pop(producer, [])
        if kind is ControlType.ABORT:
            self.aborted.update(offsets)
        self.sequences.setdefault(producer, 0)
        batch = build_end_txn_marker(
            EndTxnMarker(kind, 0, self.now_ms), producer_id=producer, producer_epoch=0
        )
        self.log.append_as_leader(batch, leader_epoch=0, wall_ms=self.now_ms, origin=AppendOrigin.COORDINATOR)

    def roll(self) -> None:
        if self.log.segments.active.size:
            self.log.roll(self.now_ms)

    def clean(self, buffer_bytes: int = 1 << 20) -> bool:
        make_durable(self.log)
        before = self.log.log_end_offset, self.log.log_start_offset, self.log.epochs.entries
        done = clean_log(self.log, wall_ms=self.now_ms, buffer_bytes=buffer_bytes) is not None
        assert (self.log.log_end_offset, self.log.log_start_offset, self.log.epochs.entries) == before
        for offset in self.newest(self.log.cleaned_offset).values():
            if self.records[offset].value is None and offset < self.log.cleaned_offset:
                self.tombstone_seen_ms.setdefault(offset, self.now_ms)
        return done

    # -- checks against the model

    def newest(self, end_offset: int) -> dict[bytes, int]:
        """Return the newest offset of each key among the records below ``end_offset`` not aborted."""
        return {
            record.key or b"": offset
            for offset, record in sorted(self.records.items())
            if offset < end_offset and offset not in self.aborted
        }

    def view(self) -> dict[bytes, bytes]:
        """Return the newest value of each key up to the last stable offset, without deleted keys."""
        stable = min((offsets[0] for offsets in self.open.values()), default=self.log.log_end_offset)
        table: dict[bytes, bytes | None] = {}
        for offset, record in sorted(self.records.items()):
            if offset not in self.aborted and offset < stable:
                table[record.key or b""] = record.value
        return {key: value for key, value in table.items() if value is not None}

    def check(self) -> None:
        found = {record.offset: record for _, records in read_all(self.log) for record in records}
        for offset, record in found.items():
            assert record == self.records[offset], "records stay as they were written"
        cleaned = self.log.cleaned_offset
        newest = self.newest(cleaned)
        newest_of_all = self.newest(self.log.log_end_offset)
        for offset, record in self.records.items():
            if offset >= cleaned:
                assert offset in found or offset in self.aborted, "nothing that is dirty goes"
            elif newest_of_all.get(record.key or b"") == offset and record.value is not None:
                assert offset in found, "the newest value of a key stays"
            elif offset in self.aborted:
                assert offset not in found, "what was aborted goes at once"
            elif newest.get(record.key or b"") != offset:
                assert offset not in found, "superseded records go"
            elif record.value is None:
                seen = self.tombstone_seen_ms[offset]
                if self.now_ms < seen + RETENTION_MS:
                    assert offset in found, "a tombstone stays for delete.retention.ms"
        assert table_of(self.log) == self.view()

    def check_after_crash(self) -> None:
        """Check what must hold after any part of a cleaning round, checkpointed or not."""
        found = {record.offset: record for _, records in read_all(self.log) for record in records}
        for offset, record in found.items():
            assert record == self.records[offset], "records stay as they were written"
        assert table_of(self.log) == self.view()
        for offset, seen in self.tombstone_seen_ms.items():
            if (
                self.now_ms < seen + RETENTION_MS
                and self.newest(1 << 60).get(self.records[offset].key or b"") == offset
            ):
                assert offset in found, "a tombstone stays for delete.retention.ms"

    def check_producers(self) -> None:
        """Check that the producer state rebuilt from the batches has every producer's last sequence."""
        copy = follower_of(self.log)
        for producer, count in self.sequences.items():
            if count:
                assert copy.producers.producers[producer].last_sequence == count - 1


def read_all(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    """Read the batches of the log with its own reader, without control batches."""
    found: list[tuple[BatchHeader, list[Record]]] = []
    offset = log.log_start_offset
    while (part := log.read(offset, 500, log.log_end_offset)) is not None and part.records:
        for position, header in batches(part.records):
            if not header.is_control:
                found.append((header, decode_records(part.records, position, header)))
        offset = part.next_offset
    return found


def table_of(log: Log) -> dict[bytes, bytes]:
    """Return key to newest value, as a read_committed consumer computes it from aborted transactions."""
    table: dict[bytes, bytes | None] = {}
    offset, end = log.log_start_offset, log.last_stable_offset(log.log_end_offset)
    while (part := log.read(offset, 500, end)) is not None and part.records:
        aborted = sorted(
            log.aborted_transactions(offset, part.next_offset), key=lambda entry: entry.first_offset
        )
        skipped: set[int] = set()
        for position, header in batches(part.records):
            while aborted and aborted[0].first_offset <= header.last_offset:
                skipped.add(aborted.pop(0).producer_id)
            records = decode_records(part.records, position, header)
            if header.is_control:
                if records and records[0].key == b"\0\0\0\0":
                    skipped.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in skipped):
                table.update((record.key or b"", record.value) for record in records)
        offset = part.next_offset
    return {key: value for key, value in table.items() if value is not None}


def follower_of(log: Log) -> Log:
    """Return a new log with a follower's copy of all batches."""
    disk = MemoryDisk()
    options = OpenOptions(clean=False, wall_ms=1)
    copy = Log.open(SegmentFiles.on(disk), FOLDER, KEY, CONFIG, options)
    offset = 0
    while (part := log.read(offset, 500, log.log_end_offset)) is not None and part.records:
        copy.append_as_follower(part.records, wall_ms=1)
        offset = part.next_offset
    assert copy.log_end_offset == log.log_end_offset
    return copy
