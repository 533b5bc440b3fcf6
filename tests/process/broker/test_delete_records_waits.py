"""DeleteRecords is answered once every live replica has deleted; three real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from nilometer.client.admin.admin import ConfigChange, ResourceType
from nilometer.client.admin.reassignments import ElectionType, alter_reassignments, elect_leaders
from nilometer.client.admin.replica_survey import ReplicaSurvey
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.two_brokers import batch, produce_fields
from support.eventually import eventually
from support.wire.wire_peer import WirePeer, make

KEY, VERSION = ApiKey.DELETE_RECORDS, 2
RECORDS = 10
LEADER, FOLLOWER, OTHER = 1, 2, 3
LONG_MS = 60_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    # A broker that is stopped stays live and in sync for longer than any test here takes.
    overrides = {"zookeeper.session.timeout.ms": "60000", "replica.lag.time.max.ms": "60000"}
    with closing(NilometerCluster(tmp_path_factory.mktemp("deleting"), 3, overrides)) as cluster:
        cluster.start(LEADER)  # the first to come is the controller: the one that is stopped must not be it
        cluster.start()
        yield cluster


def filled(cluster: NilometerCluster, name: str) -> None:
    """A topic led by LEADER and followed by the two others, and one that has no other replica."""
    cluster.create_topic(name, assignments={0: (LEADER, FOLLOWER, OTHER)})
    cluster.create_topic(alone(name), assignments={0: (LEADER,)})
    with WirePeer(cluster.brokers[LEADER].bootstrap) as peer:
        for topic in (name, alone(name)):
            for _ in range(RECORDS):
                answer = peer.ask(ApiKey.PRODUCE, 9, **produce_fields(9, topic, {0: batch(b"x")}))
                assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def alone(name: str) -> str:
    return f"{name}-alone"


def tell(peer: WirePeer, topics: tuple[str, ...], offset: int, timeout_ms: int = LONG_MS) -> None:
    part = make(KEY, VERSION, "DeleteRecordsPartition", partition_index=0, offset=offset)
    asked = tuple(make(KEY, VERSION, "DeleteRecordsTopic", name=name, partitions=(part,)) for name in topics)
    peer.tell(KEY, VERSION, topics=asked, timeout_ms=timeout_ms)


def hear(peer: WirePeer) -> list[tuple[ErrorCode, int]]:
    parts = [part for topic in peer.hear(KEY, VERSION).topics for part in topic.partitions]
    return [(part.error_code, part.low_watermark) for part in parts]


def log_starts(cluster: NilometerCluster, name: str) -> list[int]:
    """As each replica says itself."""

    async def look() -> list[int]:
        async with ReplicaSurvey(Runtime.system(), [cluster.brokers[LEADER].bootstrap]) as survey:
            rows = (await survey.look([name])).rows
            return [row.state.log_start_offset for row in rows if row.state is not None]

    return asyncio.run(look())


def test_all_replicas_have_deleted_when_the_answer_comes(cluster: NilometerCluster) -> None:
    filled(cluster, "all")
    with WirePeer(cluster.brokers[LEADER].bootstrap) as peer:
        for offset in range(1, RECORDS):
            tell(peer, ("all",), offset)
            assert hear(peer) == [(ErrorCode.none, offset)]
            assert log_starts(cluster, "all") == [offset] * 3


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("compact", (ErrorCode.policy_violation, -1)), ("compact,delete", (ErrorCode.none, 4))],
)
def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(
    cluster: NilometerCluster, policy: str, expected: tuple[ErrorCode, int]
) -> None:
    name = policy.replace(",", "-")
    filled(cluster, name)
    changes = [ConfigChange("cleanup.policy", policy)]
    cluster.operate(lambda admin: admin.incremental_alter_configs(ResourceType.TOPIC, name, changes))
    with WirePeer(cluster.brokers[LEADER].bootstrap) as peer:

        def answer() -> tuple[ErrorCode, int]:
            tell(peer, (name,), 4)
            (found,) = hear(peer)
            return found

        eventually(lambda: answer() == expected, "the leader knows the policy")
    assert log_starts(cluster, name) == [max(expected[1], 0)] * 3


def test_a_replica_that_hangs_is_waited_for_in_vain(cluster: NilometerCluster) -> None:
    filled(cluster, "hanging")
    with WirePeer(cluster.brokers[LEADER].bootstrap) as peer:
        cluster.pause(FOLLOWER)
        try:
            tell(peer, ("hanging", alone("hanging")), 4, timeout_ms=500)
            assert hear(peer) == [(ErrorCode.request_timed_out, 0), (ErrorCode.none, 4)]
        finally:
            cluster.resume(FOLLOWER)
        tell(peer, ("hanging", alone("hanging")), 4)
        assert hear(peer) == [(ErrorCode.none, 4), (ErrorCode.none, 4)]


def test_who_waits_learns_that_another_leads(cluster: NilometerCluster) -> None:
    filled(cluster, "moving")
    partition = TopicPartition("moving", 0)
    with WirePeer(cluster.brokers[LEADER].bootstrap) as peer:
        cluster.pause(FOLLOWER)
        try:
            tell(peer, ("moving", alone("moving")), 4)
            order = (OTHER, LEADER, FOLLOWER)
            cluster.operate(lambda admin: alter_reassignments(admin, {partition: order}))
            cluster.operate(lambda admin: elect_leaders(admin, ElectionType.PREFERRED, [partition]))
            assert hear(peer) == [(ErrorCode.not_leader_or_follower, -1), (ErrorCode.none, 4)]
        finally:
            cluster.resume(FOLLOWER)


def test_a_replica_that_dies_is_not_waited_for(cluster: NilometerCluster) -> None:
    filled(cluster, "dying")
    with WirePeer(cluster.brokers[LEADER].bootstrap) as peer:
        cluster.pause(FOLLOWER)
        tell(peer, ("dying",), 4)
        cluster.kill(FOLLOWER)
        assert hear(peer) == [(ErrorCode.none, 4)]
    cluster.start(FOLLOWER)
    eventually(lambda: log_starts(cluster, "dying") == [4] * 3, "the one that came back deletes, too")
