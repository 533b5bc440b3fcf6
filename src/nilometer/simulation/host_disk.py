"""A machine's disk: its files, which survive its processes, the watches on it, and the holders of its locks.

The death of a process releases its locks and descriptors and nothing else. Power failures are in
:mod:`file_tree`.

Faults are set here: a capacity, stalls, errors, flipped bits; ``strike``, which is called before every
operation and may raise, or crash the calling process; and ``aftermath``, which is called after names were
changed or folders synced, and may raise although the operation was executed.
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
