"""AddPartitionsToTxn: thousands of partitions of one transaction are added in several turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api.spec import Request
from nilometer.broker.authorizer import Access
from nilometer.broker.responses import wait_whole
from nilometer.broker.tasks import Tasks
from nilometer.broker.transactions import transaction_coordinator
from nilometer.broker.turns import ELEMENTS_MAX, Turns
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsResult,
    VerifyPartitions,
    VerifyPartitionsResult,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of
from support.step_clock import StepClock

KEY = ApiKey.ADD_PARTITIONS_TO_TXN
COUNT = 4 * ELEMENTS_MAX
"""Partitions that the topic ``t`` has."""
OK, NOT_ATTEMPTED = ErrorCode.none, ErrorCode.operation_not_attempted
UNKNOWN, DENIED = ErrorCode.unknown_topic_or_partition, ErrorCode.topic_authorization_failed


class Cluster:
    """A broker that leads the transaction coordinator, and has topic ``t``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, access: Any = None) -> None:
        self.turns = Turns(StepClock())
        self.asked: list[AddPartitions | VerifyPartitions] = []
        self.looked_up = 0
        self.longest = 0
        """The most partitions that were looked up in one turn."""
        self.parts: Any = SimpleNamespace(
            turns=self.turns,
            tasks=Tasks(turns=self.turns),
            metadata=SimpleNamespace(image=SimpleNamespace(topic=lambda name: self if name == "t" else None)),
            rights=rights_of(access or Access()),
            transactions=SimpleNamespace(answer=self._answer, ask=self._ask),
        )

    def partition(self, index: int) -> object | None:
        self.looked_up += 1
        return object() if index < COUNT else None

    def _reply(self, asked: AddPartitions | VerifyPartitions) -> AddPartitionsResult | VerifyPartitionsResult:
        self.asked.append(asked)
        if isinstance(asked, AddPartitions):
            return AddPartitionsResult(OK)
        return VerifyPartitionsResult(tuple((each, OK) for each in asked.partitions))

    async def _answer(self, _key: str, asked: AddPartitions | VerifyPartitions) -> object:
        return self._reply(asked)

    def _ask(self, asked: Sequence[tuple[str, Any]], respond: Any) -> object:
        return respond([self._reply(each) for _, each in asked])

    async def add(
        self, partitions: Sequence[int], version: int = 3, topic: str = "t", **of: Any
    ) -> list[Any]:
        """Return the partitions of the response: indexes and errors."""
        codec = api(KEY, version)
        topics = (codec.make_request("AddPartitionsToTxnTopic", name=topic, partitions=tuple(partitions)),)
        fields = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 3}
        if version < transaction_coordinator.FIRST_OF_BROKERS:
            body = codec.request(
                **{f"v3_and_below_{name}": each for name, each in fields.items()}, v3_and_below_topics=topics
            )
        else:
            asked = codec.make_request("AddPartitionsToTxnTransaction", **fields, **of, topics=topics)
            body = codec.request(transactions=(asked,))
        header = RequestHeader(KEY, version, 1, "test", 0)
        request = Request(header, body, codec, cast(Any, None), cast(Any, None))
        reply = transaction_coordinator.handle_add_partitions(self.parts, request)
        if isinstance(reply, asyncio.Future):
            reply = await self._watched(reply)
        assert reply is not None
        response = decode_response(KEY, version, (await wait_whole(reply, self.turns))[4:])[1]
        results = (
            response.results_by_topic_v3_and_below
            if version < transaction_coordinator.FIRST_OF_BROKERS
            else response.results_by_transaction[0].topic_results
        )
        return [
            (each.partition_index, each.partition_error_code)
            for one in results
            for each in one.results_by_partition
        ]

    async def _watched(self, reply: asyncio.Future[Any]) -> Any:
        while not reply.done():
            before = self.looked_up
            await asyncio.sleep(0)
            self.longest = max(self.longest, self.looked_up - before)
        return reply.result()


VERSIONS = pytest.mark.parametrize(
    ("version", "of"), [(3, {}), (5, {"verify_only": False}), (5, {"verify_only": True})]
)


@VERSIONS
async def test_thousands_of_partitions_are_checked_in_several_turns(
    monkeypatch: pytest.MonkeyPatch, version: int, of: dict[str, bool]
) -> None:
    cluster = Cluster(monkeypatch)
    added = await cluster.add(range(COUNT), version, **of)
    assert added == [(index, OK) for index in range(COUNT)]
    [asked] = cluster.asked
    assert len(asked.partitions) == cluster.looked_up == COUNT
    assert 0 < cluster.longest <= ELEMENTS_MAX


@VERSIONS
@pytest.mark.parametrize("count", [3, 3_000], ids=["few", "many"])
async def test_none_is_added_if_one_is_unknown(
    monkeypatch: pytest.MonkeyPatch, version: int, of: dict[str, bool], count: int
) -> None:
    cluster = Cluster(monkeypatch)
    added = await cluster.add((*range(count), COUNT + 1), version, **of)
    assert added == [*((index, NOT_ATTEMPTED) for index in range(count)), (COUNT + 1, UNKNOWN)]
    assert cluster.asked == []


@pytest.mark.parametrize("count", [0, 3, 3_000], ids=["none", "few", "many"])
async def test_what_a_client_may_not_write_to_is_not_added(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    allows = lambda _operation, _kind, name: name == "x"  # noqa: E731
    cluster = Cluster(monkeypatch, SimpleNamespace(is_full=False, allows=allows))
    assert await cluster.add(range(count)) == [(index, DENIED) for index in range(count)]
    assert len(cluster.asked) == (count == 0)
    none = SimpleNamespace(is_full=False, allows=lambda *_: False)
    cluster = Cluster(monkeypatch, none)
    denied = ErrorCode.transactional_id_authorization_failed
    assert await cluster.add(range(count)) == [(index, denied) for index in range(count)]
    assert cluster.asked == []
