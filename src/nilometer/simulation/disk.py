"""The disks of simulated machines: what survives a process and what a crash takes, and what one process sees
of it.

``HostDisk`` is the machine's disk, ``VirtualDisk`` the simulation's implementation of ``Disk`` for one
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from typing_extensions import Buffer

from nilometer.runtime import Disk, DiskLock, DiskWatch, File, LockHeld
from nilometer.simulation.loop import (
    ATOMIC,
    OffloadedJob,
    Owner,
    ProcessGone,
    VirtualLoop,
    maybe_leave,
    spend_fsync,
)

# A machine's disk: its files, which survive its processes, the watches on it, and the holders of its locks.
#
# The death of a process releases its locks and descriptors and nothing else. What a power failure leaves is
# decided by the tree of files.
#
# Faults are set here: a capacity, stalls, errors, flipped bits; ``strike``, which is called before every
# operation and may raise, or crash the calling process; and ``aftermath``, which is called after names were
# changed or folders synced, and may raise although the operation was executed.

# Files and folders of one machine in memory, and their state after a power failure.
#
# Content: bytes up to a file's last sync survive. For later bytes chance decides: all lost, all kept, or
# torn, perhaps with a sector inside that was never written. A file rewritten in place since its last sync has
# its old or its new content.
#
# Names: those at a folder's last sync survive, and of the changes since then a prefix, as on a journaling
# file system.

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

    def _surviving_names(self, chance: random.Random) -> dict[str, FileNode | FolderNode]:
        names = dict(self.entries)
        for old, _ in reversed(self._undo[self._kept_changes(chance) :]):
            _apply(names, old)
        return names

    def after_power_loss(
        self, chance: random.Random, seen: dict[int, FileNode | FolderNode] | None = None
    ) -> FolderNode:
        """Return this folder's state after a power failure; a file with two names stays one file.

        ``seen``: the surviving nodes by the id of the original.
        """
        seen = {} if seen is None else seen
        names = self._surviving_names(chance)
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


CHANGES = frozenset(
    {"create", "append", "write", "truncate", "sync", "mkdir", "rename", "link", "remove", "replace", "lock"}
)


class DiskUser(Owner, Protocol):
    """A simulated process, as the disk of its host sees it: injected disk errors are recorded in it."""

    @property
    def failed_places(self) -> set[str]:
        """The places where it got disk errors: the first two names of each path."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...


class PlayedError(OSError):
    """An injected disk error, for ``process`` at ``path``."""

    def __init__(self, process: DiskUser, number: int, text: str, path: str) -> None:
        super().__init__(number, text, path)
        self.process = process
        self.path = path


