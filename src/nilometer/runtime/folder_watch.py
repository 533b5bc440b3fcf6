"""Watching folders: by the notifications of the kernel (inotify), by polling where there are none.

A released lock is noticed, too: the process that held it closes the lock file, or the kernel does so when
the process dies; the kernel releases the lock first, then reports that a writable file was closed. A child
process that has inherited the descriptor delays the report, not the release: a caller that depends on locks
checks them after each timeout as well.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Sequence

logger = logging.getLogger(__name__)

POLL_MS = 20
"""The interval at which a folder is polled that has no notifications."""

_CLOSE_WRITE = 0x8
_MOVED_FROM = 0x40
_MOVED_TO = 0x80
_CREATE = 0x100
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_UNMOUNT = 0x2000
_IGNORED = 0x8000
_ONLYDIR = 0x0100_0000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_FOLDER_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED
_EVENT = struct.Struct("iIII")
"""Watch, mask, cookie, length of the name that follows."""

_READ_BYTES = 64 << 10


class PollingWatch:
    """A watch that polls: each wait returns after a short time, whether something changed or not."""

    async def wait(self, timeout_ms: int) -> None:
        await asyncio.sleep(min(timeout_ms, POLL_MS) / 1000)

    def close(self) -> None:
        pass


class NotifiedWatch:
    """A watch by notifications. A folder that does not exist, or is replaced, is polled until it exists."""

    def __init__(self, folders: Sequence[str]) -> None:
        """Raise OSError if the system has no inotify, or none left (``fs.inotify.max_user_instances``)."""
        self._folders = tuple(folders)
        self._descriptor = _inotify_init()
        self._last_error = ""
        self._has_changed = False
        self._is_complete = self._add_all()
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._on_readable)

    async def wait(self, timeout_ms: int) -> None:
        if not self._is_complete:
            self._is_complete = self._add_all()
            self._has_changed = self._has_changed or self._is_complete  # what was not seen meanwhile
            timeout_ms = min(timeout_ms, POLL_MS)
        if not self._has_changed:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(timeout_ms / 1000, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        self._has_changed = False

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_readable(self) -> None:
        try:
            events = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if _tells_of_a_lost_folder(events):
            self._is_complete = False
        self._has_changed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _add_all(self) -> bool:
        for folder in self._folders:
            try:
                _inotify_add_watch(self._descriptor, folder)
            except OSError as error:
                if self._last_error != str(error):  # once per error text, not at each poll
                    self._last_error = str(error)
                    logger.info("A folder is polled every %d ms: %s", POLL_MS, error)
                return False
        self._last_error = ""
        return True


def open_watch(folders: Sequence[str]) -> NotifiedWatch | PollingWatch:
    try:
        return NotifiedWatch(folders)
    except OSError as error:
        logger.info("Folders are polled every %d ms, inotify is not available: %s", POLL_MS, error)
        return PollingWatch()


def _tells_of_a_lost_folder(events: bytes) -> bool:
    position = 0
    while position < len(events):
        _, mask, _, name_length = _EVENT.unpack_from(events, position)
        if mask & _FOLDER_GONE:
            return True
        position += _EVENT.size + name_length
    return False


def _inotify_init() -> int:
    try:
        function = ctypes.CDLL(None, use_errno=True).inotify_init1
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "inotify_init1") from None
    return _checked(function(os.O_CLOEXEC | os.O_NONBLOCK), "inotify_init1")


def _inotify_add_watch(descriptor: int, folder: str) -> None:
    function = ctypes.CDLL(None, use_errno=True).inotify_add_watch
    _checked(function(descriptor, os.fsencode(folder), ctypes.c_uint32(_MASK)), folder)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
