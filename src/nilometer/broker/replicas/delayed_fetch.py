"""Fetch requests that wait for data (long poll).

A waiting fetch is told of every change to its partitions and adds up the bytes that became readable. It is
answered when ``min_bytes`` may have been reached (the partitions are then read to make sure), when anything
about a partition changed that the reader must hear of (leadership, truncation, deletion), or when
``max_wait_ms`` is over.

A follower must hear of a new high watermark too, but soon rather than at once: where records flow, the next
one takes it along. Answered at once, every record would cost each follower two fetches (KAFKA-9731).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol


class FetchWaiter(Protocol):
    """Who hears of changes to a partition: a waiting fetch, or the watch of a fetch session."""

    for_replica: bool
    """Whether it waits for what is written, not for what is committed."""

    def on_readable(self, source: FetchWatchable, byte_count: int) -> None:
        """``byte_count`` more bytes can be read (0: something else is news)."""
        ...

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """A watermark is above the one that the reader, a replica, was told: the high watermark, or the log
        start offset."""
        ...

    def complete(self, source: FetchWatchable) -> None:
        """What was known of the partition is no longer true: look again at once."""
        ...


class FetchWatchable(Protocol):
    """What can be waited on."""

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
        whether it did. With news it is sent after ``update_wait_ms`` at the latest.
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
            self._bytes_missing = 1  # an overestimate: look again at the next change

    def on_watermark_advanced(self, source: FetchWatchable) -> None:
        """Something that the reader is to hear soon."""
        if self._has_update or self._done:
            return
        self._has_update = True
        if self._update_wait_ms <= 0:
            self.complete()
            return
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._update_wait_ms / 1000, self.complete)

    def complete(self, source: FetchWatchable | None = None) -> None:
        """Answer now, with whatever there is."""
        answer = self._answer
        self._leave()
        if answer is not None:
            answer(True)

    def cancel(self) -> None:
        """The reader has gone."""
        self._leave()

    def _leave(self) -> None:
        self._done = True
        self._timer.cancel()
        for partition in self._partitions:
            partition.fetch_waiters.pop(self, None)
        self._answer = None  # nothing that was read may be kept alive by who might still hold this
        self._partitions = ()
