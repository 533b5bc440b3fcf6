"""In which order what takes long is computed for groups, on other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from nilometer.broker.groups.group_coordinator import WEIGHT_OF_A_PLACE, Computations
from nilometer.groups.turn import AssignmentNeeded, Computation, MatchesNeeded

NO_NAMES: frozenset[str] = frozenset()


async def settled() -> None:
    """Let all go on that can: no time passes here."""
    for _ in range(50):
        await asyncio.sleep(0)


class Thread:
    """Computes when it is told to; asserts that each kind is computed alone."""

    def __init__(self) -> None:
        self.begun: list[object] = []
        self._ended: dict[object, asyncio.Event] = {}

    async def offload(self, compute: Callable[[], object]) -> object:
        name = compute()
        self.begun.append(name)
        await self._ended.setdefault(name, asyncio.Event()).wait()
        return name

    async def end(self, name: str) -> None:
        self._ended[name].set()
        await settled()


def match(name: str, weight: int) -> MatchesNeeded:
    return MatchesNeeded("g", {name: NO_NAMES}, NO_NAMES, lambda: cast(Any, name), weight)


def assignment(name: str, weight: int = 0) -> AssignmentNeeded:
    return AssignmentNeeded(name, 1, lambda: cast(Any, name), weight)


class World:
    def __init__(self) -> None:
        self.thread = Thread()
        self.computations = Computations(cast(Any, self.thread))

    async def need(self, needed: Computation, *, is_wanted: bool = True) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(self.computations.run(needed, lambda: is_wanted))
        await settled()
        return task


def test_lighter_expressions_are_matched_first_and_equal_ones_in_order() -> None:
    async def scenario() -> None:
        world = World()
        for name, weight in (("h1", 9), ("h2", 9), ("h3", 9), ("l1", 1), ("l2", 1)):
            await world.need(match(name, weight))
        for name in ("h1", "l1", "l2", "h2", "h3"):
            assert world.thread.begun[-1] == name
            await world.thread.end(name)
        assert len(world.thread.begun) == 5

    asyncio.run(scenario())


def test_small_assignments_go_before_a_large_one_but_only_some() -> None:
    async def scenario() -> None:
        world = World()
        await world.need(assignment("first"))
        await world.need(assignment("large", 2 * WEIGHT_OF_A_PLACE + 1))
        for name in ("s1", "s2", "s3"):
            await world.need(assignment(name))
        for name in ("first", "s1", "large", "s2", "s3"):
            assert world.thread.begun[-1] == name
            await world.thread.end(name)

    asyncio.run(scenario())


def test_no_assignment_waits_for_an_expression() -> None:
    async def scenario() -> None:
        world = World()
        await world.need(match("slow", 9))
        await world.need(assignment("g1"))
        await world.need(assignment("g2"))
        assert world.thread.begun == ["slow", "g1"]
        await world.thread.end("g1")
        assert world.thread.begun == ["slow", "g1", "g2"]

    asyncio.run(scenario())


def test_what_is_not_wanted_or_given_up_holds_up_no_other() -> None:
    async def scenario() -> None:
        world = World()
        first = await world.need(assignment("g1"))
        unwanted = await world.need(assignment("g2"), is_wanted=False)
        given_up = await world.need(assignment("g3"))
        last = await world.need(assignment("g4"))
        given_up.cancel()
        await world.thread.end("g1")
        assert world.thread.begun == ["g1", "g4"]
        assert (await first).result() == "g1"
        assert await unwanted is None
        await world.thread.end("g4")
        assert (await last).result() == "g4"

    asyncio.run(scenario())
