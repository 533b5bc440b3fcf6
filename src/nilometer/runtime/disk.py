"""The file interface of the storage engine.

*Plain calls* are for operations that the page cache completes at once: appends, reads of cached data, renames
of small files. *Blocking work* (fsync, reads from the device, deletions, recovery) is passed to
:meth:`Disk.offload`, which runs it outside the event loop; in simulation it takes virtual time.

Invariants that every implementation keeps:

- the bytes of a file up to its last ``sync`` survive a crash of the machine; later bytes may be lost, or torn
  at any point;
- a name created, renamed or removed is durable after ``sync_directory`` of its folder, not before;
- all bytes written survive a crash of the process alone.

Every failure is an ``OSError`` with its ``errno`` (``ENOSPC``, ``EIO``, …). After a failed write the
length of the file is unknown: the caller stops writing to it (KAFKA-10778).
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import Buffer

T = TypeVar("T")


class LockHeld(Exception):
    """Another process holds the lock. ``holder_pid`` is its process id, None if unknown."""

    def __init__(self, path: str, holder_pid: int | None) -> None:
        super().__init__(f"{path} is locked by process {holder_pid if holder_pid else '(unknown)'}")
        self.path = path
        self.holder_pid = holder_pid


class DiskLock(Protocol):
    """An exclusive lock that the kernel releases when the owning process dies."""

    def release(self) -> None: ...


class DiskWatch(Protocol):
    """Signals that names or locks in some folders, not their subfolders, may have changed since last time."""

    async def wait(self, timeout_ms: int) -> None:
        """Wait until something may have changed, at most ``timeout_ms``.

        May return without a change; never misses a change made after the previous wait returned (or
        after the watch was created), but for a lock whose holder's child process has inherited its file.
        """
        ...

    def wake(self) -> None:
        """Have the wait that is under way, or the next one, return: the folders to watch are others now."""
        ...

    def close(self) -> None: ...


class File(Protocol):
    """An open file. Positions and lengths are in bytes."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Return ``length`` bytes from ``position``; fewer only at the end of the file."""
        ...

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        """Like :meth:`read_at`, but return ``None`` if the bytes are not in the page cache."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write ``buffers`` in order at the end of the file; return the number of bytes, always all."""
        ...

    def write_at(self, position: int, data: Buffer) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make all bytes durable. May block: call it inside :meth:`Disk.offload`."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are ``/``-separated, absolute or relative to the working directory."""

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        """Open ``path``, without truncating it. Raises FileNotFoundError unless ``create``.

        A file that is created ``private`` can from the start be read and written by its owner only.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """Return when ``path`` was last modified, in milliseconds since the Unix epoch."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def make_directories(self, path: str, *, private: bool = False) -> None:
        """Create a folder and its parents; no error if it exists.

        A folder that is created ``private`` can be accessed by its owner only; its parents are not private.
        """
        ...

    def is_private(self, path: str) -> bool:
        """Return whether only its owner has access to a file or folder."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically rename ``source`` to ``target``, replacing a file of that name."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name (hard link). Raises FileExistsError if ``target`` exists, atomically."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and its content. May block."""
        ...

    def remove_empty_folder(self, path: str) -> None:
        """Remove a folder. Raises OSError with ENOTEMPTY if something is in it."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Atomically replace the content of ``path``: write a temporary file, sync it, rename it, sync the
        folder.

        With ``sync=False`` neither file nor folder is synced: atomic if the process dies, not if the machine
        does. With ``sync=True`` it may block.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a folder durable. May block."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return how many bytes can still be written to the file system of ``path``."""
        ...

    def total_bytes(self, path: str) -> int: ...

    def boot_id(self) -> str:
        """Return an id of this boot of the machine: while it is the same, no written byte has been lost.

        Empty if the system has none; then nothing may be concluded from it.
        """
        ...

    def lock(self, path: str) -> DiskLock:
        """Lock the file ``path`` exclusively, creating it if it does not exist. Raises LockHeld.

        This process must not open the file again while it holds the lock: closing any descriptor of it would
        release the lock (POSIX). Locking it again raises LockHeld, also in the process that holds the lock.
        """
        ...

    def is_locked(self, path: str) -> bool:
        """Return whether any process, also this one, holds the lock on ``path``.

        False if there is no file.
        """
        ...

    def watch(self, folders: Sequence[str]) -> DiskWatch:
        """Watch ``folders`` for names created or removed and for locks released."""
        ...

    def file_system_type(self, path: str) -> str:
        """Return the type of the file system of ``path`` ("ext4", "nfs4", …); "" if it is unknown."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run ``work``, which may block, on another thread; return its result or raise its error.

        ``work`` runs to its end even if the waiting task is cancelled. Concurrent calls run in no particular
        order.
        """
        ...

    @property
    def offloaded(self) -> int:
        """How many works passed to :meth:`offload` have not ended: they run, or wait for a thread."""
        ...


def sync_ancestors(disk: Disk, path: str) -> None:
    """Sync every folder above ``path``: the way to what is kept must be as durable as its content. Blocks.

    Raises OSError.
    """
    folder: str = path
    parent = posixpath.dirname(path)
    while folder not in ("", "/"):
        folder = posixpath.dirname(folder)
        try:
            disk.sync_directory(folder or ".")
        except PermissionError:
            return  # another user's folder, so no broker created it
        except OSError as error:
            if error.errno != errno.EINVAL or folder == parent:
                raise
            return  # a file system that syncs no folders, such as one that is only mounted into
