"""Fetch requests that wait for data (long poll).

A waiting fetch is notified of every change of its partitions and adds up the bytes that became readable. Its
response is sent when ``min_bytes`` may have been reached (the partitions are then read to make sure), when a
partition changed in a way that the reader must learn at once (leadership, truncation, deletion), or when
``max_wait_ms`` has passed.

A follower must learn a new high watermark too, but soon rather than at once: while records arrive, the next
response carries it. If it were sent at once, every record would cost each follower two fetches (KAFKA-9731).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol


class FetchWaiter(Protocol):
    """Is notified of a partition's changes: a waiting fetch, or the watch of a fetch session.

    ``source`` is the partition that has changed.
    """

    for_replica: bool
    """Whether the reader is a follower: it waits for appended records, a consumer for committed ones."""

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        """Note that ``byte_count`` more bytes can be read (0: something else has changed)."""
        ...

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """Note that the high watermark or log start offset has risen above the one last sent to a
        follower."""
        ...

    def complete(self, source: FetchWatchable) -> None:
        """Send the response at once: the partition's leadership or role has changed."""
        ...


class FetchWatchable(Protocol):
    """A partition that fetches can wait on."""

    fetch_waiters: dict[FetchWaiter, None]
    """The waiting fetches and session watches, in order, so that a simulation run is reproducible."""


ANSWERED_AT_ONCE = 32
"""So many waiting fetches are answered in one iteration of the event loop: one append may end thousands."""
READ_AT_ONCE = 512
"""So many partitions they read in it together, or one fetch with more."""
WAITING_MAX = 200_000
"""So many partitions are named by all waiting fetches that have no session. A further fetch does not wait."""


class ReadyFetches:
    """Holds the fetches that have enough to read, for a moment.

    A producer sends many small requests at once, which arrive in one read. A fetch that were answered after
    the first of them would have one batch in its response, and all others in the next one. And of the many
    fetches that wait for one partition, a few are answered in each iteration of the event loop.
    """

    def __init__(self) -> None:
        self._is_holding = False
        self._held: dict[DelayedFetch, None] = {}
        self._answered = self._read = 0
        """How many were answered in this iteration of the event loop, and how many partitions they read."""
        self.waiting = 0
        """How many partitions are named by the waiting fetches that have no session."""

    def hold(self) -> None:
        """Hold fetches until :meth:`answer`, at most to the next iteration of the event loop."""
        self._is_holding = True

    def may_answer(self, partitions: int) -> bool:
        """Whether a fetch that reads ``partitions`` may be answered at once; if so, it is counted."""
        if self._is_holding or self._answered >= ANSWERED_AT_ONCE or self._read >= READ_AT_ONCE:
            return False
        if not self._answered:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self._answered += 1
        self._read += partitions
        return True

    def add(self, fetch: DelayedFetch) -> None:
        if not self._held:
            asyncio.get_running_loop().call_soon(self.answer)
        self._held[fetch] = None

    def answer(self) -> None:
        """Answer the fetches that were held, some of them now, and hold none from now on."""
        self._is_holding = False
        while self._held:
            fetch = next(iter(self._held))
            if not self.may_answer(fetch.size):
                break
            del self._held[fetch]
            fetch.read_again()
        if self._held:
            asyncio.get_running_loop().call_soon(self.answer)

    def _begin_iteration(self) -> None:
        self._answered = self._read = 0


class DelayedFetch:
    __slots__ = (
        "_answer",
        "_bytes_missing",
        "_done",
        "_has_update",
        "_is_final",
        "_partitions",
        "_ready",
        "_timer",
        "_update_wait_ms",
        "_weight",
        "for_replica",
        "size",
    )

    def __init__(
        self,
        partitions: Sequence[FetchWatchable],
        bytes_missing: int,
        max_wait_ms: int,
        answer: Callable[[bool], bool],
        *,
        for_replica: bool,
        update_wait_ms: int = 0,
        has_update: bool = False,
        ready: ReadyFetches | None = None,
        size: int = 1,
        has_session: bool = True,
    ) -> None:
        """Wait on ``partitions``: for ``bytes_missing`` more readable bytes, but at most ``max_wait_ms``.

        ``answer(final)`` reads again, sends the response if there are enough bytes or ``final`` is true, and
        returns whether it did. With an update for a follower (a new high watermark or log start offset;
        ``has_update`` if there is one already) the wait ends after ``update_wait_ms``. ``ready`` may hold the
        response until more records are appended.
        ``size``: how many partitions the fetch names.
        """
        self.size = size
        self._weight = 0 if has_session or ready is None else size
        if ready is not None:
            ready.waiting += self._weight
        self._ready = ready
        self._partitions = partitions
        self._bytes_missing = bytes_missing
        self._answer: Callable[[bool], bool] | None = answer
        self._done = self._is_final = False
        self._has_update = has_update
        self._update_wait_ms = update_wait_ms
        self.for_replica = for_replica
        for partition in partitions:
            partition.fetch_waiters[self] = None
        wait_ms = min(max_wait_ms, update_wait_ms) if has_update else max_wait_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.complete)

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        """Count ``byte_count`` more readable bytes; if they are enough, send the response."""
        self._bytes_missing -= byte_count
        if self._bytes_missing > 0 or self._done:
            return
        if self._ready is None or self._ready.may_answer(self.size):
            self.read_again()
        else:
            self._ready.add(self)

    def read_again(self) -> None:
        """Send the response if there are enough bytes, or it must be sent anyway."""
        if self._done:
            return
        if self._is_final:
            self.complete()
        elif self._answer is None or self._answer(False):
            self._leave()
        else:
            self._bytes_missing = 1  # the count was an overestimate: read again at the next change

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """Send the response within ``update_wait_ms``, with a follower's new high watermark or log start."""
        if self._has_update or self._done:
            return
        self._has_update = True
        if self._update_wait_ms <= 0:
            self.complete()
            return
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._update_wait_ms / 1000, self.complete)

    def complete(self, source: FetchWatchable | None = None) -> None:
        """Send the response with the bytes that are readable: now, but for ``source``, which may end the wait
        of many, perhaps soon."""
        if self._done:
            return
        if source is not None and self._ready is not None and not self._ready.may_answer(self.size):
            self._is_final = True
            self._ready.add(self)
            return
        answer = self._answer
        self._leave()
        if answer is not None:
            answer(True)

    def cancel(self) -> None:
        """Stop waiting without a response: the reader has disconnected."""
        self._leave()

    def _leave(self) -> None:
        self._done = True
        if self._ready is not None:
            self._ready.waiting -= self._weight
            self._weight = 0
        self._timer.cancel()
        for partition in self._partitions:
            partition.fetch_waiters.pop(self, None)
        self._answer = None  # a remaining reference to this object must not keep what was read in memory
        self._partitions = ()
