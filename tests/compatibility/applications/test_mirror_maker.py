"""MirrorMaker 2 between Apache Kafka and Nilometer, both ways at once, while a broker of ours is killed.

It mirrors records with their keys, values, headers and partitions, creates the topics with their settings,
and translates the offsets that groups have committed. It delivers at least once: repeats are left out.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from support.applications.application import WAIT_S, kafka_application
from support.applications.committed_reader import CommittedReader
from support.applications.mirrored_clusters import GROUP, PARTITIONS, READ, RETENTION_MS, Side, settings
from support.brokers.nilometer_cluster import NilometerCluster
from support.kafka.apache_kafka import ApacheKafka

pytestmark = [pytest.mark.java, pytest.mark.application]


def mirrored(reader: CommittedReader) -> dict[int, list[tuple[bytes, bytes]]]:
    """Each record where it came first, by partition. Values are unique."""
    found: dict[int, dict[tuple[bytes, bytes], None]] = {index: {} for index in range(PARTITIONS)}
    for message in reader.look():
        assert message.headers() == [("number", message.value())]
        found[message.partition()][message.key(), message.value()] = None
    return {index: list(records) for index, records in found.items()}


def assert_nothing_is_skipped(source: Side, offsets: list[int], reader: CommittedReader) -> None:
    """A group that goes on at these offsets on the other side gets every record that it has not read here."""
    last_copy: dict[bytes | None, int] = {}
    for message in reader.look():
        offset = message.offset()
        assert offset is not None
        last_copy[message.value()] = offset
    for partition, offset in enumerate(offsets):
        assert all(last_copy[value] >= offset for _, value in source.sent[partition][READ:])


@pytest.mark.long
def test_both_ways_between_apache_kafka_and_nilometer_while_a_broker_is_killed(
    cluster: NilometerCluster, tmp_path: Path
) -> None:
    with ApacheKafka(tmp_path / "kafka") as apache:
        kafka, nilometer = Side("kafka", apache.bootstrap, 1), Side("nilometer", cluster.bootstrap, 3)
        sides = {kafka: nilometer, nilometer: kafka}
        for source in sides:
            source.send()
            source.commit(READ)
        mirror = kafka_application(
            "mirror",
            tmp_path,
            "org.apache.kafka.connect.mirror.MirrorMaker",
            settings(kafka, nilometer),
        )
        with mirror, ExitStack() as readers:
            opened: dict[Side, CommittedReader] = {}
            for source, target in sides.items():
                topic = source.mirrored_topic
                mirror.wait_until(partial(target.has_topic, topic), f"{topic} is created")
                reader = CommittedReader(target.bootstrap, topic, PARTITIONS)
                opened[source] = readers.enter_context(reader)

            def is_mirrored() -> bool:
                return all(mirrored(opened[source]) == source.sent for source in sides)

            mirror.wait_until(is_mirrored, "both topics are mirrored")
            for source, target in sides.items():
                topic = source.mirrored_topic
                mirror.wait_until(
                    lambda target=target, topic=topic: min(target.committed(topic)) > 0,
                    f"{GROUP}'s offsets are translated",
                )
                assert_nothing_is_skipped(source, target.committed(topic), opened[source])
                assert target.setting(topic, "retention.ms") == RETENTION_MS

            cluster.kill(cluster.wait_leader(kafka.mirrored_topic, timeout_s=WAIT_S))
            for source in sides:
                source.send()
            mirror.wait_until(is_mirrored, "it goes on with the brokers that are left")
