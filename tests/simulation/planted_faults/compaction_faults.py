"""Faults of compaction: which record stays, up to where, and what gaps mean to others."""

from __future__ import annotations

from planted_faults.planting import Patch, PlantedFault

from nilometer.simulation.plan import Kind
from nilometer.storage.cleaning.batch_cleaner import BatchCleaner
from nilometer.storage.cleaning.record_spans import RecordSpan, record_spans
from nilometer.storage.local_log import LocalLog
from nilometer.wire.record_batch import BatchHeader


def drop_a_newest_value(patch: Patch) -> None:
    def staying(self: BatchCleaner, data: bytes, header: BatchHeader) -> list[RecordSpan]:
        newest = self._rules.newest
        return [
            span
            for span in record_spans(data, header)
            if (offset := header.base_offset + span[4]) >= newest.end_offset
            or offset > newest.offsets.get(span[5] or b"")
        ]

    patch.setattr(BatchCleaner, "_staying", staying)


def drop_tombstones_before_what_they_delete(patch: Patch) -> None:
    """Of the values that they delete, those in the part that is clean already stay."""
    sound = BatchCleaner._staying

    def staying(self: BatchCleaner, data: bytes, header: BatchHeader) -> list[RecordSpan]:
        end_offset = self._rules.newest.end_offset
        stays = dict.fromkeys(sound(self, data, header))
        return [
            span
            for span in record_spans(data, header)
            if header.base_offset + span[4] >= end_offset
            or (span[6] and (header.next_offset < end_offset // 2 or span in stays))
        ]

    patch.setattr(BatchCleaner, "_staying", staying)


def forget_that_gaps_are_lawful(patch: Patch) -> None:
    patch.setattr(LocalLog, "allow_gaps", lambda self: None)


FAULTS = (
    PlantedFault(
        name="drop-a-newest-value",
        what="compaction drops a record that is not superseded",
        plant=drop_a_newest_value,
        kinds=(Kind.CRASH,),
        seeds=4,
        compacts=True,
    ),
    PlantedFault(
        name="drop-tombstones-too-early",
        what="compaction drops a tombstone and leaves an older value",
        plant=drop_tombstones_before_what_they_delete,
        kinds=(Kind.CRASH,),
        seeds=4,
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
