"""A follower's fetch that arrives late, over a connection it had given up, is not its last word.

After a network cut the request of an abandoned connection can be delivered behind those of the new one. The
follower here is this test, in the place of a paused broker, so that the order is certain.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import confluent_kafka

from nilometer.client.admin.replica_survey import ReplicaSurvey
from nilometer.client.network.connection import Connection
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from support.brokers.broker_identity import Identity
from support.brokers.nilometer_cluster import NilometerCluster

TOPIC = "late"
RECORDS = 20
UNHURRIED = {"zookeeper.session.timeout.ms": "60000", "replica.lag.time.max.ms": "60000"}


def test_what_a_follower_has_is_not_what_its_late_fetch_says(tmp_path: Path) -> None:
    with NilometerCluster(tmp_path, 2, UNHURRIED) as cluster:
        cluster.create_topic(TOPIC, assignments={0: (1, 2)})
        leader, follower = cluster.brokers[1], 2
        cluster.wait_leader(TOPIC)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "log_level": 0}
        )
        for number in range(RECORDS):
            producer.produce(TOPIC, b"%d" % number, partition=0)
            producer.flush(10)
        cluster.pause(follower)
        identity = Identity.of_store(cluster.folder / "coordination")
        asyncio.run(_fetch_late_and_again(leader.host, leader.port, follower, identity))
        cluster.resume(follower)


async def _fetch_late_and_again(host: str, port: int, follower: int, identity: Identity) -> None:
    runtime = Runtime.system()
    async with ReplicaSurvey(runtime, [f"{host}:{port}"], timeout_ms=500) as survey:
        seen = await _as_the_leader_sees(survey, follower)
        peers = identity.peers(follower, runtime)
        current = await peers.connect(1, host, port, client_id="current")
        abandoned = await peers.connect(1, host, port, client_id="abandoned")
        try:
            topic_id = await _topic_id(current)
            session_id = await _fetch(current, topic_id, follower, seen.broker_epoch, offset=RECORDS)
            await _fetch(abandoned, topic_id, follower, seen.broker_epoch, offset=RECORDS // 2)
            assert (await _as_the_leader_sees(survey, follower)).log_end_offset == RECORDS // 2
            await _fetch_in_session(current, follower, seen.broker_epoch, session_id)
            assert (await _as_the_leader_sees(survey, follower)).log_end_offset == RECORDS
        finally:
            current.close()
            abandoned.close()


async def _as_the_leader_sees(survey: ReplicaSurvey, follower: int) -> Any:
    rows = (await survey.look([TOPIC])).rows
    return next(row.seen_by_leader for row in rows if row.broker_id == follower)


async def _topic_id(connection: Connection) -> Any:
    api = connection.api(ApiKey.METADATA)
    asked = api.make_request("MetadataRequestTopic", name=TOPIC)
    request = api.request(topics=(asked,), allow_auto_topic_creation=False)
    return (await connection.send(request)).topics[0].topic_id


async def _fetch(connection: Connection, topic_id: Any, follower: int, broker_epoch: int, offset: int) -> int:
    """A follower's first fetch of a session; the session."""
    api = connection.api(ApiKey.FETCH)
    partition = api.make_request(
        "FetchPartition",
        partition=0,
        current_leader_epoch=0,
        fetch_offset=offset,
        last_fetched_epoch=0,
        log_start_offset=0,
        partition_max_bytes=1 << 20,
    )
    topic = api.make_request("FetchTopic", topic_id=topic_id, partitions=(partition,))
    answer = await connection.send(_request(api, follower, broker_epoch, 0, 0, (topic,)))
    assert answer.session_id > 0
    return answer.session_id


async def _fetch_in_session(
    connection: Connection, follower: int, broker_epoch: int, session_id: int
) -> None:
    """Nothing new to ask for: the leader knows what this session fetches."""
    api = connection.api(ApiKey.FETCH)
    await connection.send(_request(api, follower, broker_epoch, session_id, 1, ()))


def _request(
    api: Any, follower: int, broker_epoch: int, session_id: int, session_epoch: int, topics: tuple[Any, ...]
) -> Any:
    return api.request(
        replica_state=api.make_request("ReplicaState", replica_id=follower, replica_epoch=broker_epoch),
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=(),
    )
