"""Thousands of Produces may wait for the same partitions: a change of the leader, or a fetch of a follower,
ends all of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.produce import _Waiting
from nilometer.broker.replicas.delayed_requests import PartitionWait, ProduceOutcome
from nilometer.broker.turns import ELEMENTS_MAX, Turns
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import RequestHeader
from nilometer.wire.produce import ProducedTopic
from support.step_clock import StepClock

PARTITIONS = 60
REQUESTS = 40


async def test_their_responses_are_made_slice_by_slice() -> None:
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "client", 0)
    request = cast(Any, SimpleNamespace(header=header, context=SimpleNamespace(listener="PLAINTEXT")))
    parts = cast(Any, SimpleNamespace(turns=Turns(StepClock())))
    waits: list[list[PartitionWait]] = []
    responses: list[asyncio.Future[Any]] = []
    for _ in range(REQUESTS):
        topic = ProducedTopic("t", [ProduceOutcome(index) for index in range(PARTITIONS)])
        waiting = _Waiting(parts, request, [topic])
        waits.append([cast(PartitionWait, waiting.wait_for(cast(Any, one))) for one in topic.partitions])
        responses.append(cast("asyncio.Future[Any]", waiting.response(60_000)))
    for of_partition in zip(*waits, strict=True):
        for wait in of_partition:
            wait.release(ErrorCode.request_timed_out)
    at_once = ELEMENTS_MAX // PARTITIONS
    assert [each.done() for each in responses] == [number < at_once for number in range(REQUESTS)]
    for answered in range(at_once + 1, REQUESTS + 1):
        await asyncio.sleep(0)
        assert sum(each.done() for each in responses) == answered
    assert len({bytes(each.result()[0]) for each in responses}) == 1
