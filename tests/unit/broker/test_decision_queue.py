"""The controller decides one thing after another: brokers come first, and clients take turns."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import cast

import pytest

from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_channel import ControllerChannel
from nilometer.broker.control.controller_link import ControllerLink, RequestingClient
from nilometer.broker.control.decision_log import Cause
from nilometer.broker.control.decision_queue import Client, DecisionQueue
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.runtime import Runtime
from nilometer.security.principal import Principal

GREEDY = Client("User:greedy", "10.0.0.1", "a")
SAME_HOST = Client("User:greedy", "10.0.0.1", "b")
OTHER = Client("User:other", "10.0.0.2", "a")


class Course:
    """Decisions that wait behind one, and the order in which they are made."""

    def __init__(self) -> None:
        self.queue = DecisionQueue()
        self.made: list[str] = []
        self.waiting: list[asyncio.Task[None]] = []

    async def decide(self, name: str, client: Client | None) -> None:
        async with self.queue.turn(client):
            await asyncio.sleep(0)
            self.made.append(name)

    async def wait(self, name: str, client: Client | None) -> asyncio.Task[None]:
        task = asyncio.ensure_future(self.decide(name, client))
        self.waiting.append(task)
        await asyncio.sleep(0)
        return task


async def test_one_client_after_another_and_brokers_before_all() -> None:
    course = Course()
    async with course.queue.turn(None):
        for number in range(3):
            await course.wait(f"greedy {number}", GREEDY)
        for number in range(2):
            await course.wait(f"same host {number}", SAME_HOST)
        await course.wait("other", OTHER)
        await course.wait("broker", None)
        assert course.made == []
    await asyncio.gather(*course.waiting)
    assert course.made == [
        "broker",
        "greedy 0",
        "other",
        "same host 0",
        "greedy 1",
        "same host 1",
        "greedy 2",
    ]
    assert await asyncio.wait_for(course.decide("later", OTHER), 10) is None, "the queue is empty again"


async def test_several_have_a_turn_at_once_but_no_two_of_one_client() -> None:
    course = Course()
    course.queue = DecisionQueue(at_once=2)
    async with course.queue.turn(GREEDY):
        for number in range(2):
            await course.wait(f"greedy {number}", GREEDY)
        await course.wait("same host", SAME_HOST)
        await course.wait("other", OTHER)
        await course.wait("broker", None)
        await asyncio.wait(course.waiting[3:])
        assert course.made == ["other", "broker"]
    await asyncio.gather(*course.waiting)
    assert course.made == ["other", "broker", "greedy 0", "same host", "greedy 1"]
    await asyncio.wait_for(asyncio.gather(course.decide("a", OTHER), course.decide("b", GREEDY)), 10)


async def test_a_turn_that_takes_long_is_passed_on_to_other_clients() -> None:
    course = Course()
    course.queue = DecisionQueue(at_once=1, passed_on_max=1)
    async with course.queue.turn(GREEDY):
        same = await course.wait("same host", SAME_HOST)
        await course.wait("other", OTHER)
        course.queue.pass_on(GREEDY)
        await asyncio.wait_for(course.waiting[1], 10)
        assert course.made == ["other"]
        async with course.queue.turn(OTHER):
            course.queue.pass_on(OTHER)  # one too many
            await course.wait("broker", None)
            assert course.made == ["other"]
        await asyncio.wait_for(course.waiting[2], 10)
        assert not same.done(), "the client's turn goes on"
    await asyncio.gather(*course.waiting)
    assert course.made == ["other", "broker", "same host"]
    async with course.queue.turn(OTHER):
        await course.wait("later", GREEDY)
        assert "later" not in course.made, "there is one turn again"
    await asyncio.gather(*course.waiting)


async def test_who_does_not_wait_any_more_takes_no_turn() -> None:
    course = Course()
    async with course.queue.turn(GREEDY):
        first = await course.wait("first", GREEDY)
        second = await course.wait("second", OTHER)
        await course.wait("third", None)
        first.cancel()
        await asyncio.sleep(0)
    second.cancel()  # the third has its turn already
    await asyncio.gather(*course.waiting, return_exceptions=True)
    assert course.made == ["third"]
    await asyncio.wait_for(course.decide("later", GREEDY), 10)


class Text(str):
    """A client id that tells when it is freed."""


@pytest.mark.parametrize("others", [[], [OTHER, SAME_HOST]], ids=["alone", "beside others"])
async def test_nothing_is_kept_of_who_does_not_wait_any_more(others: list[Client]) -> None:
    """A client id may have 32 kB, and a decision may take seconds."""
    course = Course()
    client_id = Text("gone")
    is_kept = weakref.ref(client_id)
    async with course.queue.turn(None):
        for number, other in enumerate(others):
            await course.wait(f"other {number}", other)
        await course.wait("gone", Client("User:greedy", "10.0.0.1", client_id))
        del client_id
        gone = course.waiting.pop()
        gone.cancel()
        await asyncio.wait([gone])
        del gone
        gc.collect()
        assert is_kept() is None
    await asyncio.gather(*course.waiting)
    assert course.made == [f"other {number}" for number in range(len(others))]


async def test_a_turn_that_comes_with_a_cancellation_is_passed_on() -> None:
    course = Course()
    async with course.queue.turn(GREEDY):
        chosen = await course.wait("chosen", None)
        await course.wait("next", OTHER)
    chosen.cancel()
    await asyncio.gather(*course.waiting, return_exceptions=True)
    assert course.made == ["next"]


@pytest.mark.parametrize("is_asked_for", [True, False])
async def test_topics_that_a_client_needs_are_created_in_its_turn(is_asked_for: bool) -> None:
    """Those that the broker needs come first, as all that brokers ask for."""
    lines: list[Client | None] = []

    async def decide(made: object, cause: Cause, client: Client | None = None) -> tuple[()]:
        lines.append(client)
        return ()

    controller = SimpleNamespace(is_active=True, decide=decide)
    link = ControllerLink(
        1, cast(Controller, controller), cast(ControllerChannel, None), cast(MetadataLog, None)
    )
    context = RequestContext(principal=Principal("User", "greedy"), client_address="10.0.0.1")
    await link.create_topics(
        [], Runtime.system().entropy, RequestingClient("a", context) if is_asked_for else None
    )
    assert lines == [GREEDY if is_asked_for else None]
