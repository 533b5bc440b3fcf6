"""A broker that gets no block of producer ids says so soon, and keeps the block that comes later."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.tasks import Tasks
from nilometer.broker.transactions import producer_ids
from nilometer.broker.transactions.producer_ids import ProducerIds
from nilometer.cluster.controller.brokers import ProducerIdBlock
from nilometer.cluster.controller.decision import OK
from nilometer.wire.errors import ErrorCode, KafkaError
from support.eventually import becomes


class SilentLink:
    """To a controller that responds when ``block`` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.block: asyncio.Future[ProducerIdBlock] = asyncio.get_running_loop().create_future()

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        self.asked += 1
        return await self.block


async def test_who_asks_hears_soon_that_the_controller_does_not_respond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_ids, "BLOCK_WAIT_MS", 1)
    link = SilentLink()
    ids = ProducerIds(cast(ControllerLink, link), Tasks())
    for _ in range(3):
        with pytest.raises(KafkaError) as refused:
            await ids.next()
        assert refused.value.code is ErrorCode.coordinator_load_in_progress
    link.block.set_result(ProducerIdBlock(OK, 1_000, 2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [await ids.next(), await ids.next()] == [1_000, 1_001]
    assert link.asked == 1, "the block that came late was kept"


async def test_all_who_ask_hear_of_a_failure_and_the_next_asks_again() -> None:
    link = SilentLink()
    ids = ProducerIds(cast(ControllerLink, link), Tasks())
    waiting = [asyncio.create_task(ids.next()) for _ in range(3)]
    await asyncio.sleep(0)
    link.block.set_exception(KafkaError(ErrorCode.not_controller, "it has moved"))
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in failed] == [KafkaError] * 3
    link.block = asyncio.get_running_loop().create_future()
    link.block.set_result(ProducerIdBlock(OK, 5, 1))
    assert await ids.next() == 5
    assert link.asked == 2


async def test_a_broker_that_stops_waits_for_no_block() -> None:
    tasks, link = Tasks(), SilentLink()
    asking = asyncio.create_task(ProducerIds(cast(ControllerLink, link), tasks).next())
    await becomes(lambda: link.asked, "the controller is asked")
    await tasks.stop()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert link.block.cancelled()
