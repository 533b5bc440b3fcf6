"""The hand-written Fetch and Produce messages, read back by kio's decoder in every version."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest

from nilometer.wire import fetch, produce
from nilometer.wire.errors import ErrorCode
from nilometer.wire.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchedPartition,
    FetchedTopic,
    SnapshotId,
    encode_fetch_response,
)
from nilometer.wire.frames import COPY_BELOW
from nilometer.wire.messages import (
    ApiKey,
    api,
    decode_request,
    decode_response,
    encode_response,
    milliseconds,
)
from nilometer.wire.primitives import LeaderIdAndEpoch, NodeEndpoint
from nilometer.wire.produce import (
    ProducedPartition,
    ProducedTopic,
    RecordError,
    encode_produce_response,
)
from support.wire.produce_requests import encode_produce_request

TOPIC_ID = UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
ENDPOINTS = (NodeEndpoint(1, "localhost", 9092), NodeEndpoint(2, "löwe", 19092, "rack-b"))
FETCH_VERSIONS = range(fetch.RESPONSE_VERSION_MIN, fetch.RESPONSE_VERSION_MAX + 1)
PRODUCE_VERSIONS = range(produce.RESPONSE_VERSION_MIN, produce.RESPONSE_VERSION_MAX + 1)


def topic_name(version: int) -> str | UUID:
    return TOPIC_ID if version >= 13 else "topic-ä"


def fetched_partitions() -> list[FetchedPartition]:
    big, small = b"\x01" * COPY_BELOW, b"\x02" * 100
    return [
        FetchedPartition(0, 0, 10, 9, 1, (small,)),
        FetchedPartition(1, 0, 10, 9, 1, (big, small, big), (), 7),
        FetchedPartition(2, 0, 10, 9, 1, (), (AbortedTransaction(5, 6), AbortedTransaction(7, 8))),
        FetchedPartition(3, 6, current_leader=LeaderIdAndEpoch(2, 9)),
        FetchedPartition(
            4,
            0,
            records=(big,),
            diverging_epoch=EpochEndOffset(3, 44),
            current_leader=LeaderIdAndEpoch(2, 9),
            snapshot_id=SnapshotId(88, 5),
        ),
    ]


def expect_fetch_response(version: int, partitions: list[FetchedPartition]) -> Any:
    """The same response, built with the general writer's types."""
    codec = api(ApiKey.FETCH, version)

    def nested(name: str, value: Any) -> dict[str, Any]:
        """Present only where there is a value: absent tagged fields have a default."""
        return {} if value is None or not codec.has(name) else {"value": codec.make(name, **value._asdict())}

    made: list[Any] = []
    for partition in partitions:
        fields: dict[str, Any] = {
            "partition_index": partition.partition_index,
            "error_code": ErrorCode(partition.error_code),
            "high_watermark": partition.high_watermark,
            "last_stable_offset": partition.last_stable_offset,
            "log_start_offset": partition.log_start_offset,
            "records": b"".join(partition.records),
            "preferred_read_replica": partition.preferred_read_replica,
            "aborted_transactions": partition.aborted_transactions
            if partition.aborted_transactions is None
            else tuple(
                codec.make("AbortedTransaction", **t._asdict()) for t in partition.aborted_transactions
            ),
        }
        for field, type_name in [
            ("diverging_epoch", "EpochEndOffset"),
            ("current_leader", "LeaderIdAndEpoch"),
            ("snapshot_id", "SnapshotId"),
        ]:
            found = nested(type_name, getattr(partition, field))
            if found:
                fields[field] = found["value"]
        made.append(codec.make("PartitionData", **fields))
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": "topic-ä"}
    endpoints = [codec.make("NodeEndpoint", **e._asdict()) for e in ENDPOINTS] if version >= 16 else []
    return codec.response(
        throttle_time_ms=11,
        error_code=ErrorCode.none,
        session_id=77,
        responses=(codec.make("FetchableTopicResponse", partitions=tuple(made), **topic),),
        **({"node_endpoints": tuple(endpoints)} if version >= 16 else {}),
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response(version: int) -> None:
    partitions = fetched_partitions()
    buffers = encode_fetch_response(
        version, -5, 11, 0, 77, [FetchedTopic(topic_name(version), partitions)], ENDPOINTS
    )
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    expected = expect_fetch_response(version, partitions)
    assert decode_response(ApiKey.FETCH, version, frame[4:]) == (-5, expected)
    assert frame == encode_response(-5, ApiKey.FETCH, version, expected)


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_empty_fetch_response(version: int) -> None:
    frame = b"".join(encode_fetch_response(version, 1, 0, 70 if version >= 7 else 0, 0, []))
    codec = api(ApiKey.FETCH, version)
    error = ErrorCode.fetch_session_id_not_found if version >= 7 else ErrorCode.none
    assert decode_response(ApiKey.FETCH, version, frame[4:]) == (1, codec.response(error_code=error))


def test_large_record_sets_are_passed_through_and_small_ones_joined() -> None:
    large = memoryview(bytes(COPY_BELOW))
    small = memoryview(bytes(COPY_BELOW - 1))
    partitions = [
        FetchedPartition(0, records=(large, small)),
        FetchedPartition(1, records=(small,)),
        FetchedPartition(2, records=(large,)),
    ]
    buffers = encode_fetch_response(12, 1, 0, 0, 0, [FetchedTopic("t", partitions)])
    assert [buffer is large for buffer in buffers] == [False, True, False, True, False]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_response(version: int) -> None:
    partitions = [
        ProducedPartition(0, 0, 55, -1, 3),
        ProducedPartition(1, 0, 56, 1_700_000_000_123, 3),
        ProducedPartition(2, 87, -1, -1, -1, (RecordError(4, "bad"), RecordError(5)), "so bäd"),
        ProducedPartition(3, 6, current_leader=LeaderIdAndEpoch(2, 9)),
    ]
    frame = encode_produce_response(
        version, 9, [ProducedTopic(topic_name(version), partitions)], 12, ENDPOINTS
    )
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, response = decode_response(ApiKey.PRODUCE, version, frame[4:])
    assert correlation_id == 9
    assert frame == encode_response(9, ApiKey.PRODUCE, version, response)
    assert milliseconds(response.throttle_time) == 12
    (topic,) = response.responses
    assert (topic.topic_id if version >= 13 else topic.name) == topic_name(version)
    assert [p.index for p in topic.partition_responses] == [0, 1, 2, 3]
    assert [p.error_code.value for p in topic.partition_responses] == [0, 0, 87, 6]
    assert [p.base_offset for p in topic.partition_responses] == [55, 56, -1, -1]
    assert [t and t.timestamp() for t in (p.log_append_time for p in topic.partition_responses)] == [
        None,
        1_700_000_000.123,
        None,
        None,
    ]
    if version >= 5:
        assert [p.log_start_offset for p in topic.partition_responses] == [3, 3, -1, -1]
    if version >= 8:
        bad = topic.partition_responses[2]
        assert bad.error_message == "so bäd"
        assert [(e.batch_index, e.batch_index_error_message) for e in bad.record_errors] == [
            (4, "bad"),
            (5, None),
        ]
    if version >= 10:
        leader = topic.partition_responses[3].current_leader
        assert (leader.leader_id, leader.leader_epoch) == (2, 9)
        assert [(e.node_id, e.host, e.port, e.rack) for e in response.node_endpoints] == list(ENDPOINTS)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize(
    "partition",
    [
        ProducedPartition(7, ErrorCode.none, 55, 1_700_000_000_123, 3),
        ProducedPartition(7, ErrorCode.message_too_large),
        ProducedPartition(7, ErrorCode.invalid_record, message="no records"),
        ProducedPartition(7, ErrorCode.invalid_record, record_errors=(RecordError(4, "bad"),)),
        ProducedPartition(7, ErrorCode.not_leader_or_follower, current_leader=LeaderIdAndEpoch(2, 9)),
    ],
)
def test_a_produce_response_for_one_partition(version: int, partition: ProducedPartition) -> None:
    """Most have one layout, which is written at once."""
    frame = encode_produce_response(version, 9, [ProducedTopic(topic_name(version), [partition])], 12)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, response = decode_response(ApiKey.PRODUCE, version, frame[4:])
    assert frame == encode_response(9, ApiKey.PRODUCE, version, response)
    assert (correlation_id, milliseconds(response.throttle_time)) == (9, 12)
    [produced] = response.responses
    assert (produced.topic_id if version >= 13 else produced.name) == topic_name(version)
    [told] = produced.partition_responses
    assert (told.index, told.error_code, told.base_offset) == (7, partition.error, partition.base_offset)
    assert (told.log_append_time is None) == (partition.log_append_time_ms < 0)
    if version >= 8:
        assert told.error_message == partition.message
        assert [error.batch_index for error in told.record_errors] == [
            error.batch_index for error in partition.record_errors
        ]


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "täx"])
def test_produce_request(version: int, transactional_id: str | None) -> None:
    chance = random.Random(version)
    records = [(0, chance.randbytes(COPY_BELOW)), (3, chance.randbytes(10)), (4, chance.randbytes(200_000))]
    buffers = encode_produce_request(
        version,
        6,
        "cliänt",
        [(topic_name(version), records), (topic_name(version), records[1:2])],
        acks=-1,
        timeout_ms=1500,
        transactional_id=transactional_id,
    )
    assert sum(buffer is records[0][1] or buffer is records[2][1] for buffer in buffers) == 2
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, request = decode_request(frame[4:])
    assert (header.api_key, header.api_version) == (ApiKey.PRODUCE, version)
    assert (header.correlation_id, header.client_id) == (6, "cliänt")
    codec = api(ApiKey.PRODUCE, version)
    topic = {"topic_id": TOPIC_ID} if version >= 13 else {"name": "topic-ä"}
    assert request == codec.request(
        acks=-1,
        timeout_ms=1500,
        transactional_id=transactional_id,
        topic_data=tuple(
            codec.make_request(
                "TopicProduceData",
                partition_data=tuple(
                    codec.make_request("PartitionProduceData", index=index, records=data)
                    for index, data in part
                ),
                **topic,
            )
            for part in (records, records[1:2])
        ),
    )


@pytest.mark.parametrize("version", [-1, 2, 19])
def test_versions_beyond_are_refused(version: int) -> None:
    with pytest.raises(ValueError, match="version"):
        encode_fetch_response(version, 1, 0, 0, 0, [])
    with pytest.raises(ValueError, match="version"):
        encode_produce_response(version, 1, [])
    with pytest.raises(ValueError, match="version"):
        encode_produce_request(version, 1, None, [], acks=1, timeout_ms=1)
