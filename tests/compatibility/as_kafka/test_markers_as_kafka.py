"""Markers written, and producers described, as Apache Kafka does it: what `kafka-transactions.sh` builds on.

`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.records import BatchBuilder
from support.brokers.comparison import same
from support.brokers.two_brokers import Plain, Side, produce_fields
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded

PRODUCER = 1_000_077


def produce(side: Side, topic: str, epoch: int, sequence: int) -> Plain:
    builder = BatchBuilder()
    builder.append(1_000, None, b"%d" % sequence)
    records = builder.build(0, PRODUCER, epoch, sequence)
    answer = side.ask(ApiKey.PRODUCE, 9, **produce_fields(9, topic, {0: records}))
    return answer["responses"][0]["partition_responses"][0]["error_code"]


def mark(
    side: Side,
    topic: str,
    epoch: int,
    *,
    version: int = 1,
    transaction_version: int = 0,
    commit: bool = True,
    coordinator_epoch: int = 5,
    partitions: tuple[int, ...] = (0,),
    producer_id: int = PRODUCER,
) -> Plain:
    asked = make(
        ApiKey.WRITE_TXN_MARKERS,
        version,
        "WritableTxnMarker",
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=commit,
        coordinator_epoch=coordinator_epoch,
        topics=(
            make(
                ApiKey.WRITE_TXN_MARKERS,
                version,
                "WritableTxnMarkerTopic",
                name=topic,
                partition_indexes=partitions,
            ),
        ),
        **({"transaction_version": transaction_version} if version > 1 else {}),
    )
    return side.ask(ApiKey.WRITE_TXN_MARKERS, version, markers=(asked,))


def described(side: Side, topic: str, *partitions: int) -> Plain:
    asked = make(
        ApiKey.DESCRIBE_PRODUCERS, 0, "TopicRequest", name=topic, partition_indexes=partitions or (0,)
    )
    answer = side.ask(ApiKey.DESCRIBE_PRODUCERS, 0, topics=(asked,))
    for response in answer["topics"]:
        for partition in response["partitions"]:
            for producer in partition["active_producers"]:
                producer.pop("last_timestamp")  # of a marker: when it was written
    return answer


def in_order(side: Side, topic: str) -> None:
    """Kafka knows a new partition a moment after it says so."""
    eventually(lambda: produce(side, topic, 3, 0) == "none", f"{side.name} takes records for {topic}")


@pytest.mark.parametrize("version", [1, 2])
def test_markers_of_old_and_new_epochs(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        topic = side.create(f"markers-{version}", 2)
        in_order(side, topic)
        told = [described(side, topic)]
        told.append(mark(side, topic, 2, version=version))
        told.append(mark(side, topic, 3, version=version))
        told.append(described(side, topic))
        told.append(mark(side, topic, 3, version=version, coordinator_epoch=4))
        told.append(mark(side, topic, 3, version=version, commit=False))
        told.append(mark(side, topic, 4, version=version, commit=False, coordinator_epoch=6))
        told.append(described(side, topic))
        told += [produce(side, topic, 3, 1), produce(side, topic, 4, 7), produce(side, topic, 4, 0)]
        told.append(mark(side, topic, 0, version=version, producer_id=5, partitions=(1,)))
        told.append(described(side, topic, 0, 1))
        return told

    same(sides, scenario)


def test_markers_and_producers_of_partitions_that_are_not_there(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic = side.create("markers-nowhere")
        in_order(side, topic)
        return [
            mark(side, "markers-unknown", 3),
            mark(side, topic, 3, partitions=(0, 9)),
            described(side, "markers-unknown"),
            described(side, topic, 0, 9),
        ]

    same(sides, scenario)


@pytest.mark.parametrize("epoch", [2, 3, 4])
def test_a_marker_of_version_2_where_no_transaction_is_open(sides: tuple[Side, Side], epoch: int) -> None:
    """Sent again after a lost answer, for instance."""

    def scenario(side: Side) -> Plain:
        topic = side.create(f"markers-again-{epoch}")
        in_order(side, topic)
        return [
            mark(side, topic, epoch, version=2, transaction_version=2),
            mark(side, topic, epoch, version=2, transaction_version=2),
            described(side, topic),
        ]

    same(sides, scenario)
