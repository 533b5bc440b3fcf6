"""A fetch that waits: a follower hears of a new high watermark soon, or with the record that comes first."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.broker.replicas.delayed_requests import (
    ANSWERED_AT_ONCE,
    ANSWERED_US,
    NOTIFIED_AT_ONCE,
    DelayedFetch,
    FetchWaiters,
    Notifier,
    ReadyFetches,
    records_appended,
)
from nilometer.broker.turns import Turns
from support.step_clock import StepClock

LONG_MS = 60_000


class Watched:
    def __init__(self) -> None:
        self.fetch_waiters = FetchWaiters()


class Reader:
    """Notes how it was answered: True where it had to be, False where there was enough."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self.answered = asyncio.Event()

    def __call__(self, final: bool) -> bool:
        self.answers.append(final)
        self.answered.set()
        return True


def waiting(
    update_wait_ms: int,
    *,
    has_update: bool = False,
    ready: ReadyFetches | None = None,
    wait_ms: int = LONG_MS,
    for_replica: bool = True,
) -> tuple[Watched, Reader, DelayedFetch]:
    partition, reader = Watched(), Reader()
    fetch = DelayedFetch(
        [partition],
        1,
        wait_ms,
        reader,
        for_replica=for_replica,
        update_wait_ms=update_wait_ms,
        has_update=has_update,
        ready=ready,
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


@pytest.mark.parametrize(("is_enough", "answers"), [(True, [False]), (False, [False, True])])
def test_a_partition_that_fails_while_it_is_read_ends_the_wait_once(
    is_enough: bool, answers: list[bool]
) -> None:
    class Failing(Reader):
        def __call__(self, final: bool) -> bool:
            super().__call__(final)
            if not final:
                fetch.complete(partition)
                fetch.on_readable(partition, 100)
            return is_enough or final

    async def scenario() -> None:
        nonlocal fetch
        fetch = DelayedFetch([partition], 1, LONG_MS, reader, for_replica=True)
        fetch.on_readable(partition, 100)

    fetch: DelayedFetch
    partition, reader = Watched(), Failing()
    asyncio.run(scenario())
    assert reader.answers == answers
    assert not partition.fetch_waiters


def test_where_consumers_read_from_followers_updates_are_sent_at_once() -> None:
    async def scenario() -> None:
        partition, reader, fetch = waiting(0)
        fetch.on_watermark_advanced(partition)
        assert reader.answers == [True]

    asyncio.run(scenario())


def test_a_fetch_that_is_held_is_answered_once_after_all_appends() -> None:
    async def scenario() -> None:
        ready = ReadyFetches(Turns(StepClock()))
        partition, reader, fetch = waiting(LONG_MS, ready=ready)
        ready.hold()
        fetch.on_readable(partition, 100)
        fetch.on_readable(partition, 100)
        assert reader.answers == []
        ready.answer()
        assert reader.answers == [False]
        assert not partition.fetch_waiters
        _, other, later = waiting(LONG_MS, ready=ready)
        later.on_readable(partition, 100)
        assert other.answers == [False], "nothing is held any more"
        await asyncio.sleep(0)
        assert (reader.answers, other.answers) == ([False], [False])

    asyncio.run(scenario())


def test_a_fetch_is_not_held_beyond_the_present_iteration() -> None:
    """The request that was to end it may never be processed."""

    async def scenario() -> None:
        ready = ReadyFetches(Turns(StepClock()))
        partition, reader, fetch = waiting(LONG_MS, ready=ready)
        ready.hold()
        fetch.on_readable(partition, 100)
        await asyncio.sleep(0)
        assert reader.answers == [False]
        assert ready.may_answer(1)

    asyncio.run(scenario())


@pytest.mark.parametrize("end", ["append", "leadership", "time"])
def test_of_many_waiting_fetches_some_are_answered_in_each_iteration(end: str) -> None:
    async def scenario() -> None:
        ready = ReadyFetches(Turns(StepClock()))
        wait_ms = 0 if end == "time" else LONG_MS
        all_of_them = [
            waiting(LONG_MS, ready=ready, wait_ms=wait_ms, for_replica=False)
            for _ in range(2 * ANSWERED_AT_ONCE + 1)
        ]
        for partition, _, fetch in all_of_them:
            match end:
                case "append":
                    fetch.on_readable(partition, 100)
                case "leadership":
                    fetch.complete(partition)
                case _:
                    pass
        counts = list[int]()
        while sum(counts) < len(all_of_them) and len(counts) < 10:
            counts.append(sum(len(reader.answers) for _, reader, _ in all_of_them) - sum(counts))
            await asyncio.sleep(0)
        assert [count for count in counts if count] == [ANSWERED_AT_ONCE, ANSWERED_AT_ONCE, 1]
        assert {answer for _, reader, _ in all_of_them for answer in reader.answers} == {end != "append"}

    asyncio.run(scenario())


def test_fetches_that_take_long_to_read_are_answered_one_by_one() -> None:
    async def scenario() -> None:
        clock = StepClock()
        ready = ReadyFetches(Turns(clock))
        fetches = [waiting(LONG_MS, ready=ready, for_replica=False) for _ in range(3)]
        for partition, _, fetch in fetches:
            fetch.on_readable(partition, 100)
            clock.us += ANSWERED_US
        answered = list[int]()
        for _ in range(3):
            answered.append(sum(len(reader.answers) for _, reader, _ in fetches))
            clock.us += ANSWERED_US
            await asyncio.sleep(0)
        assert answered[0] == 1, "the second waits for the next iteration"
        await asyncio.sleep(0)
        assert [reader.answers for _, reader, _ in fetches] == [[False]] * 3

    asyncio.run(scenario())


def test_a_follower_does_not_wait_for_clients() -> None:
    async def scenario() -> None:
        ready = ReadyFetches(Turns(StepClock()))
        clients = [waiting(LONG_MS, ready=ready, for_replica=False) for _ in range(2 * ANSWERED_AT_ONCE)]
        for partition, _, fetch in clients:
            fetch.on_readable(partition, 100)
        at_once, reader, _ = waiting(LONG_MS, ready=ready)
        records_appended(at_once, 100)
        assert reader.answers == [False]
        ready.hold()
        later, held_reader, held = waiting(LONG_MS, ready=ready)
        held.on_readable(later, 100)
        assert held_reader.answers == []
        ready.answer()
        assert held_reader.answers == [False]

    asyncio.run(scenario())


def test_of_many_readers_some_are_notified_in_each_iteration_and_followers_at_once() -> None:
    async def scenario() -> None:
        notifier, heard = Notifier(), list[int]()
        partitions = [Watched() for _ in range(4)]

        class Listener:
            for_replica = False

            def on_readable(self, source: object, byte_count: int) -> None:
                heard.append(byte_count)

            def on_watermark_advanced(self, source: object) -> None: ...

            def complete(self, source: object) -> None: ...

        for partition in partitions:
            for _ in range(NOTIFIED_AT_ONCE):
                partition.fetch_waiters.add(Listener())
        _, reader, follower = waiting(0)
        partitions[3].fetch_waiters.add(follower)
        for _ in range(2):
            for partition in partitions:
                notifier.readable(partition, 5)
        assert reader.answers == [True]
        assert len(heard) == NOTIFIED_AT_ONCE
        counts = list[int]()
        for _ in range(6):
            before = len(heard)
            await asyncio.sleep(0)
            counts.append(len(heard) - before)
        assert max(counts) == NOTIFIED_AT_ONCE
        assert sum(heard) == 4 * 2 * 5 * NOTIFIED_AT_ONCE, "each has heard of all bytes"

    asyncio.run(scenario())


def test_a_fetch_that_must_be_answered_is_not_held() -> None:
    async def scenario() -> None:
        ready = ReadyFetches(Turns(StepClock()))
        partition, reader, fetch = waiting(LONG_MS, ready=ready)
        ready.hold()
        fetch.on_readable(partition, 100)
        fetch.complete()
        assert reader.answers == [True]
        ready.answer()
        assert reader.answers == [True]

    asyncio.run(scenario())
