"""A runtime whose every call passes one door: :class:`Door`. While recording the door does what is asked and
notes what came of it; in replay it answers from the tape.
"""

from __future__ import annotations

import abc
import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from typing_extensions import Buffer

from nilometer.recorder.known_files import KnownFile, KnownFiles
from nilometer.runtime import Disk, DiskLock, DiskWatch, Entropy, File, Loggers
from nilometer.runtime.object_store import ObjectStore

T = TypeVar("T")


class _Absent:
    def __getattr__(self, name: str) -> Any:
        return self._called

    def _called(self, *_: object) -> Any:
        raise AssertionError("replay has no real runtime")


ABSENT: Any = _Absent()
"""In replay in the place of what is real: the door calls none of it."""


class Door(abc.ABC):
    """Where all calls pass. ``work`` is what the real runtime does; in replay it is not called."""

    files: KnownFiles
    offloaded: int
    """How many offloaded jobs have not ended."""

    @abc.abstractmethod
    def ask(self, name: str, args: Sequence[object], work: Callable[[], T]) -> T:
        """A rare call. Arguments and result are values of MessagePack. Raises what ``work`` raises."""

    @abc.abstractmethod
    async def wait(self, name: str, args: Sequence[object], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """A call that takes time, in the same way."""

    @abc.abstractmethod
    async def pull_parts(
        self, name: str, parts: AsyncIterator[bytes], work: Callable[[AsyncIterator[bytes]], Any]
    ) -> None:
        """A call that takes time, to which the broker gives parts one by one."""

    @abc.abstractmethod
    async def offload(self, disk: Disk, work: Callable[[], T]) -> T: ...

    @abc.abstractmethod
    def open_file(self, path: str, work: Callable[[], File]) -> tuple[File, KnownFile]: ...

    @abc.abstractmethod
    def append(
        self, known: KnownFile, buffers: Sequence[Buffer], work: Callable[[Sequence[Buffer]], int]
    ) -> int: ...

    @abc.abstractmethod
    def read(
        self, known: KnownFile, position: int, length: int, work: Callable[[], bytes | None]
    ) -> bytes | None: ...

    @abc.abstractmethod
    def size(self, work: Callable[[], int]) -> int: ...

    def with_secret(self, name: str, work: Callable[[], T]) -> T:
        """What is made of a secret is recorded, so that replay needs none."""
        return self.ask(name, (), work)


class Pulls:
    """The parts of an upload, for which the broker is asked one by one."""

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts
        self._pulling: asyncio.Task[None] | None = None

    def begin(self, part: asyncio.Future[bytes | None]) -> None:
        """Ask for the next one; ``part`` is told it, or None at the end."""
        self._pulling = asyncio.get_running_loop().create_task(self._pull(part))

    async def end(self) -> None:
        """End what was begun: the upload is over, however it ended."""
        if self._pulling is not None and not self._pulling.done():
            self._pulling.cancel()
            await asyncio.wait((self._pulling,))

    async def _pull(self, part: asyncio.Future[bytes | None]) -> None:
        try:
            data = await anext(self._parts, None)
        except Exception as error:
            if not part.done():
                part.set_exception(error)
        else:
            if not part.done():
                part.set_result(data)


class SeamFile:
    """A file."""

    def __init__(self, door: Door, path: str, file: File, known: KnownFile) -> None:
        self._door = door
        self._path = path
        self._file = file
        self._known = known
        self._append = file.append

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._door.size(self._file.size)

    def read_at(self, position: int, length: int) -> bytes:
        data = self._door.read(self._known, position, length, lambda: self._file.read_at(position, length))
        assert data is not None
        return data

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        return self._door.read(
            self._known, position, length, lambda: self._file.read_at_if_cached(position, length)
        )

    def append(self, buffers: Sequence[Buffer]) -> int:
        return self._door.append(self._known, buffers, self._append)

    def write_at(self, position: int, data: Buffer) -> None:
        length = memoryview(data).nbytes
        try:
            self._door.ask(
                "write_at", (self._path, position, length), lambda: self._file.write_at(position, data)
            )
        except OSError:
            self._known.forget()
            raise
        self._known.write_at(position, data)

    def truncate(self, size: int) -> None:
        try:
            self._door.ask("truncate", (self._path, size), lambda: self._file.truncate(size))
        except OSError:
            self._known.forget()
            raise
        self._known.truncate(size)

    def sync(self) -> None:
        self._door.ask("sync", (self._path,), self._file.sync)

    def close(self) -> None:
        self._door.ask("close", (self._path,), self._file.close)


class SeamLock:
    def __init__(self, door: Door, path: str, lock: DiskLock) -> None:
        self._door = door
        self._path = path
        self._lock = lock

    def release(self) -> None:
        self._door.ask("release", (self._path,), self._lock.release)


class SeamWatch:
    def __init__(self, door: Door, watch: DiskWatch) -> None:
        self._door = door
        self._watch = watch

    async def wait(self, timeout_ms: int) -> None:
        await self._door.wait("watch", (timeout_ms,), lambda: self._watch.wait(timeout_ms))

    def wake(self) -> None:
        self._door.ask("wake", (), self._watch.wake)

    def close(self) -> None:
        self._door.ask("close watch", (), self._watch.close)


class SeamDisk:
    def __init__(self, door: Door, disk: Disk) -> None:
        self._door = door
        self._disk = disk
        self._files = door.files

    @property
    def offloaded(self) -> int:
        return self._door.offloaded

    def beside(self, disk: Disk) -> SeamDisk:
        """Return the same for another disk, with paths of its own."""
        return SeamDisk(self._door, disk)

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        file, known = self._door.open_file(
            path, lambda: self._disk.open(path, create=create, writable=writable, private=private)
        )
        return SeamFile(self._door, path, file, known)

    def exists(self, path: str) -> bool:
        return self._door.ask("exists", (path,), lambda: self._disk.exists(path))

    def is_directory(self, path: str) -> bool:
        return self._door.ask("is_directory", (path,), lambda: self._disk.is_directory(path))

    def file_size(self, path: str) -> int:
        return self._door.ask("file_size", (path,), lambda: self._disk.file_size(path))

    def modified_ms(self, path: str) -> int:
        return self._door.ask("modified_ms", (path,), lambda: self._disk.modified_ms(path))

    def list_directory(self, path: str) -> list[str]:
        return self._door.ask("list_directory", (path,), lambda: self._disk.list_directory(path))

    def make_directories(self, path: str, *, private: bool = False) -> None:
        self._door.ask(
            "make_directories", (path, private), lambda: self._disk.make_directories(path, private=private)
        )

    def is_private(self, path: str) -> bool:
        return self._door.ask("is_private", (path,), lambda: self._disk.is_private(path))

    def rename(self, source: str, target: str) -> None:
        self._door.ask("rename", (source, target), lambda: self._disk.rename(source, target))
        self._files.renamed(source, target)

    def link(self, source: str, target: str) -> None:
        self._door.ask("link", (source, target), lambda: self._disk.link(source, target))
        self._files.linked(source, target)

    def remove(self, path: str) -> None:
        self._door.ask("remove", (path,), lambda: self._disk.remove(path))
        self._files.removed(path)

    def remove_tree(self, path: str) -> None:
        try:
            self._door.ask("remove_tree", (path,), lambda: self._disk.remove_tree(path))
        finally:
            self._files.removed(path)

    def remove_empty_folder(self, path: str) -> None:
        self._door.ask("remove_empty_folder", (path,), lambda: self._disk.remove_empty_folder(path))

    def read_file(self, path: str) -> bytes:
        known = self._files.get(path)
        if known is not None and known.known_from == 0:
            data = self._door.read(known, 0, 2**31, lambda: self._disk.read_file(path))
            assert data is not None
            return data
        return self._door.ask("read_file", (path,), lambda: self._disk.read_file(path))

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        args = (path, len(data), sync)
        self._door.ask("replace_file", args, lambda: self._disk.replace_file(path, data, sync=sync))
        self._files.replaced(path, data)

    def sync_directory(self, path: str) -> None:
        self._door.ask("sync_directory", (path,), lambda: self._disk.sync_directory(path))

    def free_bytes(self, path: str) -> int:
        return self._door.ask("free_bytes", (path,), lambda: self._disk.free_bytes(path))

    def total_bytes(self, path: str) -> int:
        return self._door.ask("total_bytes", (path,), lambda: self._disk.total_bytes(path))

    def boot_id(self) -> str:
        return self._door.ask("boot_id", (), self._disk.boot_id)

    def lock(self, path: str) -> DiskLock:
        locks: list[DiskLock] = []
        self._door.ask("lock", (path,), lambda: locks.append(self._disk.lock(path)))
        return SeamLock(self._door, path, locks[0] if locks else ABSENT)

    def is_locked(self, path: str) -> bool:
        return self._door.ask("is_locked", (path,), lambda: self._disk.is_locked(path))

    def watch(self, folders: Sequence[str]) -> DiskWatch:
        watches: list[DiskWatch] = []
        self._door.ask("watch", list(folders), lambda: watches.append(self._disk.watch(folders)))
        return SeamWatch(self._door, watches[0] if watches else ABSENT)

    def file_system_type(self, path: str) -> str:
        return self._door.ask("file_system_type", (path,), lambda: self._disk.file_system_type(path))

    async def offload(self, work: Callable[[], T]) -> T:
        return await self._door.offload(self._disk, work)


class SeamEntropy:
    def __init__(self, door: Door, entropy: Entropy) -> None:
        self._door = door
        self._entropy = entropy

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._door.ask("uuid", (), lambda: self._entropy.uuid().bytes))

    def bytes(self, count: int) -> bytes:
        return self._door.ask("bytes", (count,), lambda: self._entropy.bytes(count))

    def below(self, bound: int) -> int:
        return self._door.ask("below", (bound,), lambda: self._entropy.below(bound))

    def uniform(self, low: float, high: float) -> float:
        return self._door.ask("uniform", (low, high), lambda: self._entropy.uniform(low, high))

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]


