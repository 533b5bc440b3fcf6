"""After the failure of a broker another one loads many partitions of a coordinator's topic: one record after
the other, whatever each takes, and the event loop goes on in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker import coordinator_shell as shells
from nilometer.broker.coordinator_shell import CoordinatorShell, ShellState
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import SLICE_US
from nilometer.coordinators import Effects

LOGS, RECORDS, MEMBERS = 3, 6, 4


class World:
    """A clock, by which each record and each member take a slice."""

    def __init__(self) -> None:
        self.now_us = 0
        self.iteration = 0
        self.applied: list[tuple[int, str]] = []

    def apply(self, what: str) -> None:
        self.now_us += SLICE_US
        self.applied.append((self.iteration, what))

    async def count_iterations(self) -> None:
        while True:
            self.iteration += 1
            await asyncio.sleep(0)


class Shard:
    def __init__(self, world: World) -> None:
        self._world = world

    def replay(self, record: object) -> None:
        self._world.apply("a record")

    def on_loaded(self, *_: int) -> Generator[int, None, Effects[Any, Any, Any]]:
        for _member in range(MEMBERS):
            self._world.apply("a member")
            yield 1
        return Effects()

    def next_deadline_ms(self) -> None:
        return None


async def _read(*_: object) -> AsyncIterator[list[str]]:
    for _piece in range(2):
        yield ["a record"] * (RECORDS // 2)


async def test_the_logs_that_are_loaded_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "read_records", _read)
    world, tasks = World(), Tasks()
    clock = SimpleNamespace(
        monotonic_us=lambda: world.now_us, monotonic_ms=lambda: world.now_us // 1000, wall_ms=lambda: 0
    )
    partition = SimpleNamespace(
        leader_epoch=1,
        log=SimpleNamespace(log_start_offset=0, log_end_offset=RECORDS),
        replica=SimpleNamespace(high_watermark=RECORDS),
        hold_until_committed=None,
    )
    loaded = [
        CoordinatorShell[Any, Any, Any, Any](
            cast(Any, partition),
            cast(Any, SimpleNamespace(clock=clock)),
            tasks,
            cast(Any, SimpleNamespace(name="test", make_shard=lambda: Shard(world))),
            lambda _: None,
        )
        for _ in range(LOGS)
    ]
    counting = asyncio.ensure_future(world.count_iterations())
    for shell in loaded:
        shell.load()
    async with asyncio.timeout(60):
        while any(shell.state is not ShellState.ACTIVE for shell in loaded):  # noqa: ASYNC110
            await asyncio.sleep(0)
    counting.cancel()
    assert len(world.applied) == LOGS * (RECORDS + MEMBERS)
    iterations = [iteration for iteration, _ in world.applied]
    # The last step of one log's piece and the first of the next one's may be in one iteration.
    assert max(map(iterations.count, iterations)) <= 2
