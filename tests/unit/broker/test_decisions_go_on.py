"""A decision of the controller is never made without an earlier one that is still on its way to the store."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from nilometer.broker.control.controller import Controller
from nilometer.broker.control.decision_log import Cause
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import ELEMENTS_MAX, Turns
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.controller.decision import Decision, Steps
from nilometer.cluster.entries import encode_entry, entries_of
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ProducerIdsAllocated
from nilometer.coordination.store import CoordinationStore, Entry, OutcomeUnknown, StoreUnavailable
from nilometer.identifiers import BrokerEpoch, BrokerId, Incarnation
from nilometer.runtime.runtime import SeededEntropy
from support.step_clock import StepClock

BLOCK = 1000


class RemoteStore:
    """As ZooKeeper: what was sent is applied later, whether or not a client still waits for the answer."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.hidden: list[Entry] = []
        """Applied, and not yet shown by the server that is read from."""
        self.sent = asyncio.Event()
        self.is_prompt = True
        self.applies = asyncio.Event()
        self.next_append_is_unknown = False
        self.is_in_reach = True
        self._sending: set[asyncio.Task[bool]] = set()

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        if not self.is_in_reach:
            self.is_in_reach = True
            raise StoreUnavailable("no server is in reach")
        return self.entries[from_number : from_number + limit]

    async def append(self, number: int, data: bytes) -> bool:
        if self.next_append_is_unknown:
            self.next_append_is_unknown = self.is_in_reach = False
            self.hidden.append(Entry(number, data))
            raise OutcomeUnknown("the connection was lost")
        sending = asyncio.create_task(self._apply(number, data))
        self._sending.add(sending)
        self.sent.set()
        return await asyncio.shield(sending)

    async def _apply(self, number: int, data: bytes) -> bool:
        if not self.is_prompt:
            await self.applies.wait()
        self.entries += self.hidden
        self.hidden.clear()
        if number != len(self.entries):
            return False
        self.entries.append(Entry(number, data))
        return True


class ControllerUnderTest:
    """An active controller over a remote store."""

    def __init__(self) -> None:
        self.store = RemoteStore()
        self.metadata = MetadataLog(cast(CoordinationStore, self.store))
        self.tasks = Tasks()
        self.has_begun = asyncio.Event()
        self.controller = Controller(
            1, cast(CoordinationStore, self.store), self.metadata, self.tasks, Turns(StepClock())
        )

    async def begin(self) -> None:
        entropy = SeededEntropy(random.Random(1))
        await self.controller.become_controller(
            "7",
            lambda image: controllership_entry(image, BrokerId(1), Incarnation("7"), entropy),
            Cause("the cluster is new"),
        )

    def allocate_in_steps(self, broker_id: int) -> Coroutine[Any, Any, int]:
        def decide(image: ClusterImage) -> Steps[int]:
            decision = self.allocation(image, broker_id)
            self.has_begun.set()
            yield ELEMENTS_MAX
            return decision

        return self.controller.decide(decide, Cause("a test wants it"))

    def allocate(self, broker_id: int) -> Coroutine[Any, Any, int]:
        """A block of producer ids for that broker; its first."""

        return self.controller.decide(
            lambda image: self.allocation(image, broker_id), Cause("a test wants it")
        )

    @staticmethod
    def allocation(image: ClusterImage, broker_id: int) -> Decision[int]:
        first = image.next_producer_id
        record = ProducerIdsAllocated(
            broker_id=BrokerId(broker_id), broker_epoch=BrokerEpoch(1), next_producer_id=first + BLOCK
        )
        return Decision(((record,),), first)


