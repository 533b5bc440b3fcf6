"""Which leader epoch wrote which part of the log: (epoch, start offset) entries, in order.

Followers and consumers use it to detect where their logs diverge (KIP-101, KIP-279, KIP-320). Epoch 0 is a
valid epoch (KAFKA-10432).

Invariants: epochs and start offsets increase strictly from entry to entry; a new entry that would break this
removes the entries that it contradicts. An epoch gets an entry when its leader starts, even if that leader
never writes (KAFKA-7415); so a later epoch at the same start offset replaces it.

Every change is written to ``leader-epoch-checkpoint`` at once but not synced: a flush that moves the
recovery point syncs this file first (see ``flushing``), so the entries of all records below the recovery
point are durable, and those above it are rebuilt from the records. The exception is an epoch that has no
record yet, which is written later: a restart drops such an epoch anyway, and a broker that becomes leader of
thousands of partitions at once need not write a file for each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.runtime import Disk
from nilometer.storage import checkpoints

_UNDEFINED = (NO_LEADER_EPOCH, UNKNOWN_OFFSET)


class LeaderEpochCache:
    __slots__ = ("_disk", "_entries", "_path", "is_unwritten")

    def __init__(self, disk: Disk, path: str, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._disk = disk
        self._path = path
        self._entries: list[tuple[LeaderEpoch, Offset]] = []
        self.is_unwritten = False
        """Whether the latest epoch is not in the file yet: it is written before the epoch's first record."""
        for epoch, start_offset in entries:
            self._assign(epoch, start_offset)

    @classmethod
    def load(cls, disk: Disk, path: str) -> LeaderEpochCache:
        """Read the checkpoint file at ``path``; empty if there is none. Raises CorruptCheckpoint."""
        return cls(disk, path, checkpoints.read_epochs(disk, path))

    @property
    def path(self) -> str:
        return self._path

    def moved_to(self, path: str) -> None:
        """Use ``path`` from now on, because the partition's folder was renamed."""
        self._path = path

    @property
    def entries(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The epoch of the last entry; -1 if there is none."""
        return self._entries[-1][0] if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Add ``epoch`` before its first record is appended; return whether the file was written.

        An entry that the cache has already changes nothing.
        """
        if not self._assign(epoch, start_offset) and not self.is_unwritten:
            return False
        self.write()
        return True

    def begin(self, epoch: int, start_offset: int) -> None:
        """Add ``epoch`` in memory only: it has no record yet."""
        self.is_unwritten |= self._assign(epoch, start_offset)

    def end_offset_for(self, epoch: int, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Return the largest epoch not above ``epoch`` and its end offset; (-1, -1) if unknown.

        For an epoch below the first entry: (``epoch``, first start offset), since its records are deleted and
        the client should continue there (KAFKA-7415). An epoch above the latest is unknown.
        """
        entries = self._entries
        if epoch == NO_LEADER_EPOCH or not entries:
            return _UNDEFINED
        if epoch == entries[-1][0]:
            return entries[-1][0], log_end_offset
        above = bisect_right(entries, epoch, key=_epoch)
        if above == len(entries):
            return _UNDEFINED
        end_offset = entries[above][1]
        return (entries[above - 1][0] if above else LeaderEpoch(epoch)), end_offset

    def epoch_for_offset(self, offset: Offset) -> LeaderEpoch:
        """Return the epoch that wrote ``offset``; -1 if it is not known."""
        slot = bisect_right(self._entries, offset, key=_start_offset) - 1
        return self._entries[slot][0] if slot >= 0 else NO_LEADER_EPOCH

    def between(self, start_offset: Offset, end_offset: Offset) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """Return the epochs of the offsets from ``start_offset`` on, below ``end_offset``, with the first of
        these offsets that each wrote."""
        first = max(bisect_right(self._entries, start_offset, key=_start_offset) - 1, 0)
        above = bisect_left(self._entries, end_offset, key=_start_offset)
        return tuple((epoch, max(start, start_offset)) for epoch, start in self._entries[first:above])

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove the epochs that start at ``end_offset`` or above, because the log was truncated there."""
        keep = bisect_left(self._entries, end_offset, key=_start_offset)
        if keep < len(self._entries):
            del self._entries[keep:]
            self.write()

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the epochs that end at or below ``start_offset``; the one that contains it starts there."""
        above = bisect_right(self._entries, start_offset, key=_start_offset)
        if above == 0 or (above == 1 and self._entries[0][1] == start_offset):
            return
        self._entries[:above] = [(self._entries[above - 1][0], start_offset)]
        self.write()

    def take_entries(self, other: LeaderEpochCache) -> bool:
        """Take the entries of ``other``, whose log has the same records; return whether the file was written.

        The other has the epochs, too, in which no record was written.
        """
        if self._entries == other._entries and not self.is_unwritten:
            return False
        self._entries = list(other._entries)
        self.write()
        return True

    def replace(self, entries: Iterable[tuple[int, int]]) -> None:
        """Use ``entries`` instead of what is known. Raises OSError."""
        self._entries.clear()
        for epoch, start_offset in entries:
            self._assign(epoch, start_offset)
        self.write()

    def clear(self) -> None:
        if self._entries:
            self._entries.clear()
            self.write()

    def write(self, *, sync: bool = False) -> None:
        self._disk.replace_file(self._path, checkpoints.encode_epochs(self._entries), sync=sync)
        self.is_unwritten = False

    def _assign(self, epoch: int, start_offset: int) -> bool:
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} cannot start at {start_offset}")
        entries = self._entries
        if entries and entries[-1][0] == epoch and start_offset >= entries[-1][1]:
            return False
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((LeaderEpoch(epoch), start_offset))
        return True


def _epoch(entry: tuple[LeaderEpoch, Offset]) -> int:
    return entry[0]


def _start_offset(entry: tuple[LeaderEpoch, Offset]) -> int:
    return entry[1]
