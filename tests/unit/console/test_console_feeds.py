"""A subject is read by one task for all its watchers, and by none when there are none."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from nilometer.console.reading import cluster_access as feeds_module
from nilometer.console.reading.cluster_access import BUG, Feeds, TooManyWatchers, Update
from nilometer.console.reading.cluster_reader import Shared
from nilometer.runtime.runtime import SystemClock
from nilometer.wire.errors import ErrorCode, KafkaError
from support.eventually import becomes


class Counter:
    def __init__(self, *outcomes: object) -> None:
        self.readings = 0
        self._outcomes = outcomes

    async def read(self) -> object:
        self.readings += 1
        await asyncio.sleep(0)
        outcome = (
            self._outcomes[min(self.readings, len(self._outcomes)) - 1] if self._outcomes else self.readings
        )
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


async def take(feeds: Feeds, subject: str, counter: Counter, count: int) -> list[Update]:
    found: list[Update] = []
    async with aclosing(feeds.watch(subject, counter.read)) as updates:
        async for update in updates:
            found.append(update)
            if len(found) == count:
                break
    return found


def test_watchers_share_readings() -> None:
    async def main() -> None:
        feeds, counter = Feeds(SystemClock(), interval_s=0.001, linger_s=0), Counter()
        all_found = await asyncio.gather(*(take(feeds, "a", counter, 5) for _ in range(20)))
        assert counter.readings <= 10
        for found in all_found:
            numbers = [update.number for update in found]
            assert numbers == sorted(set(numbers))
            assert [update.value for update in found] == numbers
        await becomes(lambda: feeds.subjects == [], "no subject is read without a watcher")
        await asyncio.sleep(0)
        readings = counter.readings
        await asyncio.sleep(0.02)
        assert counter.readings <= readings + 1
        await feeds.close()

    asyncio.run(main())


def test_a_page_and_its_events_share_the_first_reading() -> None:
    async def main() -> None:
        feeds, counter = Feeds(SystemClock(), interval_s=60, linger_s=60), Counter()
        assert (await feeds.first("a", counter.read)).value == 1
        assert (await take(feeds, "a", counter, 1))[0].value == 1
        assert counter.readings == 1
        await feeds.close()

    asyncio.run(main())


def test_an_error_is_an_update_and_the_next_reading_follows() -> None:
    async def main() -> None:
        missing = KafkaError(ErrorCode.unknown_topic_or_partition, "topic t does not exist")
        counter = Counter(KafkaError(ErrorCode.network_exception, "away"), missing, ValueError("?"), "there")
        feeds = Feeds(SystemClock(), interval_s=0.02, linger_s=0)
        away, gone, bug, there = await take(feeds, "a", counter, 4)
        assert (away.error, away.is_missing) == ("away", False)
        assert (gone.error, gone.is_missing) == ("topic t does not exist", True)
        assert bug.error == BUG
        assert (there.value, there.error) == ("there", None)
        await feeds.close()

    asyncio.run(main())


def test_the_number_of_subjects_and_watchers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_module, "FEEDS_MAX", 2)

    async def main() -> None:
        feeds, counter = Feeds(SystemClock(), interval_s=60, linger_s=60), Counter()
        for subject in "abc":  # a page that is no longer watched gives way
            await feeds.first(subject, counter.read)
        assert feeds.subjects == ["b", "c"]
        watched = [feeds.watch(subject, counter.read) for subject in "bc"]
        for one in watched:
            await anext(one)
        with pytest.raises(TooManyWatchers):
            await feeds.first("d", counter.read)
        for one in watched:
            await one.aclose()
        assert (await feeds.first("d", counter.read)).error is None
        await feeds.close()

    asyncio.run(main())


def test_a_shared_reading_is_used_again_while_it_is_fresh() -> None:
    async def main() -> None:
        counter = Counter(KafkaError(ErrorCode.network_exception, "away"), "there")
        shared = Shared(SystemClock(), counter.read, fresh_ms=60_000)
        with pytest.raises(KafkaError):
            await shared.get()
        assert await asyncio.gather(*(shared.get() for _ in range(5))) == ["there"] * 5
        assert counter.readings == 2
        await shared.close()

    asyncio.run(main())
