"""One process's view of its machine's disk: the simulation's implementation of ``Disk``.

Every call first calls :meth:`HostDisk.operation`, which may raise an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import posixpath
from collections.abc import Callable, Sequence
from typing import TypeVar

from typing_extensions import Buffer

from nilometer.runtime import Disk, DiskLock, DiskWatch, File, LockHeld
from nilometer.simulation.host_disk import (
    DiskUser,
    FileNode,
    FolderNode,
    HostDisk,
    Move,
    VirtualLock,
    VirtualWatch,
)
from nilometer.simulation.offloaded_job import OffloadedJob

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
        return bytes(self._checked("read").data[position : position + length])

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        node = self._checked("read")
        if self._disk.cold and self._disk.chance.random() < self._disk.cold:
            return None
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
