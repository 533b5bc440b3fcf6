"""The creation time of a file. Linux only, by statx(2), which Python 3.11 does not offer."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable

_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_STATX_INO, _STATX_BTIME = 0x100, 0x800
_BUFFER_BYTES = 256
_MASK, _INODE, _BTIME = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=qI")
_INODE_OFFSET, _BTIME_OFFSET = 0x20, 0x50


def birth_ns(path: str, inode: int) -> int:
    """Return the creation time of a file in nanoseconds since 1970.

    Returns 0 if the system does not provide it, or ``path`` is no longer the file with ``inode``.
    """
    return _birth_ns(_AT_FDCWD, os.fsencode(path), 0, inode)


def birth_ns_of(descriptor: int, inode: int) -> int:
    """Return the creation time of an open file in nanoseconds since 1970; 0 if unknown."""
    return _birth_ns(descriptor, b"", _AT_EMPTY_PATH, inode)


def _birth_ns(folder: int, path: bytes, flags: int, inode: int) -> int:
    statx = _statx()
    if statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    if statx(folder, path, flags, _STATX_INO | _STATX_BTIME, buffer) != 0:
        return 0
    if not _MASK.unpack_from(buffer)[0] & _STATX_BTIME:
        return 0
    if _INODE.unpack_from(buffer, _INODE_OFFSET)[0] != inode:
        return 0
    seconds, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_OFFSET)
    return seconds * 1_000_000_000 + nanoseconds


@functools.cache
def _statx() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None  # another system, or an old C library
