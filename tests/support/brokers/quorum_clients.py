"""What tests ask of brokers with a metadata quorum: changes of its voters, its description, and a load."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

from nilometer.raft.control_records import directory_text, directory_uuid
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..eventually import eventually
from ..ports import HOST
from ..wire.wire_peer import WirePeer, make
from .quorum_brokers import QuorumBrokers

TIMEOUT_S = 60.0


def produce(cluster: QuorumBrokers, topic: str, texts: list[str]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 3})
    errors: list[object] = []
    for text in texts:
        producer.produce(topic, text.encode(), on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)
    assert errors == [None] * len(texts)


def texts_in(cluster: QuorumBrokers, topic: str, partitions: int, count: int) -> list[str]:
    """Return ``count`` texts, sorted, once so many can be read."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "log_level": 3})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[str] = []

    def poll() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append((message.value() or b"").decode())
        return len(found) >= count

    eventually(poll, f"{count} records", TIMEOUT_S)
    consumer.close()
    return sorted(found)


def add(
    cluster: QuorumBrokers, broker_id: int, *, asked: int, port: int | None = None
) -> tuple[ErrorCode, str | None]:
    """``port``: where it is to listen for the others, by default where it does."""
    port = port or (cluster.controllers | cluster.joiners)[broker_id]
    listener = make(ApiKey.ADD_RAFT_VOTER, 1, "Listener", name="CONTROLLER", host=HOST, port=port)
    with WirePeer(cluster.brokers[asked].bootstrap) as peer:
        answer = peer.ask(
            ApiKey.ADD_RAFT_VOTER,
            1,
            cluster_id=None,
            timeout=timedelta(seconds=30),
            voter_id=broker_id,
            voter_directory_id=directory_uuid(cluster.directory_id(broker_id)),
            listeners=(listener,),
            ack_when_committed=True,
        )
    return answer.error_code, answer.error_message


def remove(
    cluster: QuorumBrokers, broker_id: int, directory_id: str, *, asked: int
) -> tuple[ErrorCode, str | None]:
    with WirePeer(cluster.brokers[asked].bootstrap) as peer:
        answer = peer.ask(
            ApiKey.REMOVE_RAFT_VOTER,
            0,
            cluster_id=None,
            voter_id=broker_id,
            voter_directory_id=directory_uuid(directory_id),
        )
    return answer.error_code, answer.error_message


OK = (ErrorCode.none, None)


class Described(NamedTuple):
    """What a broker says of the quorum."""

    leader: int
    epoch: int
    voters: list[int]
    observers: list[int]
    directories: list[str]
    """Of the voters."""
    ports: dict[int, int]
    """Where each voter listens, by its id."""


def described(cluster: QuorumBrokers, asked: int) -> Described | None:
    """Return what the broker ``asked`` says; None without a leader."""
    with WirePeer(cluster.brokers[asked].bootstrap) as peer:
        key, version = ApiKey.DESCRIBE_QUORUM, 2
        partitions = (make(key, version, "PartitionData", partition_index=0),)
        topic = make(key, version, "TopicData", topic_name="__cluster_metadata", partitions=partitions)
        answer = peer.ask(key, version, topics=(topic,))
    (found,) = answer.topics[0].partitions
    if found.error_code is not ErrorCode.none:
        return None
    return Described(
        found.leader_id,
        found.leader_epoch,
        [one.replica_id for one in found.current_voters],
        [one.replica_id for one in found.observers],
        [directory_text(one.replica_directory_id) for one in found.current_voters],
        {one.node_id: one.listeners[0].port for one in answer.nodes},
    )


def has_voters(cluster: QuorumBrokers, asked: int, voters: Collection[int]) -> bool:
    found = described(cluster, asked)
    return found is not None and set(found.voters) == set(voters) and found.leader in voters


@contextmanager
def load(cluster: QuorumBrokers, topic: str) -> Iterator[list[str]]:
    """Produce to a topic all the while; yield what is acknowledged. At the end all has been."""
    acknowledged: list[str] = []
    failures: list[object] = []
    ends = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 2})
        number = 0
        while not ends.wait(0.02):
            text = f"{number:06}"

            def done(error: object, _: object, text: str = text) -> None:
                (acknowledged if error is None else failures).append(text)

            producer.produce(topic, text.encode(), on_delivery=done)
            producer.poll(0)
            number += 1
        producer.flush(TIMEOUT_S)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield acknowledged
    finally:
        ends.set()
        thread.join()
    assert failures == []
