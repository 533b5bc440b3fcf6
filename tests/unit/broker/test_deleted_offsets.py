"""OffsetDelete: a client deletes offsets only of topics that it may read, and of partitions that exist."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import Request
from nilometer.broker.groups.group_offsets import handle_offset_delete
from nilometer.broker.request_context import RequestContext
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    OffsetDelete,
    OffsetDeletePartitionResult,
    OffsetDeleteResult,
    OffsetDeleteTopic,
    OffsetDeleteTopicResult,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import RequestHeader, api, decode_response

TOPICS = ("mine", "theirs", "gone")


def test_offsets_of_topics_that_the_client_may_not_read_stay() -> None:
    codec = api(ApiKey.OFFSET_DELETE, 0)
    topics = [
        codec.make_request(
            "OffsetDeleteRequestTopic",
            name=name,
            partitions=tuple(
                codec.make_request("OffsetDeleteRequestPartition", partition_index=index) for index in (0, 5)
            ),
        )
        for name in TOPICS
    ]
    asked: list[OffsetDelete] = []

    def allows(operation: Operation, kind: ResourceType, name: str, *, report: bool = True) -> bool:
        assert (operation, kind) == (Operation.READ, ResourceType.TOPIC)
        return name != "theirs"

    def ask_group(
        _request: object, operation: Operation, delete: OffsetDelete, _of: object, respond: Any
    ) -> Any:
        assert operation is Operation.DELETE
        asked.append(delete)
        done = OffsetDeletePartitionResult(0, ErrorCode.none)
        return respond(OffsetDeleteResult(ErrorCode.none, (OffsetDeleteTopicResult("mine", (done,)),)))

    audited: list[object] = []
    authorizer: Any = SimpleNamespace(
        access=lambda *_: SimpleNamespace(is_full=False, allows=allows),
        audit=SimpleNamespace(changed=lambda _context, _name, changes: audited.extend(changes)),
    )
    topic = SimpleNamespace(partition=lambda index: object() if index == 0 else None)
    parts = SimpleNamespace(
        rights=Rights(authorizer, accepts_unproved_brokers=False),
        groups=SimpleNamespace(ask_group=ask_group),
        metadata=SimpleNamespace(image=SimpleNamespace(topic=lambda name: None if name == "gone" else topic)),
    )
    header = RequestHeader(ApiKey.OFFSET_DELETE, 0, 1, "test", 0)
    body = codec.request(group_id="g", topics=tuple(topics))
    request = Request(header, body, codec, cast(Any, None), RequestContext())
    frame = cast("list[bytes]", handle_offset_delete(cast(Any, parts), request))
    answered = decode_response(ApiKey.OFFSET_DELETE, 0, b"".join(map(bytes, frame))[4:])[1]
    assert asked == [OffsetDelete("g", (OffsetDeleteTopic("mine", (0,)),))]
    assert audited == [{"group_id": "g", "topic": "mine", "partitions": [0]}]
    unknown, denied = ErrorCode.unknown_topic_or_partition, ErrorCode.topic_authorization_failed
    assert {
        topic.name: {each.partition_index: each.error_code for each in topic.partitions}
        for topic in answered.topics
    } == {
        "mine": {0: ErrorCode.none, 5: unknown},
        "theirs": {0: denied, 5: denied},
        "gone": {0: unknown, 5: unknown},
    }
