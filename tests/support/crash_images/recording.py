"""A disk that records what a broker does to it: every write, name change and sync, in order.

``RecordingDisk`` is in front of another disk: the system's, or that of a machine of the simulation. Its
recording contains what that was asked to do, not the effect on the device: ``images`` derives from it what a
power cut at any moment may leave. Between the operations there are *marks*: what a client was promised.

Invariant: replayed completely, the recording gives the recorded folder, byte for byte
(``images.Replay.all_written``).
"""

from __future__ import annotations

import itertools
import os
import posixpath
import sys
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec
from typing_extensions import Buffer

import nilometer
from nilometer.runtime import Disk, DiskLock, File
from nilometer.runtime.system_disk import SystemDisk

_SOURCE = posixpath.dirname(nilometer.__file__)
_DISKS = (posixpath.join(_SOURCE, "runtime"), posixpath.join(_SOURCE, "simulation"))


class Create(msgspec.Struct, frozen=True, tag=True):
    """A file with the number ``file`` was created. Later operations name it by this number."""

    path: str
    file: int
    private: bool


class Write(msgspec.Struct, frozen=True, tag=True):
    file: int
    position: int
    data: bytes


class Truncate(msgspec.Struct, frozen=True, tag=True):
    file: int
    size: int


class Sync(msgspec.Struct, frozen=True, tag=True):
    """An fsync of a file has returned, which covers the operations before number ``since``."""

    file: int
    since: int
    site: str
    """Which functions of the product called it: ``flushing.py FlushPlan.run > sync``."""
    line: str = ""
    """The line of the call, and what it calls: ``flushing.py:52 sync``."""


class MakeDirectory(msgspec.Struct, frozen=True, tag=True):
    path: str
    private: bool


class Rename(msgspec.Struct, frozen=True, tag=True):
    source: str
    target: str


class Link(msgspec.Struct, frozen=True, tag=True):
    source: str
    target: str


class Remove(msgspec.Struct, frozen=True, tag=True):
    """A file, or an empty folder, lost its name."""

    path: str


class SyncDirectory(msgspec.Struct, frozen=True, tag=True):
    path: str
    since: int
    site: str
    line: str = ""


class Mark(msgspec.Struct, frozen=True, tag=True):
    """What was promised at this moment: ``kind`` and its values are the scenario's and its judge's."""

    kind: str
    values: tuple[str | int, ...]


Operation = Create | Write | Truncate | Sync | MakeDirectory | Rename | Link | Remove | SyncDirectory | Mark


class Recording(msgspec.Struct):
    """``root``: the recorded folder, an absolute path."""

    root: str
    operations: list[Operation]
    present: int = 0
    """So many operations, all of them synced, make what the folder had before."""

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.msgpack.encode(self))

    @classmethod
    def load(cls, path: Path) -> Recording:
        return msgspec.msgpack.decode(path.read_bytes(), type=cls)

    def sync_sites(self) -> list[str]:
        """Return the calls of ``sync`` and ``sync_directory`` that were made, sorted, once each."""
        return sorted({each.site for each in self.operations if isinstance(each, Sync | SyncDirectory)})


class Killed(BaseException):
    """The process that uses the disk has been killed: what it did so far stays."""


def _identity(path: str) -> Hashable:
    status = os.stat(path)
    return status.st_dev, status.st_ino


