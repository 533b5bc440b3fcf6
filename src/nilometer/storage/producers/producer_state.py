"""The producers of one log: idempotence, open transactions, the last stable offset.

The state results from all batches of the log up to ``map_end_offset``. Snapshots (``.snapshot``) avoid
replaying the whole log; they are written when a segment is rolled and when the log is closed, and rebuilt
from the log if damaged (KAFKA-9892). A producer is kept after the deletion of its records, until it expires
(KAFKA-7190).

Invariant: ``ongoing`` has exactly the transactions that are some producer's ``current_txn_first_offset``:
those without a marker below ``map_end_offset``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.producers import producer_snapshot
from nilometer.storage.producers.producer_entry import NO_OFFSET, ProducerStateEntry
from nilometer.storage.producers.producer_updates import AppendOrigin, CompletedTxn, ProducerUpdates
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes
from nilometer.wire.control_records import read_end_txn_marker
from nilometer.wire.record_batch import BatchHeader

PRODUCER_ID_EXPIRATION_MS = 86_400_000


class ProducerStateManager:
    __slots__ = (
        "_completed",
        "_disk",
        "_expiration_ms",
        "_folder",
        "_snapshots",
        "map_end_offset",
        "ongoing",
        "producers",
    )

    def __init__(self, disk: Disk, folder: str, expiration_ms: int = PRODUCER_ID_EXPIRATION_MS) -> None:
        self._disk = disk
        self._folder = folder
        self._expiration_ms = expiration_ms
        self.producers: dict[int, ProducerStateEntry] = {}
        self.ongoing: dict[int, int] = {}
        """First offset of each open transaction → its producer id."""
        self._completed: dict[int, int] = {}
        """First → last offset of completed transactions whose marker may not be replicated yet."""
        self._snapshots: list[int] = []
        self.map_end_offset = 0
        """The state includes all batches below this offset."""

    # -- queries

    def updates(self, origin: AppendOrigin) -> ProducerUpdates:
        """Return an empty collection of changes, which an append fills and passes to :meth:`apply`."""
        return ProducerUpdates(self.producers, origin)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the earliest transaction that is open, or whose marker is not below the
        high watermark; None if there is none."""
        if not self.ongoing and not self._completed:
            return None
        unstable = [first for first, last in self._completed.items() if last >= high_watermark]
        if self.ongoing:
            unstable.append(min(self.ongoing))
        return min(unstable, default=None)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is below the high watermark."""
        if self._completed:
            self._completed = {
                first: last for first, last in self._completed.items() if last >= high_watermark
            }

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
        others = [first for first, owner in self.ongoing.items() if owner != completed.producer_id]
        last_stable_offset = min(others, default=completed.last_offset + 1)
        self.ongoing.pop(completed.first_offset, None)
        self._completed[completed.first_offset] = completed.last_offset
        if completed.is_aborted:
            yield AbortedTxn(
                completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset
            )

    def remove_expired(self, wall_ms: int) -> int:
        """Forget producers that were idle too long and have no open transaction; return how many."""
        expired = [
            producer_id for producer_id, entry in self.producers.items() if self._is_expired(entry, wall_ms)
        ]
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    def _is_expired(self, entry: ProducerStateEntry, wall_ms: int) -> bool:
        return (
            entry.current_txn_first_offset == NO_OFFSET
            and wall_ms - entry.last_timestamp >= self._expiration_ms
        )

    # -- snapshots

    def snapshot_path(self, offset: int) -> str:
        return posixpath.join(self._folder, names.offset_name(offset, names.SNAPSHOT_SUFFIX))

    @property
    def snapshot_offsets(self) -> tuple[int, ...]:
        return tuple(self._snapshots)

    def moved_to(self, folder: str) -> None:
        self._folder = folder

    def find_snapshots(self, file_names: Iterable[str]) -> None:
        """Register the snapshots among ``file_names``, the files of the partition's folder."""
        parsed = (names.parse_offset_name(name) for name in file_names)
        self._snapshots = sorted(found[0] for found in parsed if found and found[1] == names.SNAPSHOT_SUFFIX)

    def take_snapshot(self, *, sync: bool) -> None:
        """Write the state at ``map_end_offset`` to a snapshot file. With ``sync`` it may block."""
        data = producer_snapshot.encode(entry.to_snapshot() for entry in self.producers.values())
        self._disk.replace_file(self.snapshot_path(self.map_end_offset), data, sync=sync)
        if self.map_end_offset not in self._snapshots:
            self._snapshots.append(self.map_end_offset)
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
                saved = producer_snapshot.decode(self._disk.read_file(self.snapshot_path(offset)))
            except (producer_snapshot.CorruptSnapshot, FileNotFoundError):
                self._remove_snapshot(offset)
                continue
            for entry in map(ProducerStateEntry.from_snapshot, saved):
                if not self._is_expired(entry, wall_ms):
                    self._take(entry)
            self.map_end_offset = offset
            return

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
        self.map_end_offset = offset
