"""A search goes on by itself while a page shows what it has found so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from nilometer.console.reading.record_reader import Found, RecordQuery, RecordReader
from nilometer.wire.errors import ErrorCode, KafkaError


def found(searched: int) -> Found:
    return Found((), searched, True, None, ())


class Steered(RecordReader):
    """Reads in rounds; the last one waits until the test lets it go on."""

    def __init__(self, rounds: int, failure: KafkaError | None = None) -> None:
        self._rounds = rounds
        self._failure = failure
        self.may_end = asyncio.Event()
        self.is_cancelled = False

    async def read(self, query: RecordQuery, progress: Callable[[Found], None] = lambda _: None) -> Found:
        for number in range(self._rounds):
            progress(found(number))
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        if self._failure is not None:
            raise self._failure
        return found(100)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nilometer.console.reading.record_reader.PROGRESS_INTERVAL_S", 0)


def test_a_slow_watcher_sees_the_newest_state_and_the_end() -> None:
    async def run() -> list[int]:
        reader, seen = Steered(rounds=5), list[int]()
        async for one, is_done in reader.watch(RecordQuery("t", None)):
            seen.append(one.searched)
            assert is_done == (one.searched == 100)
            reader.may_end.set()
        return seen

    assert asyncio.run(run()) == [4, 100]


def test_a_search_ends_with_the_watching() -> None:
    async def run() -> bool:
        reader = Steered(rounds=1)
        async with aclosing(reader.watch(RecordQuery("t", None))) as rounds:
            async for _ in rounds:
                break
        await asyncio.sleep(0)
        return reader.is_cancelled

    assert asyncio.run(run())


def test_a_search_that_fails_is_told() -> None:
    async def run() -> None:
        reader = Steered(0, KafkaError(ErrorCode.request_timed_out, "late"))
        reader.may_end.set()
        async for _ in reader.watch(RecordQuery("t", None)):
            pass

    with pytest.raises(KafkaError, match="late"):
        asyncio.run(run())
