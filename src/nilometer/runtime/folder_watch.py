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
import functools
import logging
import os
import struct
from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

POLL_MS = 20
"""The interval at which a folder is polled that has no notifications."""

SPACING_MS = 5
"""The least time between two returns of a wait: a burst of changes costs its caller few looks."""

NO_NOTIFICATIONS = ("fuse", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs")
"""How the types of file systems begin whose files may change without a notification here."""

_CLOSE_WRITE = 0x8
_MOVED_FROM = 0x40
_MOVED_TO = 0x80
_CREATE = 0x100
_DELETE = 0x200
_DELETE_SELF = 0x400
_MOVE_SELF = 0x800
_UNMOUNT = 0x2000
_OVERFLOW = 0x4000
_IGNORED = 0x8000
_ONLYDIR = 0x0100_0000
_MASK = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_FOLDER_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED | _OVERFLOW
"""Also if notifications were lost: that may have been one of them."""
_EVENT = struct.Struct("iIII")
"""Watch, mask, cookie, length of the name that follows."""

_READ_BYTES = 64 << 10


class PollingWatch:
    """A watch that polls: each wait returns after a short time, whether something changed or not."""

    async def wait(self, timeout_ms: int) -> None:
        await asyncio.sleep(min(timeout_ms, POLL_MS) / 1000)

    def wake(self) -> None:
        """Nothing to do: the wait returns soon."""

    def close(self) -> None:
        pass


class NotifiedWatch:
    """A watch by notifications.

    A folder that does not exist is polled until it does. A watch follows the folder, not its path: so after
    each timeout the paths are looked up again, in case that a folder above was renamed, or a link changed.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        """Raise OSError if the system has no inotify, or none left (``fs.inotify.max_user_instances``)."""
        self._folders = tuple(folders)
        self._watches: dict[str, int] = {}
        self._descriptor = _inotify_init()
        self._last_error = ""
        self._has_changed = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._returned_at = self._loop.time() - SPACING_MS / 1000
        try:
            self._is_complete = self._add_all()
            self._loop.add_reader(self._descriptor, self._on_readable)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._has_changed = False

    async def wait(self, timeout_ms: int) -> None:
        if not self._is_complete:
            self._is_complete = self._add_all()
            timeout_ms = min(timeout_ms, POLL_MS)
        if not self._has_changed:
            await self._wait_changed(timeout_ms / 1000)
        if not self._has_changed:
            self._is_complete = self._add_all()
        elif (early_s := self._returned_at + SPACING_MS / 1000 - self._loop.time()) > 0:
            await asyncio.sleep(early_s)
        self._has_changed = False
        self._returned_at = self._loop.time()

    def wake(self) -> None:
        self._has_changed = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def _wait_changed(self, timeout_s: float) -> None:
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout_s, self._on_timeout, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    @staticmethod
    def _on_timeout(waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def _on_readable(self) -> None:
        try:
            events = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if _tells_of_a_lost_folder(events, set(self._watches.values())):
            self._is_complete = False
        self.wake()

    def _add_all(self) -> bool:
        """Watch the folders that have these paths now; return whether all exist. Another one is a change."""
        for folder in self._folders:
            try:
                watch = _inotify_add_watch(self._descriptor, folder)
            except OSError as error:
                if self._last_error != str(error):  # once per error text, not at each poll
                    self._last_error = str(error)
                    logger.info("A folder is polled every %d ms: %s", POLL_MS, error)
                return False
            if (former := self._watches.get(folder)) != watch:
                self._watches[folder] = watch
                self._has_changed = True
                if former is not None:
                    _inotify_rm_watch(self._descriptor, former)
        self._last_error = ""
        return True


def open_watch(folders: Sequence[str], file_systems: Iterable[str]) -> NotifiedWatch | PollingWatch:
    """``file_systems``: the types of those that the folders are on."""
    if any(each.startswith(NO_NOTIFICATIONS) for each in file_systems):
        return PollingWatch()
    try:
        return NotifiedWatch(folders)
    except OSError as error:
        logger.info("Folders are polled every %d ms, inotify is not available: %s", POLL_MS, error)
        return PollingWatch()


def _tells_of_a_lost_folder(events: bytes, watches: set[int]) -> bool:
    position = 0
    while position < len(events):
        watch, mask, _, name_length = _EVENT.unpack_from(events, position)
        if mask & _FOLDER_GONE and (watch in watches or mask & _OVERFLOW):
            return True
        position += _EVENT.size + name_length
    return False


@functools.cache
def _c_library() -> ctypes.CDLL:
    """Each one has classes of its own, which only the garbage collection removes."""
    return ctypes.CDLL(None, use_errno=True)


def _inotify_init() -> int:
    try:
        function = _c_library().inotify_init1
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), "inotify_init1") from None
    return _checked(function(os.O_CLOEXEC | os.O_NONBLOCK), "inotify_init1")


def _inotify_add_watch(descriptor: int, folder: str) -> int:
    """Return the number of the watch, which is the same as long as the path has the same folder."""
    function = _c_library().inotify_add_watch
    return _checked(function(descriptor, os.fsencode(folder), ctypes.c_uint32(_MASK)), folder)


def _inotify_rm_watch(descriptor: int, watch: int) -> None:
    """Nothing happens if the kernel has removed the watch, as it does with the folder."""
    _c_library().inotify_rm_watch(descriptor, watch)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
