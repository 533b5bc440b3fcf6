"""What a power cut may leave of a recorded folder: images of the disk, drawn at random.

The model is weaker than that of simulated machines (``nilometer.simulation.disk``), whose tree it extends:

- *Content*: of the writes and truncations of a file since its last fsync any subset survives, in any
  combination. Each surviving write may be torn at any byte or have sectors that were never written. Where
  data is lost and the size is not, there are zeros.
- *Names*, ``Names.IN_ORDER``: of the changes of a folder since its last fsync a prefix survives, as on file
  systems that journal them in order (ext4, XFS); prefixes of two folders are independent. This part is the
  simulation's. ``Names.ANY``: any subset survives, which POSIX allows, too.

An fsync of a file makes no name durable, and one of a folder no content. Bytes of other files never appear:
ext4 (``data=ordered``), XFS and btrfs do not expose old blocks. A recorded operation that failed is not in
the recording.
"""

from __future__ import annotations

import enum
import hashlib
import posixpath
import random
from collections.abc import Iterator
from pathlib import Path

from nilometer.simulation.disk import SECTOR_BYTES, FileNode, FolderNode, Move
from support.crash_images.recording import (
    Create,
    Link,
    MakeDirectory,
    Mark,
    Operation,
    Recording,
    Remove,
    Rename,
    Sync,
    SyncDirectory,
    Truncate,
    Write,
)


class Names(enum.Enum):
    """Which of the name changes that were not synced survive."""

    IN_ORDER = "in order"
    ANY = "any"


class WeakFile(FileNode):
    """A file, with each change since its last fsync."""

    __slots__ = ("_pending", "_synced")

    def __init__(self) -> None:
        super().__init__()
        self._synced = b""
        self._pending: list[tuple[int, Write | Truncate]] = []
        """With the number of the operation in the recording."""

    def change_at(self, number: int, change: Write | Truncate) -> None:
        self._pending.append((number, change))
        _apply(self.data, change)

    def sync_since(self, since: int) -> None:
        """Make the changes durable that came before the operation with the number ``since``."""
        content = bytearray(self._synced)
        for number, change in self._pending:
            if number < since:
                _apply(content, change)
        self._synced = bytes(content)
        self._pending = [each for each in self._pending if each[0] >= since]

    def _survivor(self, chance: random.Random) -> bytes:
        content = bytearray(self._synced)
        changes = [change for _, change in self._pending]
        match chance.randrange(4) if changes else 0:
            case 0:
                pass
            case 1:
                for change in changes:
                    _apply(content, change)
            case 2:  # a prefix, whose last write is torn
                kept = chance.randint(1, len(changes))
                for change in changes[: kept - 1]:
                    _apply(content, change)
                _apply_partly(content, changes[kept - 1], chance)
            case _:
                share = chance.choice((0.3, 0.5, 0.9))
                for change in changes:
                    if chance.random() < share:
                        _apply(content, change)
                    elif chance.random() < 0.7:
                        _apply_partly(content, change, chance)
        return bytes(content)


class WeakFolder(FolderNode):
    """A folder, with each change of a name since its last fsync."""

    __slots__ = ("_changes", "_names", "_numbers")

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names
        self._numbers: list[int] = []
        """For each change that was not synced: the number of its operation in the recording."""
        self._changes: list[dict[str, FileNode | FolderNode | None]] = []

    def change_at(
        self, number: int, changes: dict[str, FileNode | FolderNode | None], move: Move | None = None
    ) -> None:
        self._numbers.append(number)
        self._changes.append(changes)
        self.change(changes, move)

    def sync_since(self, since: int) -> None:
        count = sum(number < since for number in self._numbers)
        self.sync(self.changes - len(self._numbers) + count)
        del self._numbers[:count]
        del self._changes[:count]

    def _surviving_names(self, chance: random.Random) -> dict[str, FileNode | FolderNode]:
        if self._names is Names.IN_ORDER:
            return super()._surviving_names(chance)
        names = dict(self.entries)
        for old, _ in reversed(self._undo):
            _apply_names(names, old)
        share = chance.choice((0.2, 0.5, 0.9))
        for changes, (_, move) in zip(self._changes, self._undo, strict=True):
            survives = chance.random() < share if move is None or move.survives is None else move.survives
            if move is not None:
                move.survives = survives
            if survives:
                _apply_names(names, changes)
        return names


