"""Writes a partition's folder without the storage engine: batches, indexes, checkpoints, in Kafka's formats.

Only the encoding of a batch is shared, so that readers of folders are tested with independent files.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from nilometer.wire.compression import Codec
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker

Row = tuple[int, bytes | None, bytes | None]
"""Timestamp, key, value."""


class FolderLog:
    """`log = FolderLog(tmp_path, "events", 0); log.append([(1, b"k", b"v")]); log.checkpoint()`"""

    def __init__(self, log_dir: Path, topic: str, partition: int = 0, *, start: int = 0) -> None:
        self.log_dir = log_dir
        self.name = f"{topic}-{partition}"
        self.folder = log_dir / self.name
        self.folder.mkdir(parents=True)
        self.next_offset = start
        self._topic, self._partition = topic, partition
        self._epochs: list[tuple[int, int]] = []
        self.roll()

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """The leader epochs, each with its first offset."""
        return self._epochs

    def roll(self) -> None:
        """End the segment with a time index entry for its largest timestamp, and begin another one."""
        if self.next_offset and hasattr(self, "base_offset"):
            self._time_entry()
        self.base_offset = self.next_offset
        self._newest = (-1, self.base_offset)
        self._last_time = -1
        for suffix in (".log", ".index", ".timeindex"):
            self.path(suffix).write_bytes(b"")

    def path(self, suffix: str, base_offset: int | None = None) -> Path:
        base = self.base_offset if base_offset is None else base_offset
        return self.folder / f"{base:020d}{suffix}"

    def append(
        self,
        rows: Sequence[Row],
        *,
        epoch: int = 0,
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
        transactional: bool = False,
        skip: int = 0,
    ) -> int:
        """Append a batch, after a gap of ``skip`` offsets; return its base offset."""
        builder = BatchBuilder(codec)
        for timestamp, key, value in rows:
            builder.append(timestamp, key, value, [])
        self.next_offset += skip
        idempotent = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": self.next_offset}
        batch = builder.build(
            self.next_offset,
            partition_leader_epoch=epoch,
            transactional=transactional,
            **(idempotent if producer_id >= 0 else {}),
        )
        return self._write(batch, len(rows), epoch, max(row[0] for row in rows))

    def end_transaction(self, producer_id: int, *, commit: bool, epoch: int = 0, timestamp: int = 1) -> int:
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = bytearray(
            build_end_txn_marker(EndTxnMarker(kind, 0, timestamp), producer_id=producer_id, producer_epoch=0)
        )
        struct.pack_into(">q", marker, 0, self.next_offset)
        struct.pack_into(">i", marker, 12, epoch)
        return self._write(bytes(marker), 1, epoch, timestamp)

    def index_aborted(self, producer_id: int, first: int, last: int, last_stable: int) -> None:
        with self.path(".txnindex").open("ab") as file:
            file.write(struct.pack(">hqqqq", 0, producer_id, first, last, last_stable))

    def checkpoint(self, high_watermark: int | None = None, log_start: int | None = None) -> None:
        """Write the log directory's checkpoints and the partition's leader epoch checkpoint."""
        end = self.next_offset if high_watermark is None else high_watermark
        self._checkpoint("replication-offset-checkpoint", end)
        self._checkpoint("recovery-point-offset-checkpoint", end)
        if log_start is not None:
            self._checkpoint("log-start-offset-checkpoint", log_start)
        lines = [f"{epoch} {offset}\n" for epoch, offset in self._epochs]
        (self.folder / "leader-epoch-checkpoint").write_text(f"0\n{len(lines)}\n{''.join(lines)}")

    def _checkpoint(self, name: str, offset: int) -> None:
        path = self.log_dir / name
        lines = path.read_text().splitlines()[2:] if path.exists() else []
        lines = [one for one in lines if not one.startswith(f"{self._topic} {self._partition} ")]
        lines.append(f"{self._topic} {self._partition} {offset}")
        path.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")

    def _write(self, batch: bytes, count: int, epoch: int, timestamp: int) -> int:
        base, position = self.next_offset, self.path(".log").stat().st_size
        self.next_offset += count
        if not self._epochs or self._epochs[-1][0] != epoch:
            self._epochs.append((epoch, base))
        with self.path(".log").open("ab") as file:
            file.write(batch)
        if timestamp > self._newest[0]:
            self._newest = (timestamp, self.next_offset - 1)
        if position:
            with self.path(".index").open("ab") as file:
                file.write(struct.pack(">ii", self.next_offset - 1 - self.base_offset, position))
            self._time_entry()
        return base

    def _time_entry(self) -> None:
        timestamp, offset = self._newest
        if timestamp > self._last_time:
            with self.path(".timeindex").open("ab") as file:
                file.write(struct.pack(">qi", timestamp, offset - self.base_offset))
            self._last_time = timestamp
