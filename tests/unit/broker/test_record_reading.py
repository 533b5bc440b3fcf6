"""Records are read off the event loop: one step at a time, in turns, and only so much at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TypeVar

import pytest

from nilometer.broker.replicas.record_reading import READERS_MAX, SMALL_BYTES, RecordReading
from nilometer.broker.rooms import SHARES

T = TypeVar("T")


class OtherThread:
    """A disk whose offloaded work takes some turns of the event loop."""

    def __init__(self) -> None:
        self.running = self.running_max = 0

    async def offload(self, work: Callable[[], T]) -> T:
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return work()


class Reader:
    """Reads in ``steps``, each of which decompresses ``step_bytes`` more."""

    def __init__(self, name: str, steps: int, step_bytes: int, log: list[str]) -> None:
        self.name, self._steps, self._bytes, self._log = name, steps, step_bytes, log
        self.is_closed = False

    def read(self) -> Generator[int, None, str]:
        try:
            for number in range(1, self._steps + 1):
                self._log.append(self.name)
                yield number * self._bytes
            return self.name
        finally:
            self.is_closed = True


def origin(name: str) -> tuple[str, str]:
    return f"User:{name}", "127.0.0.1"


async def test_who_has_many_batches_waits_for_his_own() -> None:
    log = list[str]()
    reading = RecordReading(OtherThread())  # pyright: ignore[reportArgumentType]
    many = [reading.run(origin("m"), Reader("m", 20, 1, log).read()) for _ in range(50)]
    one = asyncio.ensure_future(asyncio.gather(*many))
    for _ in range(10):
        await asyncio.sleep(0)
    before = len(log)
    await reading.run(origin("o"), Reader("o", 5, 1, log).read())
    assert len(log) - before <= (5 + 1) * (READERS_MAX // SHARES + 1)
    await one


async def test_readers_take_turns_and_one_step_runs_at_a_time() -> None:
    disk, log = OtherThread(), list[str]()
    reading = RecordReading(disk)  # pyright: ignore[reportArgumentType]  # only ``offload`` is called
    readers = [Reader(name, 5, 1, log) for name in "abc"]
    assert await asyncio.gather(*(reading.run(origin(reader.name), reader.read()) for reader in readers)) == [
        "a",
        "b",
        "c",
    ]
    assert "".join(log) == "abc" * 5
    assert disk.running_max == 1
    assert all(reader.is_closed for reader in readers)


async def test_one_batch_that_holds_much_is_read_at_a_time() -> None:
    log = list[str]()
    reading = RecordReading(OtherThread())  # pyright: ignore[reportArgumentType]
    large = [Reader(name, 4, SMALL_BYTES, log) for name in "AB"]
    small = Reader("c", 8, 1, log)
    await asyncio.gather(*(reading.run(origin(reader.name), reader.read()) for reader in (*large, small)))
    read = "".join(log)
    assert read.rindex("A") < [at for at, name in enumerate(read) if name == "B"][2]
    assert read.index("c") < read.rindex("A"), "a small one goes on meanwhile"


async def test_some_batches_are_read_at_once_and_the_others_wait() -> None:
    log = list[str]()
    reading = RecordReading(OtherThread())  # pyright: ignore[reportArgumentType]
    names = [str(number) for number in range(READERS_MAX + 2)]
    await asyncio.gather(*(reading.run(origin(name), Reader(name, 2, 1, log).read()) for name in names))
    assert log[: 2 * READERS_MAX] == 2 * names[:READERS_MAX]
    assert sorted(log[2 * READERS_MAX :]) == sorted(2 * names[READERS_MAX:])


async def test_an_error_and_a_cancellation_end_the_reading_and_others_go_on() -> None:
    log = list[str]()
    reading = RecordReading(OtherThread())  # pyright: ignore[reportArgumentType]

    def damaged() -> Generator[int, None, None]:
        yield 2 * SMALL_BYTES
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        await reading.run(origin("d"), damaged())
    endless = Reader("x", 1 << 30, SMALL_BYTES, log)
    task = asyncio.ensure_future(reading.run(origin("x"), endless.read()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert log
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert endless.is_closed
    assert await reading.run(origin("y"), Reader("y", 3, SMALL_BYTES, log).read()) == "y"
