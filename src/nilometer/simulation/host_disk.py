"""A machine's disk: the files that outlive its processes, the watches on it, and the holders of its locks.

Death of a process drops its locks and descriptors and nothing else. Power cuts go through :mod:`file_tree`.

What goes wrong is set here: a capacity, stalls, errors, flipped bits; ``strike``, which is asked before every
operation and may raise, or crash the process that asks; and ``aftermath``, which is asked after names were
changed or folders synced, and may raise although it was done.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from nilometer.simulation.file_tree import FileNode, FolderNode
from nilometer.simulation.loop import Owner, ProcessGone, VirtualLoop
from nilometer.simulation.offloaded_job import ATOMIC, maybe_leave, spend_fsync

CHANGES = frozenset(
    {"create", "append", "write", "truncate", "sync", "mkdir", "rename", "link", "remove", "replace", "lock"}
)


class DiskUser(Owner, Protocol):
    """The process behind a view."""

    @property
    def failed_places(self) -> set[str]:
        """Where it met errors: the first two names of each path."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...


class PlayedError(OSError):
    """An error of a disk that the world raises, for ``process`` at ``path``."""

    def __init__(self, process: DiskUser, number: int, text: str, path: str) -> None:
        super().__init__(number, text, path)
        self.process = process
        self.path = path


class HostDisk:
    """The files of a machine, which outlive its processes."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, note: Callable[[str, str], None]) -> None:
        self.loop = loop
        self.chance = chance
        self.note = note
        self.root = FolderNode()
        self.locks: dict[FileNode, DiskUser] = {}
        self.watches: list[VirtualWatch] = []
        self.open_files: dict[DiskUser, int] = {}
        """How many descriptors each process holds."""
        self.capacity: int = 1 << 40
        self.used = 0
        self.boots = 1
        """How often the machine was started."""
        self.temporary_names = 0
        """How many were given out: two writers of one file never share one."""
        self.offload_ms: tuple[float, float] = (0.05, 1.0)
        """Bounds of what a piece of offloaded work takes."""
        self.signal_ms: tuple[float, float] = (0.5, 15.0)
        """Bounds of how long a watch takes to tell."""
        self.pace = ATOMIC
        self.stalled_until = 0.0
        """Offloaded work goes on no sooner: a disk that hangs."""
        self.cold = 0.0
        """How likely a byte read is not in the page cache."""
        self.on_error: Callable[[PlayedError], None] = lambda error: None
        """Called with each error that the disk is about to raise."""
        self.strike: Callable[[DiskUser, str, str], None] = lambda process, verb, path: None
        self.aftermath: Callable[[DiskUser, str, str], None] = lambda process, verb, path: None
        self.between_calls: list[Callable[[DiskUser, str, str], None]] = []
        """Called with (process, verb, path) before each disk call of offloaded jobs, which they may leave."""

    # ---- what goes wrong

    def failed(self, process: DiskUser, number: int, text: str, path: str) -> PlayedError:
        """An error for ``process`` at ``path``, to be raised."""
        process.failed_places.add("/".join(path.split("/")[:3]))
        error = PlayedError(process, number, text, path)
        self.on_error(error)
        return error

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
        """Before a call of a process, whatever it is made of: an offloaded job may be left here for a while.

        What was looked up before is not valid after it.
        """
        if not process.alive:
            raise ProcessGone
        if self.loop.job is not None:
            for call in list(self.between_calls):
                call(process, verb, path)
            maybe_leave(self.loop, process, self.pace, self.chance)

    def spend_fsync(self) -> None:
        """The time that an fsync takes: it began before, and ends behind this."""
        spend_fsync(self.loop, self.pace, self.chance)

    def operation(self, process: DiskUser, verb: str, path: str, size: int = 0) -> None:
        """Before anything a process does here: it must be alive, and the disk willing."""
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
        """Names at these paths changed: the watchers of their folders are notified, a little later."""
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
