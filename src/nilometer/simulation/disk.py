"""A machine's disk, and the view that one process has of it.

The view is the seam's ``Disk``; behind it the machine keeps files, locks and watches. Death of a process
drops its locks and descriptors and nothing else. A power cut goes through :mod:`file_tree`.

What goes wrong is set on the machine's disk: a capacity, stalls, errors, flipped bits; ``strike``, which is
asked before every operation and may raise, or crash the process that asks; and ``aftermath``, which is asked
after names were changed or folders synced, and may raise although it was done.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import Buffer

from nilometer.runtime import Disk, DiskLock, DiskWatch, File, LockHeld
from nilometer.simulation.file_tree import FileNode, FolderNode, Move
from nilometer.simulation.loop import Owner, ProcessGone, VirtualLoop

T = TypeVar("T")

CHANGES = frozenset(
    {"create", "append", "write", "truncate", "sync", "mkdir", "rename", "link", "remove", "replace", "lock"}
)


class DiskUser(Owner, Protocol):
    """The process behind a view."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...


class HostDisk:
    """What the machine keeps, whoever lives or dies on it."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, note: Callable[[str, str], None]) -> None:
        self.loop = loop
        self.chance = chance
        self.note = note
        self.root = FolderNode()
        self.locks: dict[FileNode, DiskUser] = {}
        self.watches: list[VirtualWatch] = []
        self.capacity: int = 1 << 40
        self.used = 0
        self.boots = 1
        """How often the machine was started."""
        self.offload_ms: tuple[float, float] = (0.05, 1.0)
        """Bounds of what a piece of offloaded work takes."""
        self.signal_ms: tuple[float, float] = (0.5, 15.0)
        """Bounds of how long a watch takes to tell."""
        self.stalled_until = 0.0
        """Offloaded work ends no sooner: a disk that hangs."""
        self.cold = 0.0
        """How likely a byte read is not in the page cache."""
        self.strike: Callable[[DiskUser, str, str], None] = lambda process, verb, path: None
        self.aftermath: Callable[[DiskUser, str, str], None] = lambda process, verb, path: None

    # ---- what goes wrong

    def power_loss(self) -> None:
        """All processes must be dead. What was not synced is lost, kept or torn."""
        self.boots += 1
        self.root = self.root.after_power_loss(self.chance)
        self.used = sum(len(node.data) for node in {id(node): node for node in self.root.files()}.values())
        self.locks.clear()
        self.watches.clear()

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        self.file(path).flip_bit(position, bit)

    # ---- processes

    def forget(self, process: DiskUser) -> None:
        """The process died: the kernel closes its files and drops its locks."""
        self.watches = [watch for watch in self.watches if watch.process is not process]
        for node in [node for node, holder in self.locks.items() if holder is process]:
            self.unlock(node)

    def unlock(self, node: FileNode) -> None:
        if self.locks.pop(node, None) is not None:
            self.signal_all()

    def operation(self, process: DiskUser, verb: str, path: str, size: int = 0) -> None:
        """Before anything a process does here: it must be alive, and the disk willing."""
        if not process.alive:
            raise ProcessGone
        self.strike(process, verb, path)
        if not process.alive:
            raise ProcessGone
        if verb in CHANGES:
            if size and self.used + size > self.capacity:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            self.note(process.name, f"disk {verb} {path} {size}" if size else f"disk {verb} {path}")

    # ---- signals

    def signal(self, *paths: str) -> None:
        """Names at these paths changed: whoever watches their folders is told, a little later."""
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
        """A name of ``node`` is gone: with its last one, its bytes are free."""
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


class VirtualFile:
    def __init__(self, disk: HostDisk, process: DiskUser, path: str, node: FileNode, writable: bool) -> None:
        self._disk = disk
        self._process = process
        self._path = path
        self._node: FileNode | None = node
        self._writable = writable

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return len(self._checked("size").data)

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._checked("read").data[position : position + length])

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        node = self._checked("read")
        if self._disk.cold and self._disk.chance.random() < self._disk.cold:
            return None
        return bytes(node.data[position : position + length])

    def append(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        node = self._to_write("append", len(data), data)
        node.append(data)
        return len(data)

    def write_at(self, position: int, data: Buffer) -> None:
        content = bytes(data)
        grown = max(0, position + len(content) - len(self._checked("write").data))
        node = self._to_write("write", grown, b"")
        node.write(position, content)

    def truncate(self, size: int) -> None:
        grown = size - len(self._checked("truncate").data)
        node = self._to_write("truncate", max(0, grown), b"")
        node.truncate(size)
        self._disk.used += min(0, grown)

    def sync(self) -> None:
        self._checked("sync").sync()

    def close(self) -> None:
        self._node = None

    def _to_write(self, verb: str, size: int, partly: bytes) -> FileNode:
        if not self._writable:
            raise OSError(errno.EBADF, "Bad file descriptor", self._path)
        try:
            node = self._checked(verb, size)
        except OSError:
            if self._node is not None:  # how much of it arrived is not known
                part = partly[: self._disk.chance.randint(0, len(partly))]
                room = max(0, self._disk.capacity - self._disk.used)
                self._node.append(part[:room])
                self._disk.used += len(part[:room])
            raise
        self._disk.used += size
        node.modified_ms = int(self._disk.loop.time() * 1000)
        return node

    def _checked(self, verb: str, size: int = 0) -> FileNode:
        self._disk.operation(self._process, verb, self._path, size)
        if self._node is None:
            raise OSError(errno.EBADF, "Bad file descriptor", self._path)
        return self._node


class VirtualDisk:
    """One process's view of its machine's disk."""

    def __init__(self, disk: HostDisk, process: DiskUser, wall_offset_ms: int = 0) -> None:
        self._disk = disk
        self._process = process
        self._wall_offset_ms = wall_offset_ms

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        self._do("open", path)
        node = self._disk.find(path)
        if node is None and create:
            folder, name = self._disk.parent(path)
            self._do("create", path)
            node = self._new_file(folder, name, path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        if isinstance(node, FolderNode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return VirtualFile(self._disk, self._process, path, node, writable)

    def exists(self, path: str) -> bool:
        self._do("exists", path)
        return self._disk.find(path) is not None

    def is_directory(self, path: str) -> bool:
        self._do("exists", path)
        return isinstance(self._disk.find(path), FolderNode)

    def file_size(self, path: str) -> int:
        self._do("size", path)
        return len(self._disk.file(path).data)

    def modified_ms(self, path: str) -> int:
        self._do("size", path)
        return self._wall_offset_ms + self._disk.file(path).modified_ms

    def list_directory(self, path: str) -> list[str]:
        self._do("list", path)
        return sorted(self._disk.folder(path).entries)

    def make_directories(self, path: str) -> None:
        folder = self._disk.root
        for name in path.split("/"):
            if not name:
                continue
            node = folder.entries.get(name)
            if node is None:
                self._do("mkdir", path)
                node = FolderNode()
                folder.change({name: node})
            if isinstance(node, FileNode):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            folder = node
        self._disk.signal(path)

    def rename(self, source: str, target: str) -> None:
        self._do("rename", f"{source} {target}")
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
        self._do("link", f"{source} {target}")
        node = self._disk.file(source)
        folder, name = self._disk.parent(target)
        if name in folder.entries:
            raise FileExistsError(errno.EEXIST, "File exists", target)
        node.links += 1
        folder.change({name: node})
        self._disk.signal(target)
        self._disk.aftermath(self._process, "link", target)

    def remove(self, path: str) -> None:
        self._do("remove", path)
        node = self._disk.file(path)
        folder, name = self._disk.parent(path)
        folder.change({name: None})
        self._disk.unlinked(node)
        self._disk.signal(path)

    def remove_tree(self, path: str) -> None:
        self._do("remove", path)
        node = self._disk.folder(path)
        folder, name = self._disk.parent(path)
        folder.change({name: None})
        self._disk.unlinked(node)
        self._disk.signal(path)

    def read_file(self, path: str) -> bytes:
        self._do("read", path)
        return bytes(self._disk.file(path).data)

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        aside = f"{path}.tmp"
        file = self.open(aside, create=True)
        try:
            file.truncate(0)
            file.append([data])
            if sync:
                file.sync()
        finally:
            file.close()
        self.rename(aside, path)
        if sync:
            self.sync_directory(posixpath.dirname(path))

    def sync_directory(self, path: str) -> None:
        self._do("sync", path)
        self._disk.folder(path).sync()
        self._disk.aftermath(self._process, "sync", path)

    def free_bytes(self, path: str) -> int:
        return max(0, self._disk.capacity - self._disk.used)

    def total_bytes(self, path: str) -> int:
        return self._disk.capacity

    def boot_id(self) -> str:
        return f"boot-{self._disk.boots}"

    def lock(self, path: str) -> DiskLock:
        self._do("lock", path)
        file = self.open(path, create=True)
        file.close()
        node = self._disk.file(path)
        holder = self._disk.locks.get(node)
        if holder is not None:
            raise LockHeld(path, holder.pid)
        self._disk.locks[node] = self._process
        self._disk.signal(path)
        return VirtualLock(self._disk, node, self._process)

    def is_locked(self, path: str) -> bool:
        self._do("exists", path)
        node = self._disk.find(path)
        return isinstance(node, FileNode) and node in self._disk.locks

    def watch(self, folders: Sequence[str]) -> DiskWatch:
        watch = VirtualWatch(self._disk, self._process, folders)
        self._disk.watches.append(watch)
        return watch

    def file_system_type(self, path: str) -> str:
        return "virtual"

    async def offload(self, work: Callable[[], T]) -> T:
        loop = self._disk.loop
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            if loop.time() < self._disk.stalled_until:
                loop.in_process(self._disk.stalled_until - loop.time(), self._process, run)
                return
            try:
                outcome = work()
            except Exception as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(outcome)

        delay = self._disk.chance.uniform(*self._disk.offload_ms) / 1000
        loop.in_process(delay, self._process, run)
        return await done

    def _new_file(self, folder: FolderNode, name: str, path: str) -> FileNode:
        node = FileNode()
        node.links = 1
        node.modified_ms = int(self._disk.loop.time() * 1000)
        folder.change({name: node})
        self._disk.signal(path)
        return node

    def _do(self, verb: str, path: str) -> None:
        self._disk.operation(self._process, verb, path)


def _conforms(disk: VirtualDisk) -> Disk:
    """The type checker's word that the view is the seam's disk."""
    return disk
