"""The producers of one log: idempotence, open transactions, the last stable offset.

A fold over the batches of the log from its start to ``map_end_offset``; snapshots (``.snapshot``) are
shortcuts, taken when a segment is rolled and when the log is closed, and rebuilt from the log if bad
(KAFKA-9892). Producers are kept beyond the deletion of their records, until they expire (KAFKA-7190).

Invariant: ``ongoing`` holds exactly the transactions whose first offset some producer carries and
whose marker lies at or above ``map_end_offset``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.producers import producer_snapshot
from nilometer.storage.producers.producer_entry import NO_OFFSET, ProducerStateEntry
from nilometer.storage.producers.producer_updates import AppendOrigin, CompletedTxn, ProducerUpdates
from nilometer.storage.producers.transaction_marker import read_marker
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.wire.compression import Bytes
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
        """First offset of each open transaction, and its producer."""
        self._completed: dict[int, int] = {}
        """First and last offset of decided transactions whose marker may not be replicated yet."""
        self._snapshots: list[int] = []
        self.map_end_offset = 0

    # -- what readers and appenders ask

    def updates(self, origin: AppendOrigin) -> ProducerUpdates:
        """An empty collection of changes, to be filled by an append and passed to :meth:`apply`."""
        return ProducerUpdates(self.producers, origin)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Start of the earliest transaction that is undecided, or whose marker is not below the watermark."""
        unstable = [first for first, last in self._completed.items() if last >= high_watermark]
        if self.ongoing:
            unstable.append(min(self.ongoing))
        return min(unstable, default=None)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Forget decided transactions whose marker every reader may see."""
        if self._completed:
            self._completed = {
                first: last for first, last in self._completed.items() if last >= high_watermark
            }

    # -- the fold

    def apply(self, updates: ProducerUpdates) -> list[AbortedTxn]:
        """Apply the changes of an append; returns the entries for the segment's ``.txnindex``."""
        self.producers.update(updates.entries)
        for first_offset, producer_id in updates.started:
            self.ongoing[first_offset] = producer_id
        return [entry for completed in updates.completed for entry in self._complete(completed)]

    def replay(self, buffer: Bytes, position: int, header: BatchHeader) -> list[AbortedTxn]:
        """Fold in a batch that the log holds; returns what belongs into ``.txnindex``."""
        aborted: list[AbortedTxn] = []
        if header.has_producer_id:
            updates = self.updates(AppendOrigin.REPLICATION)
            if not header.is_control:
                updates.add_batch(header, header.base_offset, header.max_timestamp)
            elif (marker := read_marker(buffer, position, header)) is not None:
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
        """Forget producers that were idle too long and have no transaction open; returns how many."""
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
        """Learn which snapshots exist from the names in the partition's folder."""
        parsed = (names.parse_offset_name(name) for name in file_names)
        self._snapshots = sorted(found[0] for found in parsed if found and found[1] == names.SNAPSHOT_SUFFIX)

    def take_snapshot(self, *, sync: bool) -> None:
        """Write the state at ``map_end_offset``. May stall with ``sync``."""
        data = producer_snapshot.encode(entry.to_snapshot() for entry in self.producers.values())
        self._disk.replace_file(self.snapshot_path(self.map_end_offset), data, sync=sync)
        if self.map_end_offset not in self._snapshots:
            self._snapshots.append(self.map_end_offset)
            self._snapshots.sort()

    def load_latest(self, log_start_offset: int, end_offset: int, wall_ms: int) -> None:
        """Start from the newest good snapshot in ``[log_start_offset, end_offset]``; the rest are removed.

        One exactly at the log start still has producers whose records are deleted (KAFKA-7190).

        ``map_end_offset`` then says from where the log has to be replayed.
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
        """Forget everything; the log starts again at ``offset``."""
        for snapshot in self._snapshots[:]:
            self._remove_snapshot(snapshot)
        self._clear(offset)

    def remove_snapshots(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._remove_snapshot(offset)

    def remove_stray_snapshots(self, base_offsets: Iterable[int]) -> None:
        """Keep those at the start of a segment, and the last one if it lies above all of them."""
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