class HostDisk:
    """The files of a machine, which survive its processes."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, note: Callable[[str, str], None]) -> None:
        self.loop = loop
        self.chance = chance
        self.note = note
        self.root = FolderNode()
        self.locks: dict[FileNode, DiskUser] = {}
        self.watches: list[VirtualWatch] = []
        self.open_files: dict[DiskUser, int] = {}
        """How many files each process has open."""
        self.capacity: int = 1 << 40
        self.used = 0
        self.boots = 1
        """How often the machine was started."""
        self.temporary_names = 0
        """How many temporary names were used: each is unique."""
        self.offload_ms: tuple[float, float] = (0.05, 1.0)
        """Bounds of the delay before offloaded work starts."""
        self.signal_ms: tuple[float, float] = (0.5, 15.0)
        """Bounds of the delay of a watch."""
        self.pace = ATOMIC
        self.stalled_until = 0.0
        """The disk hangs until this time: offloaded work waits."""
        self.cold = 0.0
        """The probability that a read is not in the page cache."""
        self.on_error: Callable[[PlayedError], None] = lambda error: None
        """Called with each error that the disk is about to raise."""
        self.strike: Callable[[DiskUser, str, str], None] = lambda process, verb, path: None
        self.aftermath: Callable[[DiskUser, str, str], None] = lambda process, verb, path: None
        self.on_append: Callable[[str, bytes], None] = lambda path, data: None
        """Called with (path, data) after each append that was executed."""
        self.between_calls: list[Callable[[DiskUser, str, str], None]] = []
        """Called with (process, verb, path) before each disk call of an offloaded job, and may suspend it."""

    # ---- faults

    def failed(self, process: DiskUser, number: int, text: str, path: str) -> PlayedError:
        """Record and return an error for ``process`` at ``path``, which the caller raises."""
        process.failed_places.add("/".join(path.split("/")[:3]))
        error = PlayedError(process, number, text, path)
        self.on_error(error)
        return error

    def power_loss(self) -> None:
        """Lose, keep or tear all unsynced data. All processes must be dead."""
        self.boots += 1
        self.root = self.root.after_power_loss(self.chance)
        self.used = sum(len(node.data) for node in {id(node): node for node in self.root.files()}.values())
        self.locks.clear()
        self.watches.clear()

    def wipe(self, path: str) -> None:
        """Remove a folder for good, if it exists, which no process uses."""
        node = self.find(path)
        if isinstance(node, FolderNode):
            folder, name = self.parent(path)
            folder.change({name: None})
            folder.sync()
            self.used -= sum(len(each.data) for each in node.files())

    def lose_unsynced(self, path: str) -> None:
        """Lose, keep or tear the unsynced data of one folder, if it exists, which no process uses."""
        node = self.find(path)
        if isinstance(node, FolderNode):
            folder, name = self.parent(path)
            folder.entries[name] = lost = node.after_power_loss(self.chance)
            self.used += sum(len(each.data) for each in lost.files())
            self.used -= sum(len(each.data) for each in node.files())

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        self.file(path).flip_bit(position, bit)

    # ---- processes

    def forget(self, process: DiskUser) -> None:
        """Close the files and release the locks of a process that died, as the kernel does."""
        self.open_files.pop(process, None)
        self.watches = [watch for watch in self.watches if watch.process is not process]
        for node in [node for node, holder in self.locks.items() if holder is process]:
            self.unlock(node)

    def opened(self, process: DiskUser) -> None:
        self.open_files[process] = self.open_files.get(process, 0) + 1

    def closed(self, process: DiskUser) -> None:
        if process in self.open_files:
            self.open_files[process] -= 1

    def unlock(self, node: FileNode) -> None:
        if self.locks.pop(node, None) is not None:
            self.signal_all()

    def step(self, process: DiskUser, verb: str, path: str) -> None:
        """Start a call of a process; an offloaded job may be suspended here for a while.

        So results of earlier look-ups are not valid afterwards. Raises ProcessGone.
        """
        if not process.alive:
            raise ProcessGone
        if self.loop.job is not None:
            for call in list(self.between_calls):
                call(process, verb, path)
            maybe_leave(self.loop, process, self.pace, self.chance)

    def spend_fsync(self) -> None:
        """Let the time pass that an fsync takes."""
        spend_fsync(self.loop, self.pace, self.chance)

    def operation(self, process: DiskUser, verb: str, path: str, size: int = 0) -> None:
        """Check that an operation may be executed. Raises ProcessGone or an injected error.

        ``size``: how many bytes it adds.
        """
        if not process.alive:
            raise ProcessGone
        self.strike(process, verb, path)
        if not process.alive:
            raise ProcessGone
        if verb in CHANGES:
            if size and self.used + size > self.capacity:
                raise self.failed(process, errno.ENOSPC, "No space left on device", path)
            self.note(process.name, f"disk {verb} {path} {size}" if size else f"disk {verb} {path}")

    # ---- signals

    def signal(self, *paths: str) -> None:
        """Notify the watches of the folders of these paths, after a delay, that names changed."""
        touched = {posixpath.dirname(path) for path in paths} | set(paths)
        for watch in self.watches:
            if not touched.isdisjoint(watch.folders):
                self.tell(watch)

    def signal_all(self) -> None:
        for watch in self.watches:
            self.tell(watch)

    def tell(self, watch: VirtualWatch) -> None:
        if not watch.telling:
            watch.telling = True
            delay = self.chance.uniform(*self.signal_ms) / 1000
            self.loop.in_process(delay, watch.process, watch.ring)

    # ---- the tree

    def find(self, path: str) -> FileNode | FolderNode | None:
        node: FileNode | FolderNode | None = self.root
        for name in path.split("/"):
            if name:
                if not isinstance(node, FolderNode):
                    return None
                node = node.entries.get(name)
        return node

    def file(self, path: str) -> FileNode:
        node = self.find(path)
        if isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def folder(self, path: str) -> FolderNode:
        node = self.find(path)
        if isinstance(node, FileNode):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node

    def parent(self, path: str) -> tuple[FolderNode, str]:
        folder, name = posixpath.split(path)
        return self.folder(folder), name

    def unlinked(self, node: FileNode | FolderNode | None) -> None:
        """Record that a name of ``node`` was removed; with the last one, its space is free."""
        if isinstance(node, FileNode):
            node.links -= 1
            if node.links == 0:
                self.used -= len(node.data)
        elif node is not None:
            for file in node.files():
                self.unlinked(file)


class VirtualWatch:
    def __init__(self, disk: HostDisk, process: DiskUser, folders: Sequence[str]) -> None:
        self._disk = disk
        self.process = process
        self.folders = frozenset(folder.rstrip("/") for folder in folders)
        self.telling = False
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self.telling = False
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wake(self) -> None:
        self.ring()

    async def wait(self, timeout_ms: int) -> None:
        if not self._rung:
            self._waiter = self._disk.loop.create_future()
            timer = self._disk.loop.call_later(timeout_ms / 1000, self._on_timeout, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._rung = False

    @staticmethod
    def _on_timeout(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def close(self) -> None:
        if self in self._disk.watches:
            self._disk.watches.remove(self)


class VirtualLock:
    def __init__(self, disk: HostDisk, node: FileNode, process: DiskUser) -> None:
        self._disk = disk
        self._node = node
        self._process = process

    def release(self) -> None:
        if self._disk.locks.get(self._node) is self._process:
            self._disk.unlock(self._node)


# One process's view of its machine's disk: the simulation's implementation of ``Disk``.
#
# Every call first calls :meth:`HostDisk.operation`, which may raise an error.

# An open file: one process's descriptor on a file of its machine's disk.
#
# Invariant: a failed write may have been executed in part, as on a real disk; the writer cannot know.


class VirtualFile:
    def __init__(self, disk: HostDisk, process: DiskUser, path: str, node: FileNode, writable: bool) -> None:
        self._disk = disk
        self._process = process
        self._path = path
        self._node: FileNode | None = node
        self._writable = writable
        disk.opened(process)

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        self._step("size")
        return len(self._checked("size").data)

    def read_at(self, position: int, length: int) -> bytes:
        self._step("read")
        return self._read(self._checked("read"), position, length)

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        node = self._checked("read")
        if self._disk.cold and self._disk.chance.random() < self._disk.cold:
            return None
        return self._read(node, position, length)

    def _read(self, node: FileNode, position: int, length: int) -> bytes:
        if position < 0:  # as the system does; Python would count from the end
            raise OSError(errno.EINVAL, "Invalid argument", self.path)
        return bytes(node.data[position : position + length])

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        self._step("append")
        node = self._to_write("append", len(data), data)
        node.append(data)
        self._disk.on_append(self._path, data)
        return len(data)

    def write_at(self, position: int, data: Buffer) -> None:
        content = bytes(data)
        self._step("write")
        grown = max(0, position + len(content) - len(self._checked("write").data))
        node = self._to_write("write", grown, b"")
        node.write(position, content)

    def truncate(self, size: int) -> None:
        self._step("truncate")
        grown = size - len(self._checked("truncate").data)
        node = self._to_write("truncate", max(0, grown), b"")
        node.truncate(size)
        self._disk.used += min(0, grown)

    def sync(self) -> None:
        self._step("sync")
        node = self._checked("sync")
        begun = node.content_mark
        self._disk.spend_fsync()
        node.sync(begun)

    def close(self) -> None:
        if self._node is not None:
            self._disk.closed(self._process)
        self._node = None

    def _to_write(self, verb: str, size: int, partly: bytes) -> FileNode:
        if not self._writable:
            raise OSError(errno.EBADF, "Bad file descriptor", self._path)
        try:
            node = self._checked(verb, size)
        except OSError:
            if self._node is not None:  # a random part is written
                part = partly[: self._disk.chance.randint(0, len(partly))]
                room = max(0, self._disk.capacity - self._disk.used)
                self._node.append(part[:room])
                self._disk.used += len(part[:room])
            raise
        self._disk.used += size
        node.modified_ms = int(self._disk.loop.time() * 1000)
        return node

    def _step(self, verb: str) -> None:
        """Start a call: an offloaded job may be suspended before it, never within it."""
        self._disk.step(self._process, verb, self._path)

    def _checked(self, verb: str, size: int = 0) -> FileNode:
        self._disk.operation(self._process, verb, self._path, size)
        if self._node is None:
            raise OSError(errno.EBADF, "Bad file descriptor", self._path)
        return self._node


T = TypeVar("T")


class VirtualDisk:
    """One process's view of its machine's disk."""

    def __init__(self, disk: HostDisk, process: DiskUser, wall_offset_ms: int = 0) -> None:
        self._disk = disk
        self._process = process
        self._wall_offset_ms = wall_offset_ms
        self.offloaded = 0

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        self._begin("open", path)
        node = self._disk.find(path)
        if node is None and create:
            folder, name = self._disk.parent(path)
            self._do("create", path)
            node = self._new_file(folder, name, path)
            node.private = private
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return VirtualFile(self._disk, self._process, path, node, writable)

    def exists(self, path: str) -> bool:
        self._begin("exists", path)
        return self._disk.find(path) is not None

    def is_directory(self, path: str) -> bool:
        self._begin("exists", path)
        return isinstance(self._disk.find(path), FolderNode)

    def file_size(self, path: str) -> int:
        self._begin("size", path)
        return len(self._disk.file(path).data)

    def modified_ms(self, path: str) -> int:
        self._begin("size", path)
        return self._wall_offset_ms + self._disk.file(path).modified_ms

    def list_directory(self, path: str) -> list[str]:
        self._begin("list", path)
        return sorted(self._disk.folder(path).entries)

    def make_directories(self, path: str, *, private: bool = False) -> None:
        self._disk.step(self._process, "mkdir", path)
        folder = self._disk.root
        names = [name for name in path.split("/") if name]
        for depth, name in enumerate(names, start=1):
            node = folder.entries.get(name)
            if node is None:
                self._do("mkdir", path)
                node = FolderNode()
                node.private = private and depth == len(names)
                folder.change({name: node})
            if isinstance(node, FileNode):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            folder = node
        self._disk.signal(path)

    def is_private(self, path: str) -> bool:
        self._begin("size", path)
        node = self._disk.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return node.private

    def rename(self, source: str, target: str) -> None:
        self._begin("rename", f"{source} {target}")
        node = self._disk.find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", source)
        from_folder, from_name = self._disk.parent(source)
        to_folder, to_name = self._disk.parent(target)
        replaced = to_folder.entries.get(to_name)
        if replaced is node:
            return
        if isinstance(replaced, FolderNode) and (isinstance(node, FileNode) or replaced.entries):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", target)
        if from_folder is to_folder:
            from_folder.change({from_name: None, to_name: node})
        else:
            move = Move()
            to_folder.change({to_name: node}, move)
            from_folder.change({from_name: None}, move)
        self._disk.unlinked(replaced)
        self._disk.signal(source, target)
        self._disk.aftermath(self._process, "rename", target)

    def link(self, source: str, target: str) -> None:
        self._begin("link", f"{source} {target}")
        node = self._disk.file(source)
        folder, name = self._disk.parent(target)
        if name in folder.entries:
            raise FileExistsError(errno.EEXIST, "File exists", target)
        node.links += 1
        folder.change({name: node})
        self._disk.signal(target)
        self._disk.aftermath(self._process, "link", target)

    def remove(self, path: str) -> None:
        self._begin("remove", path)
        node = self._disk.file(path)
        folder, name = self._disk.parent(path)
        folder.change({name: None})
        self._disk.unlinked(node)
        self._disk.signal(path)

    def remove_tree(self, path: str) -> None:
        """Remove the names one by one, in random order, as rmtree does: an error leaves a part."""
        self._begin("list", path)
        entries = sorted(self._disk.folder(path).entries.items())
        self._disk.chance.shuffle(entries)
        for name, node in entries:
            remove = self.remove_tree if isinstance(node, FolderNode) else self.remove
            remove(f"{path}/{name}")
        self.remove_empty_folder(path)

    def remove_empty_folder(self, path: str) -> None:
        self._begin("remove", path)
        folder, name = self._disk.parent(path)
        if self._disk.folder(path).entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        folder.change({name: None})
        self._disk.signal(path)

    def read_file(self, path: str) -> bytes:
        self._begin("read", path)
        return bytes(self._disk.file(path).data)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._disk.temporary_names += 1
        temporary = f"{path}.{self._process.pid}-{self._disk.temporary_names}.tmp"
        try:
            file = self.open(temporary, create=True)
            try:
                file.append([data])
                if sync:
                    file.sync()
            finally:
                file.close()
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self.remove(temporary)
            raise
        if sync:
            self.sync_directory(posixpath.dirname(path))

    def sync_directory(self, path: str) -> None:
        self._begin("sync", path)
        folder = self._disk.folder(path)
        begun = folder.changes
        self._disk.spend_fsync()
        folder.sync(begun)
        self._disk.aftermath(self._process, "sync", path)

    def free_bytes(self, path: str) -> int:
        return max(0, self._disk.capacity - self._disk.used)

    def total_bytes(self, path: str) -> int:
        return self._disk.capacity

    def boot_id(self) -> str:
        return f"boot-{self._disk.boots}"

    def lock(self, path: str) -> DiskLock:
        self._begin("lock", path)
        node = self._disk.find(path)
        if node is None:
            node = self._new_file(*self._disk.parent(path), path)
        if isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        holder = self._disk.locks.get(node)
        if holder is not None:
            raise LockHeld(path, holder.pid)
        self._disk.locks[node] = self._process
        self._disk.signal(path)
        return VirtualLock(self._disk, node, self._process)

    def is_locked(self, path: str) -> bool:
        self._begin("exists", path)
        node = self._disk.find(path)
        return isinstance(node, FileNode) and node in self._disk.locks

    def watch(self, folders: Sequence[str]) -> DiskWatch:
        watch = VirtualWatch(self._disk, self._process, folders)
        self._disk.watches.append(watch)
        return watch

    def file_system_type(self, path: str) -> str:
        return "virtual"

    async def offload(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = self._disk.loop.create_future()
        job = OffloadedJob(self._disk.loop, self._disk, self._process, work, done)
        job.begin(self._disk.chance.uniform(*self._disk.offload_ms) / 1000)
        self.offloaded += 1
        try:
            return await done
        finally:
            self.offloaded -= 1

    def _new_file(self, folder: FolderNode, name: str, path: str) -> FileNode:
        node = FileNode()
        node.links = 1
        node.modified_ms = int(self._disk.loop.time() * 1000)
        folder.change({name: node})
        self._disk.signal(path)
        return node

    def _begin(self, verb: str, path: str) -> None:
        """Start a call: an offloaded job may be suspended before it, never within it."""
        self._disk.step(self._process, verb, path)
        self._do(verb, path)

    def _do(self, verb: str, path: str) -> None:
        self._disk.operation(self._process, verb, path)


def _conforms(disk: VirtualDisk) -> Disk:  # pyright: ignore[reportUnusedFunction]
    """Have the type checker verify that VirtualDisk implements Disk."""
    return disk