class SeamLoggers:
    def __init__(self, door: Door, loggers: Loggers) -> None:
        self._door = door
        self._loggers = loggers

    def levels(self) -> Mapping[str, int]:
        return self._door.ask("logger levels", (), self._loggers.levels)

    def set_level(self, name: str, level: int) -> None:
        self._door.ask("set logger level", (name, level), lambda: self._loggers.set_level(name, level))


class SeamObjectStore:
    def __init__(self, door: Door, store: ObjectStore) -> None:
        self._door = door
        self._store = store

    async def create(self, name: str, data: bytes) -> bool:
        return await self._door.wait("create", (name, len(data)), lambda: self._store.create(name, data))

    async def put(self, name: str, data: bytes) -> None:
        await self._door.wait("put", (name, len(data)), lambda: self._store.put(name, data))

    async def upload(self, name: str, parts: AsyncIterator[bytes]) -> None:
        await self._door.pull_parts(name, parts, lambda pulled: self._store.upload(name, pulled))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return await self._door.wait(
            "get", (name, start, length), lambda: self._store.get(name, start, length)
        )

    async def remove(self, name: str) -> None:
        await self._door.wait("remove object", (name,), lambda: self._store.remove(name))

    async def names(self, prefix: str) -> list[str]:
        return await self._door.wait("names", (prefix,), lambda: self._store.names(prefix))

    async def folders(self, folder: str) -> list[str]:
        return await self._door.wait("folders", (folder,), lambda: self._store.folders(folder))
