"""A disk in memory that can lose power.

It guarantees only what ``Disk`` promises: bytes written before a file's last ``sync`` and names as of their
folder's last ``sync_directory`` survive :meth:`MemoryDisk.crash_machine`; of the rest, a seed decides what is
lost, kept or torn. Everything written survives :meth:`MemoryDisk.crash_process`. An error can be injected at
the n-th operation that changes something.

Of names changed since the last sync a *prefix* of the changes survives, as on a journaling file system.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from typing_extensions import Buffer

from nilometer.runtime.disk import DiskLock, DiskWatch, File, LockHeld
from nilometer.simulation.disk import FileNode, FolderNode

T = TypeVar("T")


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str, node: FileNode, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._node: FileNode | None = node
        self._writable = writable
        self._crashes_seen = disk.crashes

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self._open().data)

    def read_at(self, position: int, length: int) -> bytes:
        self._disk.reads += 1
        if position < 0:  # as the system does; Python would count from the end
            raise OSError(errno.EINVAL, "Invalid argument", self.path)
        return bytes(self._open().data[position : position + length])

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        return None if self._disk.is_cold else self.read_at(position, length)

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        node = self._writing("append", data)
        node.append(data)
        return len(data)

    def write_at(self, position: int, data: Buffer) -> None:
        node = self._writing("write", b"")
        node.write(position, bytes(data))

    def truncate(self, size: int) -> None:
        node = self._writing("truncate", b"")
        node.truncate(size)

    def sync(self) -> None:
        node = self._open()
        self._disk.operation("sync", self._path)
        node.sync()

    def close(self) -> None:
        if self._node is not None:
            self._disk.open_files -= 1
            self._node = None

    def _open(self) -> FileNode:
        assert self._crashes_seen == self._disk.crashes, f"{self._path} was opened before the crash"
        assert self._node is not None, f"{self._path} is closed"
        return self._node

    def _writing(self, verb: str, data: bytes) -> FileNode:
        node = self._open()
        assert self._writable, f"{self._path} is open for reading only"
        try:
            self._disk.operation(verb, self._path)
        except OSError:
            node.append(data[: self._disk.chance.randint(0, len(data))])  # a random part was written
            raise
        node.modified_ms = self._disk.now_ms
        return node


class MemoryLock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class NoWatch:
    """A watch that never reports anything, and whose time does not pass."""

    async def wait(self, timeout_ms: int) -> None:
        await asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryDisk:
    def __init__(self, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.root = FolderNode()
        self.now_ms = 0
        self.is_cold = False
        """Whether ``read_at_if_cached`` returns nothing."""
        self.crashes = 0
        self.boots = 1
        self.locks: set[str] = set()
        self.reads = 0
        self.open_files = 0
        self.open_files_peak = 0
        self.operations = 0
        """The number of operations that changed something, or tried to."""
        self.fails: Callable[[int, str, str], OSError | None] = lambda number, verb, path: None
        """Called before each of them with number, verb and path; returns the error to raise, or None."""

    # -- faults

    def fail_from(self, number: int, code: int = errno.EIO) -> None:
        """Have every changing operation from the ``number``-th on (counted from now) fail."""
        first = self.operations + number
        self.fails = lambda count, verb, path: OSError(code, verb, path) if count >= first else None

    def fail_once(self, number: int, code: int = errno.EIO) -> None:
        """Have only the ``number``-th changing operation from now on fail."""
        only = self.operations + number
        self.fails = lambda count, verb, path: OSError(code, verb, path) if count == only else None

    def work_again(self) -> None:
        self.fails = lambda number, verb, path: None

    def crash_process(self) -> None:
        """Drop open files and locks; all bytes and names stay."""
        self.crashes += 1
        self.open_files = 0
        self.locks.clear()

    def crash_machine(self, seed: int | None = None) -> None:
        """Lose, keep or tear everything that was not synced, as ``seed`` decides."""
        self.crash_process()
        self.boots += 1
        chance = self.chance if seed is None else random.Random(seed)
        self.root = self.root.after_power_loss(chance)

    def operation(self, verb: str, path: str) -> None:
        self.operations += 1
        error = self.fails(self.operations, verb, path)
        if error is not None:
            raise error

    # -- the interface Disk

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.operation("create", path)
            node = FileNode()
            node.modified_ms = self.now_ms
            node.private = private
            folder.change({name: node})
        if isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        self.open_files += 1
        self.open_files_peak = max(self.open_files_peak, self.open_files)
        return MemoryFile(self, path, node, writable)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), FolderNode)

    def file_size(self, path: str) -> int:
        return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._folder(path).entries)

    def make_directories(self, path: str, *, private: bool = False) -> None:
        folder = self.root
        names = _names(path)
        for depth, name in enumerate(names, start=1):
            node = folder.entries.get(name)
            if node is None:
                self.operation("mkdir", path)
                node = FolderNode()
                node.private = private and depth == len(names)
                folder.change({name: node})
            if isinstance(node, FileNode):
                raise FileExistsError(errno.EEXIST, "is a file", path)
            folder = node

    def is_private(self, path: str) -> bool:
        node = self._find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node.private

    def rename(self, source: str, target: str) -> None:
        node = self._find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", source)
        self.operation("rename", source)
        (source_folder, source_name), (target_folder, target_name) = (
            self._parent(source),
            self._parent(target),
        )
        if source_folder is target_folder:
            source_folder.change({source_name: None, target_name: node})
        else:
            target_folder.change({target_name: node})
            source_folder.change({source_name: None})

    def link(self, source: str, target: str) -> None:
        node = self._file(source)
        folder, name = self._parent(target)
        if name in folder.entries:
            raise FileExistsError(errno.EEXIST, "name is taken", target)
        self.operation("link", target)
        folder.change({name: node})

    def remove(self, path: str) -> None:
        self._file(path)
        self.operation("remove", path)
        folder, name = self._parent(path)
        folder.change({name: None})

    def remove_tree(self, path: str) -> None:
        self._folder(path)
        self.operation("remove", path)
        folder, name = self._parent(path)
        folder.change({name: None})

    def remove_empty_folder(self, path: str) -> None:
        if self._folder(path).entries:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self.remove_tree(path)

    def read_file(self, path: str) -> bytes:
        self.reads += 1
        return bytes(self._file(path).data)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self.operation("replace", path)
        folder, name = self._parent(path)
        node = FileNode()
        node.append(data)
        node.modified_ms = self.now_ms
        folder.change({name: node})
        if sync:
            node.sync()
            folder.sync()

    def sync_directory(self, path: str) -> None:
        folder = self._folder(path)
        self.operation("sync", path)
        folder.sync()

    def free_bytes(self, path: str) -> int:
        return 1 << 40

    def total_bytes(self, path: str) -> int:
        return 1 << 41

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def lock(self, path: str) -> DiskLock:
        if path in self.locks:
            raise LockHeld(path, None)
        self.open(path, create=True).close()
        self.locks.add(path)
        return MemoryLock(self, path)

    def is_locked(self, path: str) -> bool:
        return path in self.locks

    def watch(self, folders: Sequence[str]) -> DiskWatch:
        return NoWatch()

    def file_system_type(self, path: str) -> str:
        return "memory"

    async def offload(self, work: Callable[[], T]) -> T:
        return work()

    # -- helpers

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit of a file, durably and without an error."""
        self._file(path).flip_bit(position, bit)

    def _find(self, path: str) -> FileNode | FolderNode | None:
        node: FileNode | FolderNode | None = self.root
        for name in _names(path):
            if not isinstance(node, FolderNode):
                return None
            node = node.entries.get(name)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return node

    def _folder(self, path: str) -> FolderNode:
        node = self._find(path)
        if not isinstance(node, FolderNode):
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return node

    def _parent(self, path: str) -> tuple[FolderNode, str]:
        folder, name = posixpath.split(path)
        return self._folder(folder), name


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]
