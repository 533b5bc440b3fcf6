"""A fetch that waits: a follower hears of a new high watermark soon, or with the record that comes first."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.broker.replicas.delayed_fetch import DelayedFetch, FetchWaiter

LONG_MS = 60_000


class Watched:
    def __init__(self) -> None:
        self.fetch_waiters: dict[FetchWaiter, None] = {}


class Reader:
    """Notes how it was answered: True where it had to be, False where there was enough."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self.answered = asyncio.Event()

    def __call__(self, final: bool) -> bool:
        self.answers.append(final)
        self.answered.set()
        return True


def waiting(update_wait_ms: int, *, has_update: bool = False) -> tuple[Watched, Reader, DelayedFetch]:
    partition, reader = Watched(), Reader()
    fetch = DelayedFetch(
        [partition],
        1,
        LONG_MS,
        reader,
        for_replica=True,
        update_wait_ms=update_wait_ms,
        has_update=has_update,
    )
    return partition, reader, fetch


@pytest.mark.parametrize("has_update", [False, True])
def test_an_update_alone_is_sent_once_its_time_is_over(has_update: bool) -> None:
    async def scenario() -> None:
        partition, reader, fetch = waiting(1, has_update=has_update)
        fetch.on_watermark_advanced(partition)
        fetch.on_watermark_advanced(partition)
        assert reader.answers == []
        await reader.answered.wait()
        assert reader.answers == [True]
        assert not partition.fetch_waiters

    asyncio.run(scenario())


def test_a_record_takes_the_update_along() -> None:
    async def scenario() -> None:
        partition, reader, fetch = waiting(LONG_MS)
        fetch.on_watermark_advanced(partition)
        fetch.on_readable(partition, 100)
        assert reader.answers == [False]
        fetch.on_watermark_advanced(partition)
        assert reader.answers == [False]
        assert not partition.fetch_waiters

    asyncio.run(scenario())


def test_where_consumers_read_from_followers_updates_are_sent_at_once() -> None:
    async def scenario() -> None:
        partition, reader, fetch = waiting(0)
        fetch.on_watermark_advanced(partition)
        assert reader.answers == [True]

    asyncio.run(scenario())
