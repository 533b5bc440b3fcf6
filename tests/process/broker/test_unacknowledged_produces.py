"""A producer with acks=0 sends its batches and closes its connection: none of them is lost, as in Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import produce_fields
from support.eventually import eventually
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer, make

TOPIC = "t"


def records_of(peer: WirePeer, partitions: int) -> int:
    key = ApiKey.LIST_OFFSETS
    asked = tuple(
        make(key, 5, "ListOffsetsPartition", partition_index=index, timestamp=-1, current_leader_epoch=-1)
        for index in range(partitions)
    )
    topic = make(key, 5, "ListOffsetsTopic", name=TOPIC, partitions=asked)
    (told,) = peer.ask(key, 5, replica_id=-1, isolation_level=0, topics=(topic,)).topics
    return sum(partition.offset for partition in told.partitions)


@pytest.mark.parametrize(
    ("requests", "partitions"),
    [
        pytest.param(5, 60, id="first-batches-are-appended-in-several-turns"),
        pytest.param(2, 150, id="large-requests"),
    ],
)
def test_a_closed_connection(tmp_path: Path, requests: int, partitions: int) -> None:
    builder = BatchBuilder()
    builder.append(0, None, b"v" * 100)
    batch = bytes(builder.build(0))
    with NilometerBroker(tmp_path / "data") as broker, WirePeer(broker.bootstrap) as peer:
        peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(new_topic(TOPIC, partitions),), timeout_ms=60_000)
        with WirePeer(broker.bootstrap) as producer:
            for _ in range(requests):
                records = dict.fromkeys(range(partitions), batch)
                producer.tell(ApiKey.PRODUCE, 9, **produce_fields(9, TOPIC, records, 0, None))
        eventually(lambda: records_of(peer, partitions) == requests * partitions, "every batch is in its log")