def test_a_requester_that_is_gone_ends_no_decision() -> None:
    async def play() -> None:
        controller = ControllerUnderTest()
        await controller.begin()
        store = controller.store
        store.is_prompt = False
        store.sent.clear()
        asking = asyncio.create_task(controller.allocate(2))
        await store.sent.wait()
        asking.cancel()  # as the connection does when its client is gone
        await asyncio.wait([asking])
        assert asking.cancelled()
        others = asyncio.create_task(controller.allocate(3))
        await asyncio.sleep(0)
        store.applies.set()
        assert await others == BLOCK, "decided without the block that broker 2 was given"
        assert controller.metadata.image.next_producer_id == 2 * BLOCK
        await controller.tasks.stop()

    asyncio.run(play())


def test_a_decision_in_steps_is_made_again_if_the_image_changes_between_two() -> None:
    async def play() -> None:
        controller = ControllerUnderTest()
        await controller.begin()
        store, metadata = controller.store, controller.metadata
        in_steps = asyncio.create_task(controller.allocate_in_steps(2))
        await controller.has_begun.wait()
        decision = controller.allocation(metadata.image, 3)
        [entry] = entries_of(decision.units, metadata.image.controllership)
        store.entries.append(Entry(len(store.entries), encode_entry(entry)))
        await metadata.catch_up()
        assert not in_steps.done()
        assert await in_steps == BLOCK, "decided without the block that broker 3 was given"
        await controller.tasks.stop()

    asyncio.run(play())


def test_a_decision_that_fails_when_its_requester_is_gone_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    unheard: list[object] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        controller = ControllerUnderTest()
        await controller.begin()
        controller.store.next_append_is_unknown = True
        asking = asyncio.create_task(controller.allocate(2))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        for _ in range(1_000):  # the controller pauses after an append of unknown outcome
            if "has disconnected failed" in caplog.text:
                break
            await asyncio.sleep(0.01)
        await controller.tasks.stop()

    asyncio.run(play())
    gc.collect()
    assert caplog.text.count("A request whose client has disconnected failed: no server is in reach") == 1
    assert not unheard, "a task's exception was never retrieved"


def test_a_decision_overtaken_by_an_append_of_unknown_outcome_is_made_again() -> None:
    async def play() -> None:
        controller = ControllerUnderTest()
        await controller.begin()
        controller.store.next_append_is_unknown = True
        with pytest.raises(StoreUnavailable):
            await controller.allocate(2)
        assert await controller.allocate(3) == BLOCK, "decided without the block that broker 2 was given"
        assert controller.metadata.image.next_producer_id == 2 * BLOCK
        await controller.tasks.stop()

    asyncio.run(play())


async def test_a_decision_that_waits_ends_with_its_requester_and_one_that_has_begun_does_not() -> None:
    controller = ControllerUnderTest()
    await controller.begin()
    controller.store.is_prompt = False
    controller.store.sent.clear()
    begun = asyncio.create_task(controller.allocate(2))
    await controller.store.sent.wait()
    number = len(controller.tasks._tasks)
    waiting = asyncio.create_task(controller.allocate(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(controller.tasks._tasks) == number + 1
    for requester in (waiting, begun):
        requester.cancel()
        await asyncio.wait([requester])
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(controller.tasks._tasks) == number, "nothing is kept of what was not begun"
    controller.store.applies.set()
    assert await controller.allocate(2) == BLOCK, "the one that had begun was made, the other was not"
    await controller.tasks.stop()


async def test_a_decision_counts_that_another_controller_follows_at_once() -> None:
    controller = ControllerUnderTest()
    await controller.begin()
    store, entropy = controller.store, SeededEntropy(random.Random(2))
    append = store.append

    async def append_and_lose(number: int, data: bytes) -> bool:
        applied = await append(number, data)
        image = controller.metadata.image  # as of before: both entries are folded together
        other = controllership_entry(image, BrokerId(2), Incarnation("8"), entropy)
        store.entries.append(Entry(len(store.entries), encode_entry(other)))
        return applied

    store.append = append_and_lose
    assert await controller.allocate(2) == 0, "it was made: who repeats it at the next controller is refused"
    assert not controller.controller.is_active
    assert controller.metadata.image.next_producer_id == BLOCK
    await controller.tasks.stop()
