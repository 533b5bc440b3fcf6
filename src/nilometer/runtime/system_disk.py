"""The operating system's files: the implementation of :class:`~nilometer.runtime.disk.Disk`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

from typing_extensions import Buffer

from nilometer.runtime.disk import DiskLock, DiskWatch, File, LockHeld

T = TypeVar("T")

OFFLOAD_THREADS_MAX = 4
"""How many threads run blocking work; each one mostly waits in the kernel, without the interpreter's lock."""

_RWF_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_SYNC = getattr(os, "fdatasync", os.fsync)
_temporary_numbers = itertools.count(1)
"""Makes temporary names unique for two writers of one file on two threads."""


class SystemFile:
    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._is_at_end = False
        """Whether the descriptor's own position, which only :meth:`append` uses, is the end of the file."""

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (more := os.pread(self._descriptor, length - got, position + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        if _RWF_NOWAIT is None:
            return self.read_at(position, length)
        buffer = bytearray(length)
        try:
            got = os.preadv(self._descriptor, [buffer], position, _RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system without the flag
                return self.read_at(position, length)
            raise
        if got < length and position + got < self.size():
            return None  # only a part of the range is cached
        del buffer[got:]
        return buffer  # type: ignore[return-value]  # bytes-like, never changed again

    def append(self, buffers: Sequence[Buffer]) -> int:
        # O_APPEND is not used: Linux ignores the position of pwrite on such a descriptor.
        if not self._is_at_end:
            os.lseek(self._descriptor, 0, os.SEEK_END)
        self._is_at_end = False  # in case of an error
        expected = 0
        for buffer in buffers:
            expected += memoryview(buffer).nbytes
        written = os.writev(self._descriptor, buffers)
        if written < expected:  # the disk is almost full, or a signal interrupted the call
            rest = memoryview(b"".join(bytes(buffer) for buffer in buffers))[written:]
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        self._is_at_end = True
        return expected

    def write_at(self, position: int, data: Buffer) -> None:
        self._is_at_end = False
        view = memoryview(data).cast("B")
        while view:
            count = os.pwrite(self._descriptor, view, position)
            position += count
            view = view[count:]

    def truncate(self, size: int) -> None:
        self._is_at_end = False
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        _SYNC(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_LOCK_QUERY = "hhqqi4x"  # struct flock on 64-bit Linux: type, whence, start, length, pid; codespell:ignore


_locked_here: dict[tuple[int, int], int] = {}
"""Device and inode of every file that this process has locked, with its descriptor. Closing any descriptor of
such a file releases its lock."""


class SystemDiskLock:
    def __init__(self, descriptor: int, identity: tuple[int, int]) -> None:
        self._descriptor = descriptor
        self._identity = identity

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)  # releases the lock
            self._descriptor = -1
            _locked_here.pop(self._identity, None)


class SystemDisk:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(OFFLOAD_THREADS_MAX, thread_name_prefix="disk")
        self.offloaded = 0

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return SystemFile(path, os.open(path, flags, 0o600 if private else 0o644))

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False  # any other error does not show whether the path exists: it is raised
        return True

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str, *, private: bool = False) -> None:
        os.makedirs(path, 0o700 if private else 0o777, exist_ok=True)

    def is_private(self, path: str) -> bool:
        return not os.stat(path).st_mode & 0o077

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def remove_empty_folder(self, path: str) -> None:
        os.rmdir(path)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = f"{path}.{os.getpid()}-{next(_temporary_numbers)}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                os.unlink(temporary)
            raise
        if sync:
            self.sync_directory(os.path.dirname(path) or ".")

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).free

    def total_bytes(self, path: str) -> int:
        return shutil.disk_usage(path).total

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def lock(self, path: str) -> DiskLock:
        if _is_locked_here(path):
            raise LockHeld(path, os.getpid())
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _lock_holder(descriptor)
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise LockHeld(path, holder) from None
            raise
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        _locked_here[identity] = descriptor
        return SystemDiskLock(descriptor, identity)

    def is_locked(self, path: str) -> bool:
        if _locked_here and _is_locked_here(path):
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return _lock_holder(descriptor) is not None
        finally:
            os.close(descriptor)

    def watch(self, folders: Sequence[str]) -> DiskWatch:
        # Imported here: ctypes takes milliseconds, and few processes watch a folder.
        from nilometer.runtime.folder_watch import open_watch

        return open_watch(folders, map(self.file_system_type, folders))

    def file_system_type(self, path: str) -> str:
        return _file_system_type(os.path.realpath(path))

    async def offload(self, work: Callable[[], T]) -> T:
        errors = list[BaseException]()

        def noting() -> T | None:
            """Keep an error: the loop may end with the job, and asyncio would log it as never retrieved."""
            try:
                return work()
            except BaseException as error:
                errors.append(error)
                return None

        job = asyncio.get_running_loop().run_in_executor(self._threads, noting)
        self.offloaded += 1
        job.add_done_callback(self._on_offload_ended)
        # Shielded: cancelling the wait must not remove work from the queue that no thread has started yet.
        result = await asyncio.shield(job)
        if errors:
            raise errors.pop()
        return cast(T, result)

    def _on_offload_ended(self, _job: asyncio.Future[T | None]) -> None:
        self.offloaded -= 1


def _lock_holder(descriptor: int) -> int | None:
    """Return the id of the process that holds a write lock on the file; None if none does, or this one."""
    query = struct.pack(_LOCK_QUERY, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_LOCK_QUERY, fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    return None if kind == fcntl.F_UNLCK else pid


def _is_locked_here(path: str) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) in _locked_here


def _file_system_type(path: str) -> str:
    """Return the type of the mount that contains ``path``; "" if the system does not list mounts."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except FileNotFoundError:
        return ""
    found, found_type = "", ""
    for _, raw_point, kind, *_ in mounts:
        point = raw_point.replace("\\040", " ")
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and len(point) >= len(found):  # of two mounts at one point, the later one is visible
            found, found_type = point, kind
    return found_type
