"""The quorum's messages have the bytes of Kafka's schemas, and come back as the core's values."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from nilometer.identifiers import NO_LEADER, uuid_to_text
from nilometer.raft import messages
from nilometer.raft.control_records import Endpoint
from nilometer.raft.exchange import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochResponse,
    QuorumFetch,
    QuorumFetchResponse,
    SnapshotFetch,
    SnapshotFetchResponse,
    VoteRequest,
    VoteResponse,
)
from nilometer.raft.messages import FetchTerms, NodeAddress, Received
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import VoterKey
from nilometer.replication.epochs import EpochEnd
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import NONE, ErrorCode, KafkaError
from nilometer.wire.messages import api

ONE, TWO = (VoterKey(number, uuid_to_text(uuid.UUID(int=number << 64))) for number in (1, 2))
FOLDER_1, FOLDER_2 = "0000000000000001 0000000000000000", "0000000000000002 0000000000000000"
CLUSTER = "03 6964"  # "id", in compact form
NAME = "13" + b"__cluster_metadata".hex()
TOPIC_ID = "0000000000000000 0000000000000001"
HERE = (Endpoint("C", "h", 9_093),)
LISTENS = "02 0243 0268 2385 00"
ADDRESS = NodeAddress(1, "h", 9_093)
NODE = "01 00 0a 02 00000001 0268 2385 00"  # a tagged field: number, size, one element
FETCH_NODE = "01 00 0d 02 00000001 0268 00002385 00 00"
EPOCH_RESPONSE = EpochResponse(NONE, 5, 1)
SNAPSHOT = SnapshotId(9, 4)

REQUESTS: list[tuple[str, ApiKey, Any, Callable[[Any], Any], str, Any]] = [
    (
        "Vote",
        ApiKey.VOTE,
        messages.vote_request(VoteRequest(5, ONE, TWO, 4, 9, pre_vote=True), "id"),
        messages.read_vote_request,
        f"{CLUSTER} 00000002 02 {NAME} 02 00000000 00000005 00000001 {FOLDER_1} {FOLDER_2} "
        "00000004 0000000000000009 01 00 00 00",
        Received(VoteRequest(5, ONE, TWO, 4, 9, pre_vote=True), "id", TWO),
    ),
    (
        "BeginQuorumEpoch",
        ApiKey.BEGIN_QUORUM_EPOCH,
        messages.begin_request(BeginEpochRequest(5, 1), TWO, "id", HERE),
        messages.read_begin_request,
        f"{CLUSTER} 00000002 02 {NAME} 02 00000000 {FOLDER_2} 00000001 00000005 00 00 {LISTENS} 00",
        Received(BeginEpochRequest(5, 1), "id", TWO, HERE),
    ),
    (
        "EndQuorumEpoch",
        ApiKey.END_QUORUM_EPOCH,
        messages.end_request(EndEpochRequest(5, 1, (TWO,)), "id", HERE),
        messages.read_end_request,
        f"{CLUSTER} 02 {NAME} 02 00000000 00000001 00000005 02 00000002 {FOLDER_2} 00 00 00 {LISTENS} 00",
        Received(EndEpochRequest(5, 1, (TWO,)), "id", None, HERE),
    ),
    (
        "Fetch",
        ApiKey.FETCH,
        messages.fetch_request(QuorumFetch(TWO, 5, 1, 9, 4, 77, 6), "id", FetchTerms(500, 4_096, 7)),
        messages.read_fetch_request,
        f"000001f4 00000001 00001000 00 00000006 ffffffff 02 {TOPIC_ID} 02 00000000 00000005 "
        "0000000000000009 00000004 ffffffffffffffff 00001000 "
        f"02 00 10 {FOLDER_2} 01 08 0000000000000007 00 01 01 "
        "02 00 03 036964 01 0d 00000002 ffffffffffffffff 00",
        Received(QuorumFetch(TWO, 5, NO_LEADER, 9, 4, round=6), "id", None, (), FetchTerms(500, 4_096, 7)),
    ),
    (
        "FetchSnapshot",
        ApiKey.FETCH_SNAPSHOT,
        messages.snapshot_request(SnapshotFetch(TWO, 5, 1, SNAPSHOT, 3, 77), "id", 4_096),
        messages.read_snapshot_request,
        f"00000002 00001000 02 {NAME} 02 00000000 00000005 0000000000000009 00000004 00 "
        f"0000000000000003 01 00 10 {FOLDER_2} 00 01 00 03 036964",
        Received(SnapshotFetch(TWO, 5, NO_LEADER, SNAPSHOT, 3), "id", terms=FetchTerms(max_bytes=4_096)),
    ),
]
RESPONSES: list[tuple[str, ApiKey, Any, Callable[[Any], Any], str, Any]] = [
    (
        "Vote",
        ApiKey.VOTE,
        messages.vote_response(VoteResponse(NONE, 5, 1, granted=True), ADDRESS),
        messages.read_vote_response,
        f"0000 02 {NAME} 02 00000000 0000 00000001 00000005 01 00 00 {NODE}",
        VoteResponse(NONE, 5, 1, granted=True),
    ),
    (
        "BeginQuorumEpoch",
        ApiKey.BEGIN_QUORUM_EPOCH,
        messages.begin_response(EPOCH_RESPONSE, ADDRESS),
        messages.read_epoch_response,
        f"0000 02 {NAME} 02 00000000 0000 00000001 00000005 00 00 {NODE}",
        EPOCH_RESPONSE,
    ),
    (
        "EndQuorumEpoch",
        ApiKey.END_QUORUM_EPOCH,
        messages.end_response(EpochResponse(ErrorCode.fenced_leader_epoch, 6, NO_LEADER)),
        messages.read_epoch_response,
        f"0000 02 {NAME} 02 00000000 004a ffffffff 00000006 00 00 00",
        EpochResponse(ErrorCode.fenced_leader_epoch, 6, NO_LEADER),
    ),
    (
        "Fetch with records",
        ApiKey.FETCH,
        messages.fetch_response(
            QuorumFetchResponse(NONE, 5, 1, end_offset=12, high_watermark=9, round=6), b"batch", 3, ADDRESS
        ),
        messages.read_fetch_response,
        f"00000000 0000 00000006 02 {TOPIC_ID} 02 00000000 0000 0000000000000009 0000000000000009 "
        "0000000000000003 01 ffffffff 06 6261746368 01 01 09 00000001 00000005 00 00 " + FETCH_NODE,
        (QuorumFetchResponse(NONE, 5, 1, high_watermark=9, round=6), b"batch"),
    ),
    (
        "Fetch that diverges",
        ApiKey.FETCH,
        messages.fetch_response(
            QuorumFetchResponse(NONE, 5, 1, diverging=EpochEnd(4, 7), high_watermark=6), b"", 3
        ),
        messages.read_fetch_response,
        f"00000000 0000 00000000 02 {TOPIC_ID} 02 00000000 0000 0000000000000006 0000000000000006 "
        "0000000000000003 01 ffffffff 01 02 00 0d 00000004 0000000000000007 00 "
        "01 09 00000001 00000005 00 00 00",
        (QuorumFetchResponse(NONE, 5, 1, diverging=EpochEnd(4, 7), high_watermark=6), b""),
    ),
    (
        "Fetch that needs a snapshot",
        ApiKey.FETCH,
        messages.fetch_response(QuorumFetchResponse(NONE, 5, 1, snapshot=SNAPSHOT), b"", 9),
        messages.read_fetch_response,
        f"00000000 0000 00000000 02 {TOPIC_ID} 02 00000000 0000 0000000000000000 0000000000000000 "
        "0000000000000009 01 ffffffff 01 02 01 09 00000001 00000005 00 "
        "02 0d 0000000000000009 00000004 00 00 00",
        (QuorumFetchResponse(NONE, 5, 1, snapshot=SNAPSHOT), b""),
    ),
    (
        "FetchSnapshot",
        ApiKey.FETCH_SNAPSHOT,
        messages.snapshot_response(
            SnapshotFetchResponse(NONE, 5, 1, SNAPSHOT, size=10, position=3, end_position=6), b"abc", ADDRESS
        ),
        messages.read_snapshot_response,
        f"00000000 0000 02 {NAME} 02 00000000 0000 0000000000000009 00000004 00 000000000000000a "
        f"0000000000000003 04 616263 01 00 09 00000001 00000005 00 00 {NODE}",
        (SnapshotFetchResponse(NONE, 5, 1, SNAPSHOT, 10, 3, 6), b"abc"),
    ),
    (
        "FetchSnapshot of one that is gone",
        ApiKey.FETCH_SNAPSHOT,
        messages.snapshot_response(SnapshotFetchResponse(ErrorCode.snapshot_not_found, 5, 1), b""),
        messages.read_snapshot_response,
        f"00000000 0000 02 {NAME} 02 00000000 0062 ffffffffffffffff ffffffff 00 0000000000000000 "
        "0000000000000000 01 01 00 09 00000001 00000005 00 00 00",
        (SnapshotFetchResponse(ErrorCode.snapshot_not_found, 5, 1), b""),
    ),
]


@pytest.mark.parametrize(
    ("key", "message", "read", "expected", "value"),
    [one[1:] for one in REQUESTS],
    ids=[one[0] for one in REQUESTS],
)
def test_a_request_has_the_bytes_of_the_schema(
    key: ApiKey, message: Any, read: Callable[[Any], Any], expected: str, value: Any
) -> None:
    spoken = api(key, messages.VERSIONS[key])
    written = spoken.write_request(message)
    assert written.hex() == expected.replace(" ", "")
    assert read(spoken.read_request(written)) == value


@pytest.mark.parametrize(
    ("key", "message", "read", "expected", "value"),
    [one[1:] for one in RESPONSES],
    ids=[one[0] for one in RESPONSES],
)
def test_a_response_has_the_bytes_of_the_schema(
    key: ApiKey, message: Any, read: Callable[[Any], Any], expected: str, value: Any
) -> None:
    spoken = api(key, messages.VERSIONS[key])
    written = spoken.write_response(message)
    assert written.hex() == expected.replace(" ", "")
    assert read(spoken.read_response(written)) == value


def test_a_response_says_where_the_leader_listens() -> None:
    for _, key, message, *_ in RESPONSES:
        spoken = api(key, messages.VERSIONS[key])
        found = messages.leader_addresses(spoken.read_response(spoken.write_response(message)))
        assert found in ((), (ADDRESS,))


def test_a_message_about_another_partition_is_an_invalid_request() -> None:
    spoken = api(ApiKey.VOTE, 2)
    request = messages.vote_request(VoteRequest(5, ONE, TWO, 4, 9, pre_vote=False), "id")
    written = bytearray(spoken.write_request(request))
    other_topic = written.replace(b"__cluster_metadata", b"__cluster_metadatA")
    other_partition = written.replace(b"metadata\x02\x00\x00\x00\x00", b"metadata\x02\x00\x00\x00\x01")
    none = spoken.write_request(spoken.request(cluster_id="id", voter_id=2, topics=()))
    for wrong in (bytes(other_topic), bytes(other_partition), none):
        with pytest.raises(KafkaError, match="INVALID_REQUEST"):
            messages.read_vote_request(spoken.read_request(wrong))


def test_a_request_for_another_cluster_or_folder_is_refused() -> None:
    received = Received(BeginEpochRequest(5, 1), "id", TWO)
    assert messages.refusal(received, TWO, "id") is NONE
    assert messages.refusal(received, TWO, "other") is ErrorCode.inconsistent_cluster_id
    assert messages.refusal(received, TWO._replace(directory_id="wiped"), "id") is ErrorCode.invalid_voter_key
    assert messages.refusal(received._replace(to=None, cluster_id=None), ONE, "id") is NONE


@pytest.mark.parametrize(
    ("key", "read"),
    [
        (ApiKey.VOTE, messages.read_vote_response),
        (ApiKey.BEGIN_QUORUM_EPOCH, messages.read_epoch_response),
        (ApiKey.FETCH, lambda message: messages.read_fetch_response(message)[0]),
        (ApiKey.FETCH_SNAPSHOT, lambda message: messages.read_snapshot_response(message)[0]),
    ],
)
def test_an_error_of_the_whole_response_is_one_of_the_partition(
    key: ApiKey, read: Callable[[Any], Any]
) -> None:
    spoken = api(key, messages.VERSIONS[key])
    error = ErrorCode.cluster_authorization_failed
    response = read(spoken.read_response(spoken.write_response(messages.refused(key, error))))
    assert (response.error, response.leader) == (error, NO_LEADER)