class RecordingDisk:
    """Records all operations below ``root``. Others are executed and not recorded."""

    def __init__(
        self,
        root: Path,
        marks: Iterable[Mark] = (),
        *,
        inner: Disk | None = None,
        identity: Callable[[str], Hashable] = _identity,
        before: RecordingDisk | None = None,
    ) -> None:
        """``marks`` were made before, and come first. ``inner``: by default the system's disk; ``identity``
        tells its files from each other, whatever names they have. ``before``: the disk of the process before
        this one, whose recording goes on."""
        disk = self._inner = SystemDisk() if inner is None else inner
        self.exists = disk.exists
        self.is_directory = disk.is_directory
        self.file_size = disk.file_size
        self.modified_ms = disk.modified_ms
        self.list_directory = disk.list_directory
        self.is_private = disk.is_private
        self.read_file = disk.read_file
        self.free_bytes = disk.free_bytes
        self.total_bytes = disk.total_bytes
        self.boot_id = disk.boot_id
        self.is_locked = disk.is_locked
        self.watch = disk.watch
        self.file_system_type = disk.file_system_type
        self.offload = disk.offload
        self._identity = identity
        self.recording = Recording(str(root), list(marks))
        self.operations_left: int | None = None
        """After so many operations the process is killed; None: never."""
        self._root = str(root)
        self._lock = threading.Lock()
        """Held during each operation but a sync, so that their order in the recording is the true one."""
        self._file_numbers: dict[Hashable, int] = {}
        """By identity. A number is not used again while a process may have the file open."""
        self._numbers = itertools.count(1)
        self._temporary_numbers = itertools.count(1)
        if before is None:
            self._note_present()
        else:
            self.recording = before.recording
            self._file_numbers = before._file_numbers
            self._numbers = before._numbers
            self._temporary_numbers = before._temporary_numbers

    @property
    def offloaded(self) -> int:
        return self._inner.offloaded

    def _note_present(self) -> None:
        paths = list(self._below(self._root))
        for path in paths:
            if self.is_directory(path):
                self._note(MakeDirectory(path, self.is_private(path)))
            else:
                self._note_created(path, self.is_private(path))
                self._note(Write(number := self._file_numbers[self._identity(path)], 0, self.read_file(path)))
                self._note(Sync(number, len(self.recording.operations), "before"))
        for path in (self._root, *paths) if paths else ():
            if self.is_directory(path):
                self._note(SyncDirectory(path, len(self.recording.operations), "before"))
        self.recording.present = len(self.recording.operations)

    def _below(self, folder: str) -> Iterator[str]:
        for name in sorted(self.list_directory(folder)):
            path = posixpath.join(folder, name)
            yield path
            if self.is_directory(path):
                yield from self._below(path)

    def mark(self, kind: str, *values: str | int) -> None:
        with self._lock:
            self.recording.operations.append(Mark(kind, values))

    # ---- the interface Disk, as far as it changes something

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        if not self._is_recorded(path):
            return self._inner.open(path, create=create, writable=writable, private=private)
        with self._lock:
            is_new = create and not self.exists(path)
            if is_new:
                self._begin()
            file = self._inner.open(path, create=create, writable=writable, private=private)
            if is_new:
                self._note_created(path, private)
            number = self._file_numbers[self._identity(path)]
        return _RecordedFile(file, self, number)  # type: ignore[return-value]

    def make_directories(self, path: str, *, private: bool = False) -> None:
        with self._lock:
            missing: list[str] = []
            above = posixpath.abspath(path)
            while not self.exists(above):
                missing.append(above)
                above = posixpath.dirname(above)
            if missing:
                self._begin()
            self._inner.make_directories(path, private=private)
            for each in reversed(missing):
                if self._is_recorded(each):
                    self._note(MakeDirectory(each, private and each == missing[0]))

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._begin()
            self._inner.rename(source, target)
            if self._is_recorded(source):
                self._note(Rename(source, target))

    def link(self, source: str, target: str) -> None:
        with self._lock:
            self._begin()
            self._inner.link(source, target)
            if self._is_recorded(source):
                self._note(Link(source, target))

    def remove(self, path: str) -> None:
        with self._lock:
            self._begin()
            self._inner.remove(path)
            if self._is_recorded(path):
                self._note(Remove(path))

    def remove_tree(self, path: str) -> None:
        if not self._is_recorded(path):
            self._inner.remove_tree(path)
            return
        for name in self.list_directory(path):
            below = posixpath.join(path, name)
            (self.remove_tree if self.is_directory(below) else self.remove)(below)
        self.remove_empty_folder(path)

    def remove_empty_folder(self, path: str) -> None:
        if not self._is_recorded(path):
            self._inner.remove_empty_folder(path)
            return
        with self._lock:
            self._begin()
            self._inner.remove_empty_folder(path)
            self._note(Remove(path))

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """The steps of ``SystemDisk.replace_file``, one by one: a test compares the system calls."""
        if not self._is_recorded(path):
            self._inner.replace_file(path, data, sync=sync)
            return
        temporary = f"{path}.1-{next(self._temporary_numbers)}.tmp"
        file = self.open(temporary, create=True)
        try:
            if data:
                file.append([data])
            if sync:
                file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        if sync:
            self.sync_directory(posixpath.dirname(path) or ".")

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._begin()
            since = len(self.recording.operations)
        self._inner.sync_directory(path)
        if self._is_recorded(path) or path == self._root:
            with self._lock:
                self._note(SyncDirectory(path, since, *_site("sync_directory")))

    def lock(self, path: str) -> DiskLock:
        with self._lock:
            is_new = not self.exists(path)
            held = self._inner.lock(path)
            if is_new and self._is_recorded(path):
                self._note_created(path, private=False)
        return held

    # ---- helpers

    def _is_recorded(self, path: str) -> bool:
        return path.startswith(self._root + "/")

    def _begin(self) -> None:
        if self.operations_left is not None:
            if not self.operations_left:
                raise Killed
            self.operations_left -= 1

    def _note(self, operation: Operation) -> None:
        self.recording.operations.append(operation)

    def _note_created(self, path: str, private: bool) -> None:
        number = next(self._numbers)
        self._file_numbers[self._identity(path)] = number
        self._note(Create(path, number, private))

    def change_file(self, file: File, number: int, change: Sequence[Buffer] | int, position: int) -> None:
        """Append buffers (``position`` -1), write them at ``position``, or truncate to a size."""
        with self._lock:
            self._begin()
            if isinstance(change, int):
                file.truncate(change)
                self._note(Truncate(number, change))
                return
            data = b"".join(bytes(buffer) for buffer in change)
            if position < 0:
                position = file.size()
                file.append(change)
            else:
                file.write_at(position, data)
            self._note(Write(number, position, data))

    def sync_file(self, file: File, number: int) -> None:
        with self._lock:
            self._begin()
            since = len(self.recording.operations)
        file.sync()
        with self._lock:
            self._note(Sync(number, since, *_site("sync")))


