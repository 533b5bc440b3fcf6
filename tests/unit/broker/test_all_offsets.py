"""OffsetFetch for all topics of a group: by names, and from version 10 on by ids."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.api.spec import Request
from nilometer.broker.groups.group_offsets import handle_offset_fetch
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import wait_whole
from nilometer.broker.turns import Turns
from nilometer.groups.requests import OffsetFetchPartitionResult, OffsetFetchResult, OffsetFetchTopicResult
from nilometer.runtime.runtime import SystemClock
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of
from support.brokers.listings_at_once import ListingsAtOnce

KEY = ApiKey.OFFSET_FETCH
TOPIC_ID = uuid.UUID(int=7)


async def fetch_all(version: int) -> list[Any]:
    """Return the topics in the response about a group that has an offset in the topic ``t``, and one in a
    topic that was deleted."""

    async def ask_groups_in_turns(*_: object) -> list[OffsetFetchResult]:
        offsets = (OffsetFetchPartitionResult(0, 5),)
        topics = [OffsetFetchTopicResult(name, offsets) for name in ("t", "deleted")]
        return [OffsetFetchResult("g", topics=topics)]

    topics = {"t": SimpleNamespace(uuid=TOPIC_ID)}
    turns = Turns(SystemClock())
    parts = SimpleNamespace(
        listings=ListingsAtOnce(turns),
        turns=turns,
        metadata=SimpleNamespace(image=SimpleNamespace(topic=topics.get)),
        groups=SimpleNamespace(ask_groups_in_turns=ask_groups_in_turns),
        rights=rights_of(),
    )
    codec = api(KEY, version)
    group = codec.make_request("OffsetFetchRequestGroup", group_id="g", topics=None)
    header = RequestHeader(KEY, version, 1, "test", 0)
    body = codec.request(groups=(group,), require_stable=False)
    request = Request(header, body, codec, cast(Any, None), RequestContext())
    response = await cast("asyncio.Future[Any]", handle_offset_fetch(cast(Any, parts), request))
    frame = await wait_whole(response, parts.turns)
    (answered,) = decode_response(KEY, version, frame[4:])[1].groups
    return list(answered.topics)


async def test_topics_are_named_before_version_10() -> None:
    assert [topic.name for topic in await fetch_all(9)] == ["t", "deleted"]


async def test_topics_have_ids_since_version_10_and_those_that_were_deleted_are_left_out() -> None:
    (topic,) = await fetch_all(10)
    assert topic.topic_id == TOPIC_ID
    assert [(one.partition_index, one.committed_offset) for one in topic.partitions] == [(0, 5)]
