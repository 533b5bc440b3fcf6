"""A broker that is started on the data of Apache Kafka refuses it, and Kafka goes on with all its records."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.kafka.apache_kafka import ApacheKafka
from support.ports import HOST, free_ports

pytestmark = [pytest.mark.java, pytest.mark.long]

TOPIC = "orders"
COUNT = 10


def read(bootstrap: str) -> list[bytes | None]:
    reader = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        reader.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        return [one.value() for one in reader.consume(COUNT, 30)]
    finally:
        reader.close()


def content(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_kafkas_folder_is_refused_by_name_and_unchanged(tmp_path: Path) -> None:
    kafka = ApacheKafka(tmp_path / "kafka")
    with kafka:
        writer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(COUNT):
            writer.produce(TOPIC, b"%d" % number)
        assert writer.flush(60) == 0
        written = read(kafka.bootstrap)
        assert len(written) == COUNT
    before = content(kafka.data_dir)

    # The very file that Kafka was started with, as the page about moving from Kafka teaches.
    port, controller_port = free_ports(2)
    listeners = f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}"
    broker = NilometerBroker(kafka.data_dir, {"listeners": listeners}, port)
    settings = kafka.brokers[0].directory / "server.properties"
    broker.program = ("-m", "nilometer.broker", "--config", str(settings))
    with pytest.raises(RuntimeError, match="ended"):
        broker.start()
    broker.stop()
    assert f"{kafka.data_dir}: has __cluster_metadata-0, the metadata log of Apache Kafka" in broker.output
    assert "set log.dirs to an empty folder" in broker.output and "Traceback" not in broker.output
    assert content(kafka.data_dir) == before
    with kafka:
        assert read(kafka.bootstrap) == written