class _RecordedFile:
    def __init__(self, file: File, disk: RecordingDisk, number: int) -> None:
        self._file = file
        self._disk = disk
        self._number = number
        self.path = file.path
        self.size = file.size
        self.close = file.close
        self.read_at = file.read_at
        self.read_at_if_cached = file.read_at_if_cached

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._disk.change_file(self._file, self._number, buffers, -1)
        return sum(memoryview(buffer).nbytes for buffer in buffers)

    def write_at(self, position: int, data: Buffer) -> None:
        self._disk.change_file(self._file, self._number, [data], position)

    def truncate(self, size: int) -> None:
        self._disk.change_file(self._file, self._number, size, -1)

    def sync(self) -> None:
        self._disk.sync_file(self._file, self._number)


HELPERS = {"checkpoints.py"}
"""Modules whose functions are named together with their callers."""


def _site(verb: str) -> tuple[str, str]:
    """Return the product's functions that called, up to the first one that is not a helper, and the line of
    the call."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    names, line = [verb], ""
    while frame is not None:
        code = frame.f_code
        file = posixpath.basename(code.co_filename)
        if code.co_name == "replace_file" and file == "recording.py":
            names.append("replace_file")
        if code.co_filename.startswith(_SOURCE) and not code.co_filename.startswith(_DISKS):
            names.append(code.co_qualname)
            line = line or f"{file}:{frame.f_lineno} {verb}"
            if file not in HELPERS:
                return f"{file} {' > '.join(reversed(names))}", line
        frame = frame.f_back
    return f"(test) {verb}", line
