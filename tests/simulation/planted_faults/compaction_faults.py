"""Faults of compaction: which record stays, up to where, and what gaps mean to others."""

from __future__ import annotations

from planted_faults.planting import Patch, PlantedFault

from nilometer.simulation.plan import Kind
from nilometer.storage.cleaning.batch_cleaner import BatchCleaner, BatchRecords, read_keys
from nilometer.storage.cleaning.offset_map import DROP, KEEP
from nilometer.storage.log_state import LogState


def drop_a_newest_value(patch: Patch) -> None:
    def marks_of(self: BatchCleaner, records: BatchRecords) -> bytes:
        newest, base_offset = self._rules.newest, records.header.base_offset
        keys, deltas, _ = read_keys(records.data, records.header)
        offsets = [base_offset + delta for delta in deltas]
        return bytes(
            KEEP if offset >= newest.end_offset or offset > newest_of_key else DROP
            for offset, newest_of_key in zip(offsets, newest.offsets.newest(keys), strict=True)
        )

    patch.setattr(BatchCleaner, "_marks", marks_of)


def drop_tombstones_before_what_they_delete(patch: Patch) -> None:
    """Of the values that they delete, those in the part that is clean already stay."""
    sound = BatchCleaner._marks

    def marks_of(self: BatchCleaner, records: BatchRecords) -> bytes:
        end_offset = self._rules.newest.end_offset
        header, marks = records.header, bytearray(sound(self, records))
        _, deltas, tombstones = read_keys(records.data, header)
        for index, delta in enumerate(deltas):
            if header.base_offset + delta >= end_offset:
                continue
            if index in tombstones:
                marks[index] = DROP
            elif header.next_offset < end_offset // 2:
                marks[index] = KEEP
        return bytes(marks)

    patch.setattr(BatchCleaner, "_marks", marks_of)


def forget_that_gaps_are_lawful(patch: Patch) -> None:
    patch.setattr(LogState, "allow_gaps", lambda self: None)


FAULTS = (
    PlantedFault(
        name="drop-a-newest-value",
        what="compaction drops a record that is not superseded",
        plant=drop_a_newest_value,
        kinds=(Kind.CRASH,),
        seeds=4,
        compacts=True,
        settings={"log.cleaner.backoff.ms": "200"},
    ),
    PlantedFault(
        name="drop-tombstones-too-early",
        what="compaction drops a tombstone and leaves an older value",
        plant=drop_tombstones_before_what_they_delete,
        kinds=(Kind.CRASH,),
        seeds=12,
        compacts=True,
        settings={"log.cleaner.backoff.ms": "200"},
    ),
    PlantedFault(
        name="forget-lawful-gaps",
        what="a log does not know that compaction came through it",
        plant=forget_that_gaps_are_lawful,
        kinds=(Kind.CRASH,),
        seeds=4,
        compacts=True,
    ),
)
