"""Files and folders of one machine in memory, and their state after a power failure.

Content: bytes up to a file's last sync survive. For later bytes chance decides: all lost, all kept, or torn,
perhaps with a sector inside that was never written. A file rewritten in place since its last sync has its old
or its new content.

Names: those at a folder's last sync survive, and of the changes since then a prefix, as on a journaling file
system.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SECTOR_BYTES = 512


class FileNode:
    """A file's content as processes see it, and the data needed to restore the last synced content.

    Invariant: applying ``undo`` from its end, and truncating to ``durable_size``, gives the durable content.
    """

    __slots__ = ("data", "durable_size", "links", "modified_ms", "private", "rewrites", "undo")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable_size = len(data)
        self.rewrites = 0
        """How often it was changed other than by an append."""
        self.undo: list[tuple[int, bytes]] = []
        self.links = 0
        self.modified_ms = 0
        self.private = False

    def append(self, data: bytes) -> None:
        self.data += data

    def write(self, position: int, data: bytes) -> None:
        self.rewrites += 1
        if position > len(self.data):
            self.data += bytes(position - len(self.data))
        old = bytes(self.data[position : min(position + len(data), self.durable_size)])
        if old:
            self.undo.append((position, old))
        self.data[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        self.rewrites += 1
        if size < len(self.data):
            lost = bytes(self.data[size : self.durable_size])
            if lost:
                self.undo.append((size, lost))
            del self.data[size:]
        else:
            self.data += bytes(size - len(self.data))

    @property
    def content_mark(self) -> tuple[int, int]:
        """A mark of the current content, for :meth:`sync`."""
        return len(self.data), self.rewrites

    def sync(self, begun: tuple[int, int] | None = None) -> None:
        """Make the content durable that there was at the mark ``begun`` (default: now), or more.

        Bytes appended since then are not made durable; if the file was rewritten meanwhile, all of it is.
        """
        size, rewrites = begun or self.content_mark
        if rewrites != self.rewrites:
            size = len(self.data)
        elif not self.undo:
            size = max(size, self.durable_size)  # a sync that started later was finished first
        self.durable_size = size
        self.undo.clear()

    def durable(self) -> bytes:
        data = bytearray(self.data)
        for position, old in reversed(self.undo):
            data[position : position + len(old)] = old
        return bytes(data[: self.durable_size])

    def flip_bit(self, position: int, bit: int = 0) -> None:
        """Flip one bit, as a disk that damages data silently: reads return the damaged byte without an error.

        ``position`` is the byte's offset in the file, ``bit`` the bit in it (0 to 7; 0 is the lowest). In the
        synced part of the file the damage survives a power failure.
        """
        self.data[position] ^= 1 << bit

    def after_power_loss(self, chance: random.Random) -> FileNode:
        node = FileNode(self._survivor(chance))
        node.modified_ms = self.modified_ms
        node.private = self.private
        return node

    def _survivor(self, chance: random.Random) -> bytes:
        if self.undo:
            return chance.choice((self.durable(), bytes(self.data)))
        durable, size = self.durable_size, len(self.data)
        if size == durable:
            return bytes(self.data)
        kept = chance.choice((durable, size, chance.randint(durable, size)))
        survivor = bytearray(self.data[:kept])
        if kept > durable and chance.random() < 0.3:  # a sector of the unsynced part was never written
            start = chance.randrange(durable, kept)
            end = min(start - start % SECTOR_BYTES + SECTOR_BYTES, kept)
            survivor[start:end] = bytes(end - start)
        return bytes(survivor)


@dataclass(slots=True)
class Move:
    """A rename between two folders: it survives in both or in neither. ``survives`` None: not decided."""

    survives: bool | None = None


class FolderNode:
    """A folder's names as processes see them, and the changes since the last sync, in order.

    One change may affect two names (a rename within the folder): it survives as a whole or not at all.
    """

    __slots__ = ("_synced", "_undo", "entries", "private")

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | FolderNode] = {}
        self.private = False
        self._undo: list[tuple[dict[str, FileNode | FolderNode | None], Move | None]] = []
        self._synced = 0

    @property
    def changes(self) -> int:
        """The number of changes so far, a mark for :meth:`sync`."""
        return self._synced + len(self._undo)

    def change(self, changes: dict[str, FileNode | FolderNode | None], move: Move | None = None) -> None:
        self._undo.append(({name: self.entries.get(name) for name in changes}, move))
        _apply(self.entries, changes)

    def sync(self, begun: int | None = None) -> None:
        """Make the changes durable that there were at the mark ``begun`` (default: now)."""
        count = max(0, (self.changes if begun is None else begun) - self._synced)
        for _, move in self._undo[:count]:
            if move is not None:
                move.survives = True
        del self._undo[:count]
        self._synced += count

    def durable(self, name: str) -> FileNode | FolderNode | None:
        """Return what has ``name`` if none of the changes since the last sync survives."""
        first = next((old for old, _ in self._undo if name in old), None)
        return self.entries.get(name) if first is None else first[name]

    def _kept_changes(self, chance: random.Random) -> int:
        """Choose how many of the unsynced changes survive; a move survives in both its folders or in none."""
        fates = [move.survives if move is not None else None for _, move in self._undo]
        least = max((i + 1 for i, fate in enumerate(fates) if fate is True), default=0)
        most = next((i for i, fate in enumerate(fates) if fate is False), len(fates))
        kept = chance.randint(least, max(least, most))
        for i, (_, move) in enumerate(self._undo):
            if move is not None:
                move.survives = i < kept
        return kept

    def after_power_loss(
        self, chance: random.Random, seen: dict[int, FileNode | FolderNode] | None = None
    ) -> FolderNode:
        """Return this folder's state after a power failure; a file with two names stays one file.

        ``seen``: the surviving nodes by the id of the original.
        """
        seen = {} if seen is None else seen
        names = dict(self.entries)
        for old, _ in reversed(self._undo[self._kept_changes(chance) :]):
            _apply(names, old)
        folder = FolderNode()
        folder.private = self.private
        for name in sorted(names):
            node = names[name]
            found = seen.get(id(node))
            if found is None:
                found = (
                    node.after_power_loss(chance)
                    if isinstance(node, FileNode)
                    else node.after_power_loss(chance, seen)
                )
                seen[id(node)] = found
            if isinstance(found, FileNode):
                found.links += 1
            folder.entries[name] = found
        return folder

    def files(self) -> list[FileNode]:
        """Return all files in this folder and its subfolders, once per name."""
        found: list[FileNode] = []
        for name in sorted(self.entries):
            node = self.entries[name]
            found += [node] if isinstance(node, FileNode) else node.files()
        return found


def _apply(names: dict[str, FileNode | FolderNode], changes: dict[str, FileNode | FolderNode | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
