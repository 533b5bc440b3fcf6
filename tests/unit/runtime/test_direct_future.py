"""A direct future's listeners are called by what ends it, each once, whatever the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nilometer.runtime.direct_future import DirectFuture

END: dict[str, Callable[[DirectFuture[int]], object]] = {
    "result": lambda future: future.set_result(7),
    "error": lambda future: future.set_exception(ValueError("no")),
    "cancelled": lambda future: future.cancel(),
}


def outcome(future: asyncio.Future[int]) -> str:
    if future.cancelled():
        return "cancelled"
    return "result" if future.exception() is None else "error"


@pytest.mark.parametrize("kind", END)
def test_listeners_are_called_at_once_in_their_order(kind: str) -> None:
    async def scenario() -> None:
        called: list[str] = []
        future: DirectFuture[int] = DirectFuture()
        future.on_cancelled = lambda: called.append("on_cancelled")
        future.add_listener(lambda done: called.append(f"first {outcome(done)}"))
        future.add_listener(lambda done: called.append(f"second {outcome(done)}"))
        END[kind](future)
        expected = [f"first {kind}", f"second {kind}"]
        assert called == (["on_cancelled", *expected] if kind == "cancelled" else expected)
        future.add_listener(lambda done: called.append(f"late {outcome(done)}"))
        future.cancel()
        assert called[len(called) - 1] == f"late {kind}"
        assert len(called) == (4 if kind == "cancelled" else 3)

    asyncio.run(scenario())


def test_it_can_be_awaited_as_any_future() -> None:
    async def scenario() -> None:
        future: DirectFuture[int] = DirectFuture()
        asyncio.get_running_loop().call_soon(future.set_result, 7)
        assert await future == 7

    asyncio.run(scenario())
