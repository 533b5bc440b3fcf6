"""Fetch requests that wait for data (long poll).

A waiting fetch is notified of every change of its partitions and adds up the bytes that became readable. It
is answered when ``min_bytes`` may have been reached (the partitions are then read to make sure), when a
partition changed in a way that the reader must learn at once (leadership, truncation, deletion), or when
``max_wait_ms`` has passed.

A follower must learn a new high watermark too, but soon rather than at once: while records arrive, the next
answer carries it. Answered at once, every record would cost each follower two fetches (KAFKA-9731).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol


class FetchWaiter(Protocol):
    """Is notified of changes of a partition: a waiting fetch, or the watch of a fetch session."""

    for_replica: bool
    """Whether it waits for written records, not for committed ones."""

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        """``byte_count`` more bytes can be read (0: something else has changed)."""
        ...

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """The high watermark or the log start offset is above the one last sent to the reader, a replica."""
        ...

    def complete(self, source: FetchWatchable) -> None:
        """The state of the partition has changed: answer at once."""
        ...


class FetchWatchable(Protocol):
    """A partition that fetches can wait on."""

    fetch_waiters: dict[FetchWaiter, None]
    """Ordered, so that replay is exact."""


class DelayedFetch:
    __slots__ = (
        "_answer",
        "_bytes_missing",
        "_done",
        "_has_update",
        "_partitions",
        "_timer",
        "_update_wait_ms",
        "for_replica",
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
    ) -> None:
        """``answer(final)`` reads again and sends the answer unless it has too little; returns
        whether it did. With an update it is sent after ``update_wait_ms`` at the latest.
        """
        self._partitions = partitions
        self._bytes_missing = bytes_missing
        self._answer: Callable[[bool], bool] | None = answer
        self._done = False
        self._has_update = has_update
        self._update_wait_ms = update_wait_ms
        self.for_replica = for_replica
        for partition in partitions:
            partition.fetch_waiters[self] = None
        wait_ms = min(max_wait_ms, update_wait_ms) if has_update else max_wait_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self.complete)

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        """``byte_count`` more bytes can be read from one of the partitions."""
        self._bytes_missing -= byte_count
        if self._bytes_missing > 0 or self._done:
            return
        if self._answer is None or self._answer(False):
            self._leave()
        else:
            self._bytes_missing = 1  # an overestimate: read again at the next change

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """An update that the reader must learn soon."""
        if self._has_update or self._done:
            return
        self._has_update = True
        if self._update_wait_ms <= 0:
            self.complete()
            return
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._update_wait_ms / 1000, self.complete)

    def complete(self, source: FetchWatchable | None = None) -> None:
        """Answer now, with the bytes there are."""
        answer = self._answer
        self._leave()
        if answer is not None:
            answer(True)

    def cancel(self) -> None:
        """The reader has disconnected."""
        self._leave()

    def _leave(self) -> None:
        self._done = True
        self._timer.cancel()
        for partition in self._partitions:
            partition.fetch_waiters.pop(self, None)
        self._answer = None  # a remaining reference to this object must not keep what was read in memory
        self._partitions = ()
