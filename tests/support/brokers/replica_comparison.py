"""Compares the batches of a partition's replicas, read from their folders without the brokers.

All replicas must have the batches from the highest log start offset to the lowest high watermark. Batches are
equal if all their bytes are equal, including the leader epoch: followers do not change batches. Segments may
begin at different offsets on each replica.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nilometer.runtime import Runtime
from nilometer.storage.log_reader import FolderBatch, LogFolderReader


@dataclass(frozen=True, slots=True)
class Divergence:
    partition: str
    offset: int
    description: str

    def __str__(self) -> str:
        return f"{self.partition} at offset {self.offset}: {self.description}"


@dataclass(frozen=True, slots=True)
class _Outline:
    """One batch's next offset, leader epoch and digest of all its bytes."""

    next_offset: int
    epoch: int
    digest: str

    def __str__(self) -> str:
        return f"up to {self.next_offset} of epoch {self.epoch} ({self.digest})"


def compare_replicas(
    data_dirs: Mapping[int, Path], topic: str, partition: int, log_start_offset: int, high_watermark: int
) -> list[Divergence]:
    """Return gaps, and each replica's first difference from the one with the lowest broker id."""
    name = f"{topic}-{partition}"
    outlines = {
        broker_id: _outlines(data_dir / name, log_start_offset, high_watermark)
        for broker_id, data_dir in sorted(data_dirs.items())
    }
    found = [
        divergence
        for broker_id, outline in outlines.items()
        if (divergence := _gap(name, broker_id, outline, log_start_offset, high_watermark)) is not None
    ]
    reference_id, reference = next(iter(outlines.items()))
    for broker_id, outline in list(outlines.items())[1:]:
        for offset in sorted(reference.keys() | outline.keys()):
            here, there = reference.get(offset), outline.get(offset)
            if here != there:
                description = (
                    f"broker {reference_id} has {here or 'no batch'}, broker {broker_id} {there or 'none'}"
                )
                found.append(Divergence(name, offset, description))
                break
    return found


def _outlines(folder: Path, log_start_offset: int, high_watermark: int) -> dict[int, _Outline]:
    reader = LogFolderReader(Runtime.system().disk, str(folder))
    return {
        batch.header.base_offset: _outline(batch)
        for batch in reader.batches(log_start_offset, high_watermark)
    }


def _outline(batch: FolderBatch) -> _Outline:
    data = memoryview(batch.buffer)[batch.at : batch.at + batch.header.size]
    digest = hashlib.blake2b(data, digest_size=6).hexdigest()
    return _Outline(batch.header.next_offset, batch.header.partition_leader_epoch, digest)


def _gap(
    name: str, broker_id: int, outline: Mapping[int, _Outline], log_start_offset: int, high_watermark: int
) -> Divergence | None:
    """Return the first missing offset of a replica within the bounds, or None."""
    expected = log_start_offset
    for base_offset, batch in outline.items():
        if base_offset > expected:
            break
        expected = batch.next_offset
    if expected >= high_watermark:
        return None
    return Divergence(
        name, expected, f"broker {broker_id} lacks it, below the high watermark {high_watermark}"
    )
