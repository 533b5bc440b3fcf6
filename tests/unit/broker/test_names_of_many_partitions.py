"""One long name that counts for many partitions in a request is not repeated for each of them."""

from __future__ import annotations

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api import replicas
from nilometer.broker.api.spec import Request
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import EncodedResponse, whole
from nilometer.broker.sharing.share_groups import PARTITIONS_MAX, handle_describe_partitions
from nilometer.broker.turns import Turns
from nilometer.cluster.states import NAME_LENGTH_MAX
from nilometer.runtime.runtime import SystemClock
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message, RequestHeader, api, decode_response
from nilometer.wire.own_apis import SharePartitionsOfTopic
from support.brokers.fake_rights import rights_of

LONG = "n" * 32_000


def request_of(codec: Api, body: Message) -> Request:
    header = RequestHeader(codec.key, codec.version, 1, "test", 0)
    return Request(header, body, codec, cast(Any, None), RequestContext())


@pytest.mark.parametrize(
    ("topics", "refused"),
    [
        ([("t", PARTITIONS_MAX)], False),
        ([("t", PARTITIONS_MAX + 1)], True),
        ([(LONG, 500_000)], True),
        ([("n" * NAME_LENGTH_MAX, 2)], False),
        ([("n" * (NAME_LENGTH_MAX + 1), 1)], True),
        ([("t", PARTITIONS_MAX // 2), ("u", PARTITIONS_MAX // 2 + 1)], True),
        ([(f"t{index}", 0) for index in range(PARTITIONS_MAX + 1)], True),
    ],
)
def test_share_partitions_are_described_of_a_request_that_names_few(
    topics: list[tuple[str, int]], refused: bool
) -> None:
    def unknown(topic: str, index: int) -> Any:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, topic)

    parts = SimpleNamespace(
        groups=SimpleNamespace(serves=lambda _: True),
        rights=rights_of(),
        replicas=SimpleNamespace(partition=unknown),
    )
    codec = api(NilometerApiKey.DESCRIBE_SHARE_PARTITIONS, 0)
    asked = tuple(SharePartitionsOfTopic(topic=name, partitions=(0,) * count) for name, count in topics)
    request = request_of(codec, codec.request(group_id="g", topics=asked))
    response = handle_describe_partitions(cast(Any, parts), request)
    assert response is not None
    decoded = decode_response(codec.key, 0, whole(response)[4:])[1]
    assert (decoded.error_code == ErrorCode.invalid_request) is refused
    assert len(decoded.partitions) == (0 if refused else sum(count for _, count in topics))


def test_of_moves_that_are_refused_no_text_is_kept_for_each_partition() -> None:
    def refuse(topic: str, index: int, path: str) -> None:
        raise KafkaError(ErrorCode.log_dir_not_found, f"there is no {path}")

    parts = SimpleNamespace(
        rights=rights_of(), turns=Turns(SystemClock()), replica_moves=SimpleNamespace(alter=refuse)
    )
    codec = api(ApiKey.ALTER_REPLICA_LOG_DIRS, 2)
    topic = codec.make_request("AlterReplicaLogDirTopic", name=LONG, partitions=tuple(range(2_000)))
    directory = codec.make_request("AlterReplicaLogDir", path=LONG, topics=(topic,))
    request = request_of(codec, codec.request(dirs=(directory,)))
    tracemalloc.start()
    try:
        response = asyncio.run(replicas._alter_log_dirs(cast(Any, parts), request))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(response, EncodedResponse | tuple)
    assert peak < 5_000_000, "2,000 texts with both names would be 128 MB"
