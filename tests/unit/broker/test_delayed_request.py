"""A request that waits for several partitions is answered once, when the last one has its outcome."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from nilometer.broker.replicas.delayed_requests import (
    RESPONSE_ELEMENTS,
    CommitWait,
    DelayedRequest,
    DelayedResponse,
    DeleteOutcome,
    DeletionWaits,
    ProduceOutcome,
    Releases,
)
from nilometer.broker.turns import ELEMENTS_MAX, Turns
from nilometer.wire.errors import NONE, ErrorCode
from support.step_clock import StepClock

TIMEOUT_MS = 60_000


class Holder:
    def __init__(self) -> None:
        self.abandoned: list[tuple[int, int]] = []

    def abandon(self, ticket: int, offset: int) -> bool:
        self.abandoned.append((ticket, offset))
        return True


def test_a_wait_that_ends_before_the_next_one_begins_does_not_end_the_request() -> None:
    """The append to one partition may take the log directory of the one before offline."""

    async def scenario() -> None:
        finished: list[None] = []
        request = DelayedRequest(lambda: finished.append(None))
        first, second = ProduceOutcome(0), ProduceOutcome(1)
        request.wait_for(first).release(ErrorCode.not_leader_or_follower)
        assert not request.is_waiting
        later = request.wait_for(second)
        assert request.is_waiting
        request.start_timer(TIMEOUT_MS)
        assert finished == []
        later.release()
        later.release()
        assert finished == [None]
        assert (first.error, second.error) == (ErrorCode.not_leader_or_follower, ErrorCode.none)

    asyncio.run(scenario())


def test_a_request_is_answered_when_its_last_wait_has_ended() -> None:
    async def scenario() -> None:
        finished: list[None] = []
        request = DelayedRequest(lambda: finished.append(None))
        waits = [request.wait_for(ProduceOutcome(index)) for index in range(3)]
        request.start_timer(TIMEOUT_MS)
        for wait in waits:
            assert finished == []
            wait.release()
        assert finished == [None]

    asyncio.run(scenario())


def test_a_partition_keeps_no_wait_of_a_request_that_has_timed_out() -> None:
    """The high watermark may be held for hours: what waits for it would pile up."""

    async def scenario() -> None:
        finished, holder = asyncio.Event(), Holder()
        request = DelayedRequest(finished.set)
        released, held, flush = (ProduceOutcome(index) for index in range(3))
        first, second = request.wait_for(released), request.wait_for(held)
        first.ticket, second.ticket = (holder, 1, 10), (holder, 2, 20)
        request.wait_for(flush)
        request.start_timer(1)
        first.release()
        await finished.wait()
        assert holder.abandoned == [(2, 20)]
        timed_out = ErrorCode.request_timed_out
        assert (released.error, held.error, flush.error) == (ErrorCode.none, timed_out, timed_out)

    asyncio.run(scenario())


async def test_thousands_that_one_change_ends_are_answered_slice_by_slice() -> None:
    """A fetch of a follower ends all DeleteRecords that wait for its deletion."""
    turns, waits, responses = Turns(StepClock()), DeletionWaits(), list[asyncio.Future[object]]()
    for _ in range(200):
        waiting = DelayedResponse(turns, lambda: (b"",))
        waits.hold(7, DeleteOutcome(0), waiting.delayed)
        responses.append(cast("asyncio.Future[object]", waiting.response(TIMEOUT_MS)))
    waits.on_low_watermark(7)
    at_once = ELEMENTS_MAX // (RESPONSE_ELEMENTS + 1)
    assert sum(each.done() for each in responses) == at_once < 200
    for answered in range(at_once + 1, 201):
        await asyncio.sleep(0)
        assert sum(each.done() for each in responses) == answered


class Failing:
    def release(self, error: ErrorCode = NONE) -> None:
        raise ValueError("a defect")


async def test_a_release_that_fails_keeps_no_other_wait_from_its_end() -> None:
    failed, finished = list[object](), list[int]()
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failed.append(context["exception"])
    )
    waits = deque[tuple[CommitWait, ErrorCode]]([(Failing(), NONE)])
    for number in range(2):
        request = DelayedRequest(lambda number=number: finished.append(number))
        waits.append((request.wait_for(ProduceOutcome(0)), NONE))
        request.start_timer(TIMEOUT_MS)
    Releases(Turns(StepClock())).add(waits)
    for _ in range(2):
        await asyncio.sleep(0)
    assert finished == [0, 1]
    assert [str(error) for error in failed] == ["a defect"]


async def test_a_request_whose_client_has_gone_is_not_answered() -> None:
    responses: list[str] = []
    response = DelayedResponse(Turns(StepClock()), lambda: responses.append("made") or cast(Any, ()))
    wait = response.delayed.wait_for(ProduceOutcome(0))
    waiting = response.response(TIMEOUT_MS)
    assert isinstance(waiting, asyncio.Future)
    waiting.cancel()
    wait.release()
    for _ in range(3):
        await asyncio.sleep(0)
    assert responses == [] and waiting.cancelled()
