"""Files, as the storage engine needs them.

Two sides. *Plain calls* are for what the page cache answers at once: appends, warm reads, renames
of small files. *Work that may stall* (fsync, cold reads, deletions, recovery) is handed to
:meth:`Disk.offload`, which runs it away from the event loop; in simulation it takes virtual time.

Invariants every implementation keeps:

- a file's bytes below its last ``sync`` survive the death of the machine; bytes above may be lost,
  or torn at any point;
- a name created, renamed or removed is durable after ``sync_directory`` of its folder, not before;
- all bytes written survive the death of the process alone.

Every failure is an ``OSError`` with its ``errno`` (``ENOSPC``, ``EIO``, …). After a failed write the
length of the file is unknown: the caller stops writing to it (KAFKA-10778).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import Buffer

T = TypeVar("T")


class LockHeld(Exception):
    """Another process holds the lock. ``holder_pid`` names it where the system tells."""

    def __init__(self, path: str, holder_pid: int | None) -> None:
        super().__init__(f"{path} is locked by process {holder_pid if holder_pid else '(unknown)'}")
        self.path = path
        self.holder_pid = holder_pid


class DiskLock(Protocol):
    """An exclusive lock that the kernel drops when the owning process dies."""

    def release(self) -> None: ...


class DiskWatch(Protocol):
    """Signals that names or locks directly in some folders may have changed since the last wait."""

    async def wait(self, timeout_ms: int) -> None:
        """Return when something may have changed, after ``timeout_ms`` at the latest.

        May return without cause; never misses a change made after the previous wait returned (or
        after the watch was made).
        """
        ...

    def close(self) -> None: ...


class File(Protocol):
    """An open file. Offsets and lengths are bytes."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; shorter only at the end of the file."""
        ...

    def read_at_if_cached(self, position: int, length: int) -> bytes | None:
        """Like :meth:`read_at`, but ``None`` where answering would wait for the device."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write ``buffers`` one after another at the end of the file; returns the bytes written (all)."""
        ...

    def write_at(self, position: int, data: Buffer) -> None: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make all bytes durable. May stall: call it inside :meth:`Disk.offload`."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are absolute or relative to the process, ``/``-separated strings."""

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        """Open ``path``. Raises FileNotFoundError unless ``create``; never truncates.

        A file that is created ``private`` may be read and written by its owner only, from its first moment.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def is_directory(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """When ``path`` last changed, milliseconds since the Unix epoch."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a folder, sorted."""
        ...

    def make_directories(self, path: str, *, private: bool = False) -> None:
        """Create a folder and its parents; no error where it exists.

        A folder that is created ``private`` (not its parents) may be entered by its owner only.
        """
        ...

    def is_private(self, path: str) -> bool:
        """Whether a file or folder is its owner's alone."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically give ``source`` the name ``target``, replacing a file of that name."""
        ...

    def link(self, source: str, target: str) -> None:
        """A second name for a file. Raises FileExistsError where ``target`` is taken: a compare-and-set."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it. May stall."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Atomically make ``data`` the content of ``path``: written to a temporary file, synced, renamed,
        folder synced.

        With ``sync=False`` neither file nor folder is synced: atomic against the death of the
        process, not of the machine. ``sync=True`` may stall.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Make names in a folder durable. May stall."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes that can still be written to the file system that holds ``path``."""
        ...

    def total_bytes(self, path: str) -> int: ...

    def boot_id(self) -> str:
        """Identifies this boot of the machine: while it stays the same, no written byte has been lost.

        Empty where the system does not tell; then nothing may be concluded from it.
        """
        ...

    def lock(self, path: str) -> DiskLock:
        """Create ``path`` if need be and lock it exclusively. Raises LockHeld.

        The file must not be opened again by this process while the lock is held: closing any
        descriptor of it would drop the lock (POSIX). Locking it again is refused, holder or not.
        """
        ...

    def is_locked(self, path: str) -> bool:
        """Whether any process holds the lock on ``path``. False where there is no such file.

        A lock of this very process is answered from memory: opening its file would drop it.
        """
        ...

    def watch(self, folders: Sequence[str]) -> DiskWatch:
        """Watch ``folders`` for names that come and go and for locks that are taken or dropped."""
        ...

    def file_system_type(self, path: str) -> str:
        """What kind of file system holds ``path`` ("ext4", "nfs4", …); "" where the system does not tell."""
        ...

    async def offload(self, work: Callable[[], T]) -> T:
        """Run ``work``, which may stall, without holding up the event loop; returns or raises what it does.

        ``work`` runs to its end even when the waiting task is cancelled. Two pieces of work in progress at
        once run in no particular order.
        """
        ...
