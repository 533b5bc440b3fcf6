"""The APIs of share partitions' states in each version, and FindCoordinator for share partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from nilometer.broker import find_coordinator
from nilometer.broker.api.spec import Request
from nilometer.broker.coordinator_shells import partition_for_key
from nilometer.broker.request_context import RequestContext
from nilometer.broker.sharing import share_coordinator
from nilometer.broker.sharing.share_coordinator import coordinator_key, parse_coordinator_key
from nilometer.cluster.acl import Operation
from nilometer.cluster.states import SHARE_GROUP_STATE_TOPIC
from nilometer.identifiers import TopicId, uuid_from_text
from nilometer.share.state_records import SharePartitionKey
from nilometer.share.state_shard import StateRequest, StateResult
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of
from support.share.share_states import JOBS, StateWorld

K = ApiKey
JOBS_UUID = uuid_from_text(JOBS)
NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
WRITTEN = [(100, 104, 2, 1), (105, 109, 0, 2)]


class StateServices:
    """A broker with one coordinator of share partitions, whose records are committed at once."""

    def __init__(self, *, is_allowed: bool = True) -> None:
        self.world = StateWorld()
        self.asked: list[tuple[str, StateRequest]] = []
        self.ensured = 0
        access = SimpleNamespace(
            on_cluster=lambda operation, report=True: is_allowed and operation is Operation.CLUSTER_ACTION
        )
        self.rights = rights_of(access)
        self.share_state = SimpleNamespace(
            ask=self._ask,
            ensure_topic=self._ensure,
            partition_for_text=lambda text: partition_for_key(
                coordinator_key(parse_coordinator_key(text)), 50
            ),
        )
        self.tasks = SimpleNamespace(spawn=asyncio.ensure_future)
        self.leaders = dict.fromkeys(range(50), 1)
        broker = SimpleNamespace(
            id=1, fenced=False, endpoint=lambda _: SimpleNamespace(host="127.0.0.1", port=9092)
        )
        image = SimpleNamespace(
            topic=lambda name: (name == SHARE_GROUP_STATE_TOPIC and self.ensured) or None,
            partition=lambda name, index: (
                SimpleNamespace(leader=self.leaders[index], has_leader=True)
                if name == SHARE_GROUP_STATE_TOPIC
                else None
            ),
            broker=lambda broker_id: broker if broker_id == 1 else None,
        )
        self.metadata = SimpleNamespace(image=image)

    def _ask(
        self, asked: Sequence[tuple[str, StateRequest]], respond: Callable[[Sequence[StateResult]], Any]
    ) -> Any:
        self.asked += asked
        return respond([self.world.ask(request) for _, request in asked])

    async def _ensure(self) -> bool:
        self.ensured += 1
        return True

    def send(self, key: ApiKey, version: int, **fields: object) -> Message:
        return asyncio.run(self._send(key, version, **fields))

    async def _send(self, key: ApiKey, version: int, **fields: object) -> Message:
        codec = api(key, version)
        header = RequestHeader(key, version, 1, "broker-2", 0)
        request = Request(header, codec.request(**fields), codec, cast(Any, None), RequestContext())
        served = (*find_coordinator.apis(cast(Any, self)), *share_coordinator.apis(cast(Any, self)))
        (handle,) = (spec.handle for spec in served if spec.key is key)
        reply = handle(request)
        if isinstance(reply, asyncio.Future):
            reply = await reply
        assert reply is not None
        _, response = decode_response(key, version, b"".join(reply)[4:])
        return response

    def about(
        self, key: ApiKey, version: int, *partitions: int, topic_id: UUID | None = JOBS_UUID, **fields: object
    ) -> list[Message]:
        """Send a request about partitions of one topic, and return their results."""
        codec = api(key, version)
        kind = TOPIC_TYPES[key]
        parts = tuple(codec.make_request("PartitionData", partition=index, **fields) for index in partitions)
        topic = codec.make_request(kind, topic_id=topic_id, partitions=parts)
        (result,) = self.send(key, version, group_id="workers", topics=(topic,)).results
        assert result.topic_id == topic_id
        assert [one.partition for one in result.partitions] == list(partitions)
        return list(result.partitions)


TOPIC_TYPES = {
    K.INITIALIZE_SHARE_GROUP_STATE: "InitializeStateData",
    K.READ_SHARE_GROUP_STATE: "ReadStateData",
    K.WRITE_SHARE_GROUP_STATE: "WriteStateData",
    K.DELETE_SHARE_GROUP_STATE: "DeleteStateData",
    K.READ_SHARE_GROUP_STATE_SUMMARY: "ReadStateSummaryData",
}
FIELDS: dict[ApiKey, dict[str, object]] = {
    K.INITIALIZE_SHARE_GROUP_STATE: {"state_epoch": 1, "start_offset": 100},
    K.READ_SHARE_GROUP_STATE: {"leader_epoch": 3},
    K.WRITE_SHARE_GROUP_STATE: {
        "state_epoch": 1,
        "leader_epoch": 3,
        "start_offset": 100,
        "state_batches": (),
    },
    K.DELETE_SHARE_GROUP_STATE: {},
    K.READ_SHARE_GROUP_STATE_SUMMARY: {"leader_epoch": 3},
}


def batches(version: int, written: Sequence[tuple[int, int, int, int]]) -> tuple[Message, ...]:
    codec = api(K.WRITE_SHARE_GROUP_STATE, version)
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    return tuple(codec.make_request("StateBatch", **dict(zip(names, one, strict=True))) for one in written)


@pytest.mark.parametrize("version", [0, 1])
def test_a_state_is_initialized_written_read_and_deleted(version: int) -> None:
    at = StateServices()
    (begun,) = at.about(K.INITIALIZE_SHARE_GROUP_STATE, 0, 0, **FIELDS[K.INITIALIZE_SHARE_GROUP_STATE])
    assert (begun.error_code, begun.error_message) == (NONE, None)
    more = {"delivery_complete_count": 5} if version else {}
    fields = FIELDS[K.WRITE_SHARE_GROUP_STATE] | {"state_batches": batches(version, WRITTEN)} | more
    assert at.about(K.WRITE_SHARE_GROUP_STATE, version, 0, **fields)[0].error_code == NONE
    (read,) = at.about(K.READ_SHARE_GROUP_STATE, 0, 0, leader_epoch=3)
    assert (read.error_code, read.state_epoch, read.start_offset) == (NONE, 1, 100)
    assert [
        (one.first_offset, one.last_offset, one.delivery_state, one.delivery_count)
        for one in read.state_batches
    ] == WRITTEN
    (summary,) = at.about(K.READ_SHARE_GROUP_STATE_SUMMARY, version, 0, leader_epoch=0)
    assert (summary.state_epoch, summary.leader_epoch, summary.start_offset) == (1, 3, 100)
    assert getattr(summary, "delivery_complete_count", 5) == 5
    assert at.about(K.DELETE_SHARE_GROUP_STATE, 0, 0)[0].error_code == NONE
    (nothing,) = at.about(K.READ_SHARE_GROUP_STATE_SUMMARY, version, 0, leader_epoch=0)
    assert (nothing.state_epoch, nothing.leader_epoch, nothing.start_offset) == (0, 0, -1)


def test_each_partition_has_its_own_result() -> None:
    at = StateServices()
    at.about(K.INITIALIZE_SHARE_GROUP_STATE, 0, 1, **FIELDS[K.INITIALIZE_SHARE_GROUP_STATE])
    results = at.about(K.READ_SHARE_GROUP_STATE, 0, 0, 1, -1, leader_epoch=3)
    assert [one.error_code for one in results] == [INVALID, NONE, INVALID]
    wanted = SharePartitionKey("workers", JOBS, 1)
    assert [key for key, _ in at.asked[1:]] == [
        coordinator_key(wanted._replace(partition=i)) for i in (0, 1, -1)
    ]
    failed = results[0]
    assert failed.error_message == "Read operation on uninitialized share partition not allowed."
    assert (failed.state_epoch, failed.start_offset, failed.state_batches) == (0, 0, ())


def test_a_batch_of_an_unknown_state_is_refused_and_others_are_written() -> None:
    at = StateServices()
    at.about(K.INITIALIZE_SHARE_GROUP_STATE, 0, 0, 1, **FIELDS[K.INITIALIZE_SHARE_GROUP_STATE])
    codec = api(K.WRITE_SHARE_GROUP_STATE, 1)
    parts = tuple(
        codec.make_request(
            "PartitionData",
            partition=index,
            **(FIELDS[K.WRITE_SHARE_GROUP_STATE] | {"state_batches": batches(1, [(100, 104, state, 1)])}),
        )
        for index, state in ((0, 7), (1, 2))
    )
    topic = codec.make_request("WriteStateData", topic_id=JOBS_UUID, partitions=parts)
    (result,) = at.send(K.WRITE_SHARE_GROUP_STATE, 1, group_id="workers", topics=(topic,)).results
    assert [one.error_code for one in result.partitions] == [INVALID, NONE]


@pytest.mark.parametrize("key", TOPIC_TYPES)
def test_only_brokers_may(key: ApiKey) -> None:
    at = StateServices(is_allowed=False)
    (refused, _) = at.about(key, 0, 0, 1, **FIELDS[key])
    assert refused.error_code == ErrorCode.cluster_authorization_failed
    assert refused.error_message == "Cluster authorization failed."
    assert at.asked == []


@pytest.mark.parametrize("key", TOPIC_TYPES)
def test_a_request_about_nothing_has_no_results(key: ApiKey) -> None:
    codec, at = api(key, 0), StateServices()
    assert at.send(key, 0, group_id="workers", topics=()).results == ()
    part = codec.make_request("PartitionData", partition=0, **FIELDS[key])
    topic = codec.make_request(TOPIC_TYPES[key], topic_id=JOBS_UUID, partitions=(part,))
    assert at.send(key, 0, group_id="", topics=(topic,)).results == ()
    assert at.asked == []


def test_no_topic_id_is_of_no_topic() -> None:
    at = StateServices()
    fields = FIELDS[K.INITIALIZE_SHARE_GROUP_STATE]
    (result,) = at.about(K.INITIALIZE_SHARE_GROUP_STATE, 0, 0, topic_id=None, **fields)
    assert result.error_code == ErrorCode.unknown_topic_or_partition


# ── FindCoordinator ─────────────────────────────────────────────────────────────────────────────
KAFKAS_PARTITIONS = {
    f"workers:{JOBS}:6": 47,
    f"a:b:{JOBS}:0": 17,
    f"g:{JOBS}:49": 40,
    f"g:{JOBS}:+49": 40,
}
"""Of 50; from SharePartitionKey of Apache Kafka 4.4.0."""
INVALID_KEYS = [
    "",
    "g",
    f"g:{JOBS}",
    f"g:{JOBS}:",
    f" :{JOBS}:0",
    "g:AAAA:0",
    f"g:{JOBS}:x",
    f"g:{JOBS}:2147483648",
]
"""Those that SharePartitionKey of Apache Kafka 4.4.0 refuses."""


@pytest.mark.parametrize(("text", "partition"), KAFKAS_PARTITIONS.items())
def test_the_partition_of_a_share_partition_is_kafkas(text: str, partition: int) -> None:
    assert partition_for_key(coordinator_key(parse_coordinator_key(text)), 50) == partition


def test_a_group_may_have_colons() -> None:
    assert parse_coordinator_key(f"a::b:{JOBS}:-5::") == SharePartitionKey("a::b", TopicId(JOBS), -5)


@pytest.mark.parametrize("text", INVALID_KEYS)
def test_keys_of_another_form_are_refused(text: str) -> None:
    at = StateServices()
    (found,) = at.send(K.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=(text,)).coordinators
    assert (found.key, found.error_code, found.node_id) == (text, INVALID, -1)
    assert not at.ensured, "no topic is created for it"


def test_the_coordinator_of_a_share_partition_leads_its_partition() -> None:
    at = StateServices()
    at.leaders[17] = 2  # which is away
    first, second = list(KAFKAS_PARTITIONS)[:2]
    found = at.send(K.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=(first, "wrong", second)).coordinators
    errors = [NONE, INVALID, ErrorCode.coordinator_not_available]
    assert [(one.key, one.error_code) for one in found] == list(
        zip((first, "wrong", second), errors, strict=True)
    )
    assert (found[0].node_id, found[0].host, found[0].port) == (1, "127.0.0.1", 9092)
    assert at.ensured == 1


def test_only_brokers_find_it() -> None:
    at = StateServices(is_allowed=False)
    (found,) = at.send(K.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=(f"g:{JOBS}:0",)).coordinators
    assert found.error_code == ErrorCode.cluster_authorization_failed
    assert not at.ensured


@pytest.mark.parametrize("version", [4, 5])
def test_earlier_versions_do_not_find_it(version: int) -> None:
    at = StateServices()
    (found,) = at.send(
        K.FIND_COORDINATOR, version, key_type=2, coordinator_keys=(f"g:{JOBS}:0",)
    ).coordinators
    assert found.error_code == INVALID
    assert not at.ensured
