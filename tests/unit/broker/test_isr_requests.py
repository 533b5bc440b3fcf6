"""Requests for other ISRs are repeated until they are answered; the log says once why they are not."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any, cast

import pytest

from nilometer.broker.replicas.isr_changes import NO_ANSWER, IsrRequests
from nilometer.identifiers import TopicId, TopicIdPartition
from nilometer.replication.isr import AlterPartition, AlterPartitionResponse
from nilometer.wire.errors import ErrorCode, KafkaError

PARTITION = TopicIdPartition(TopicId(uuid.UUID(int=7)), 0)
REQUEST = AlterPartition(1, *cast("tuple[Any, Any, Any, Any]", (1, 1, 1, 1)), ())
ANSWERED = AlterPartitionResponse()


class Link:
    """The controller is not reached at first."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)

    async def alter_partitions(self, *_: object) -> dict[TopicIdPartition, AlterPartitionResponse]:
        if self.errors:
            raise KafkaError(ErrorCode.network_exception, self.errors.pop(0))
        return {PARTITION: ANSWERED}


class Services:
    def service(self, _name: str, work: Any) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)


async def test_one_line_for_each_reason_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nilometer.broker.replicas")
    answers: asyncio.Queue[AlterPartitionResponse] = asyncio.Queue()
    requests = IsrRequests(cast(Any, Link("refused", "refused", "reset", "refused")), cast(Any, Services()))

    def on_answer(request: AlterPartition, answer: AlterPartitionResponse) -> None:
        answers.put_nowait(answer)
        if answer is NO_ANSWER:
            requests.send(PARTITION, request, on_answer)

    requests.send(PARTITION, REQUEST, on_answer)
    got = [await asyncio.wait_for(answers.get(), 30) for _ in range(5)]
    assert got == [NO_ANSWER] * 4 + [ANSWERED]
    said = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert said == ["refused", "reset", "refused", "AlterPartition is answered again"]