def _apply_names(
    names: dict[str, FileNode | FolderNode], changes: dict[str, FileNode | FolderNode | None]
) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _apply(content: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del content[change.size :]
        content += bytes(change.size - len(content))
        return
    content += bytes(max(0, change.position - len(content)))
    content[change.position : change.position + len(change.data)] = change.data


def _apply_partly(content: bytearray, change: Write | Truncate, chance: random.Random) -> None:
    """Apply a part of one change: a torn write, one that lacks sectors, or only the file's new size."""
    if isinstance(change, Truncate):
        if chance.random() < 0.5:
            _apply(content, change)
        return
    position, data = change.position, change.data
    end = position + len(data)
    match chance.randrange(4):
        case 0 | 1:  # the first bytes
            _apply(content, Write(change.file, position, data[: chance.randint(0, len(data))]))
        case 2:  # the size alone
            content += bytes(max(0, end - len(content)))
        case _:  # some sectors
            content += bytes(max(0, end - len(content)))
            start = position
            while start < end:
                stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
                if chance.random() < 0.5:
                    content[start:stop] = data[start - position : stop - position]
                start = stop


class Replay:
    """Executes a recording, and draws what a power cut at the present moment may leave.

    The syncs whose call or line is in ``dropped`` (``Recording.sync_sites``) are left out, as if the product
    did not make them.
    """

    def __init__(
        self, recording: Recording, names: Names = Names.IN_ORDER, dropped: frozenset[str] = frozenset()
    ) -> None:
        self._recording = recording
        self._names = names
        self._dropped = dropped
        self._root = WeakFolder(names)
        self._files: dict[int, WeakFile] = {}
        self._moves: list[Move] = []
        """Those that may not be durable yet."""
        self._position = 0
        self.marks: list[Mark] = []
        """The marks so far."""

    def run(self, end: int) -> None:
        """Execute the operations before the one with the number ``end``."""
        while self._position < end:
            self._execute(self._position, self._recording.operations[self._position])

    def draw(self, chance: random.Random) -> FolderNode:
        """Return the recorded folder after a power cut at this moment."""
        self._moves = [move for move in self._moves if move.survives is None]
        image = self._root.after_power_loss(chance)
        for move in self._moves:
            move.survives = None
        return image

    def all_written(self) -> dict[str, bytes | None]:
        """Return the content of each file by its path below the root, None for a folder."""
        return dict(content_of(self._root))

    def _execute(self, number: int, operation: Operation) -> None:
        self._position = number + 1
        match operation:
            case Create(path, file, private):
                node = self._files[file] = WeakFile()
                node.private = private
                self._change(number, path, node)
            case Write(file) | Truncate(file):
                self._files[file].change_at(number, operation)
            case Sync(file, since, site, line):
                if self._dropped.isdisjoint((site, line)):
                    self._files[file].sync_since(since)
            case MakeDirectory(path, private):
                folder = WeakFolder(self._names)
                folder.private = private
                self._change(number, path, folder)
            case Rename(source, target):
                self._rename(number, source, target)
            case Link(source, target):
                self._change(number, target, self._find(source))
            case Remove(path):
                self._change(number, path, None)
            case SyncDirectory(path, since, site, line):
                if self._dropped.isdisjoint((site, line)):
                    self._sync_folder(path, since, number)
            case Mark():
                self.marks.append(operation)

    def _sync_folder(self, path: str, since: int, number: int) -> None:
        """The folder may have been renamed or removed while it was synced."""
        for each in self._recording.operations[since:number]:
            if isinstance(each, Rename) and f"{path}/".startswith(f"{each.source}/"):
                path = each.target + path.removeprefix(each.source)
            elif isinstance(each, Remove) and each.path == path:
                return
        node = self._find(path)
        assert isinstance(node, WeakFolder)
        node.sync_since(since)

    def _change(self, number: int, path: str, node: FileNode | FolderNode | None) -> None:
        folder, name = self._parent(path)
        folder.change_at(number, {name: node})

    def _rename(self, number: int, source: str, target: str) -> None:
        node = self._find(source)
        (before, old), (after, new) = self._parent(source), self._parent(target)
        if before is after:
            before.change_at(number, {old: None, new: node})
            return
        move = Move()
        self._moves.append(move)
        after.change_at(number, {new: node}, move)
        before.change_at(number, {old: None}, move)

    def _parent(self, path: str) -> tuple[WeakFolder, str]:
        above, name = posixpath.split(path)
        folder = self._find(above)
        assert isinstance(folder, WeakFolder), path
        return folder, name

    def _find(self, path: str) -> FileNode | FolderNode:
        node: FileNode | FolderNode = self._root
        for name in posixpath.relpath(path, self._recording.root).split("/"):
            if name != ".":
                assert isinstance(node, FolderNode), path
                node = node.entries[name]
        return node


def content_of(folder: FolderNode, below: str = "") -> Iterator[tuple[str, bytes | None]]:
    """Yield the paths below a folder, sorted, with the content of files, None for folders."""
    for name in sorted(folder.entries):
        node = folder.entries[name]
        path = posixpath.join(below, name)
        if isinstance(node, FolderNode):
            yield path, None
            yield from content_of(node, path)
        else:
            yield path, bytes(node.data)


def folder_content(root: Path) -> dict[str, bytes | None]:
    """Return the content of a real folder in the form of :meth:`Replay.all_written`."""
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
    }


def write_to(image: FolderNode, root: Path) -> None:
    """Write an image to a real, empty folder."""
    for path, content in content_of(image):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def digest(image: FolderNode) -> bytes:
    """Return a hash by which images of equal content are known."""
    found = hashlib.blake2b(digest_size=16)
    for path, content in content_of(image):
        found.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        found.update(content or b"")
    return found.digest()


def mounted(image: FolderNode, path: str) -> FolderNode:
    """Return the root folder of a disk on which the image is at the absolute ``path``."""
    for name in reversed(path.strip("/").split("/")):
        above = FolderNode()
        above.entries[name] = image
        image = above
    return image
