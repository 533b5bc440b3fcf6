"""A gathering is that of asyncio, with as many callbacks in the event loop whatever is done before."""

from __future__ import annotations

import ast
import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nilometer.recorder.turn_loop import TurnLoop
from nilometer.runtime import gathering
from nilometer.runtime.gathering import gather

QUORUM = Path(gathering.__file__).parents[1] / "coordination" / "quorum"


async def value() -> int:
    return 1


def done() -> asyncio.Future[int]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(1)
    return future


def failed() -> asyncio.Future[int]:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(OSError("the disk"))
    return future


def callbacks_of(make: Callable[[], Awaitable[int]]) -> int:
    """Return how many run until a gathering of what is made has ended."""
    loop = TurnLoop()

    async def main() -> list[int]:
        return await gather(make(), make())

    task = loop.within(lambda: loop.create_task(main()))
    while not task.done():
        loop.within(loop.run_one)
    assert task.result() == [1, 1]
    loop.close()
    return loop.executed


def test_a_future_that_is_done_has_as_many_callbacks_as_a_coroutine() -> None:
    assert callbacks_of(done) == callbacks_of(value)


async def test_an_error_is_raised_or_returned() -> None:
    with pytest.raises(OSError, match="the disk"):
        await gather(value(), failed())
    first, second = await gather(value(), failed(), return_exceptions=True)
    assert (first, str(second)) == (1, "the disk")
    assert await gather() == []


async def test_an_error_that_a_cancelled_waiter_does_not_get_is_not_reported_as_forgotten() -> None:
    reported = list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    waiter = loop.create_task(_wait_for(failed(), loop.create_future()))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    del waiter
    gc.collect()
    assert reported == []


async def _wait_for(*futures: asyncio.Future[int]) -> list[int]:
    return await gather(*futures)


@pytest.mark.parametrize("path", sorted(QUORUM.glob("*.py")), ids=lambda path: path.name)
def test_what_a_recorded_quorum_runs_gathers_by_this_one(path: Path) -> None:
    used = [one for one in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(one, ast.Attribute)]
    assert "asyncio.gather" not in map(ast.unparse, used)
