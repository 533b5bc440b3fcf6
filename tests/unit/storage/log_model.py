"""A log as simple as can be: a list of batches. Real logs are compared with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from nilometer.storage.log import Log
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, decode_records


@dataclass(frozen=True, slots=True)
class ModelBatch:
    base_offset: int
    values: tuple[bytes, ...]
    epoch: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.values)


@dataclass
class ModelLog:
    batches: list[ModelBatch] = field(default_factory=list[ModelBatch])
    start: int = 0
    end: int = 0
    epoch: int = 0
    history: set[ModelBatch] = field(default_factory=set[ModelBatch])
    """Everything that was ever written."""

    def append(self, values: tuple[bytes, ...]) -> ModelBatch:
        batch = ModelBatch(self.end, values, self.epoch)
        self.batches.append(batch)
        self.history.add(batch)
        self.end = batch.next_offset
        return batch

    def truncate(self, offset: int) -> None:
        """Whole batches go: one that reaches ``offset`` as well."""
        if offset < self.end:
            gone = [batch for batch in self.batches if batch.next_offset > offset]
            self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
            self.end = min([offset, *(batch.base_offset for batch in gone)])
            self.start = min(self.start, self.end)

    def advance_start(self, offset: int) -> None:
        self.start = max(self.start, offset)

    def records_from(self, offset: int) -> list[tuple[int, bytes]]:
        return [
            (batch.base_offset + index, value)
            for batch in self.batches
            if batch.next_offset > offset
            for index, value in enumerate(batch.values)
        ]


def build_batch(
    values: tuple[bytes, ...],
    *,
    base_offset: int = 0,
    epoch: int = -1,
    timestamp: int = 1_000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    key: bytes | None = b"k",
) -> bytes:
    """A batch of ``values``; ``producer`` is (id, epoch, base sequence)."""
    builder = BatchBuilder()
    for index, value in enumerate(values):
        builder.append(timestamp + index, key, value)
    return builder.build(base_offset, *producer, transactional=transactional, partition_leader_epoch=epoch)


def read_from(log: Log, offset: int, upper: int, max_bytes: int = 700) -> list[tuple[int, bytes]]:
    """All records in ``[offset's batch, upper)``, in as many reads as it takes, each of whole batches."""
    records: list[tuple[int, bytes]] = []
    while True:
        part = log.read(offset, max_bytes, upper)
        assert part is not None
        if not part.records:
            return records
        covered = 0
        for position, header in batches(part.records):
            records += [
                (record.offset, record.value or b"")
                for record in decode_records(part.records, position, header)
            ]
            covered += header.size
            assert header.next_offset <= upper
        assert covered == len(part.records), "a slice ends at the end of a batch"
        assert part.next_offset > offset
        offset = part.next_offset


def batches_from(log: Log, offset: int) -> list[ModelBatch]:
    """The batches of a log as a model has them."""
    found: list[ModelBatch] = []
    while (part := log.read(offset, 700, log.log_end_offset)) is not None and part.records:
        for position, header in batches(part.records):
            values = tuple(record.value or b"" for record in decode_records(part.records, position, header))
            found.append(ModelBatch(header.base_offset, values, header.partition_leader_epoch))
        offset = part.next_offset
    return found
