"""One bit turned over at rest: named by file and byte; what lies before is served, what lies behind never."""

from __future__ import annotations

import time
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.logs.segments import StoredBatch, segment_files, stored_batches

TOPIC = "flipped"
RECORDS = 60


def _fill(broker: NilometerBroker) -> list[StoredBatch]:
    """Many batches in at least three segments."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = confluent_kafka.admin.NewTopic(TOPIC, 1, 1, config={"segment.bytes": "1048576"})
    admin.create_topics([topic])[TOPIC].result(10)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 2})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%06d" % number * 10_000)
    assert producer.flush(30) == 0
    batches = stored_batches(broker.data_dir, TOPIC, 0)
    assert len(segment_files(broker.data_dir, TOPIC, 0)) >= 3
    return batches


def _flip(batch: StoredBatch) -> None:
    """A bit in the middle of the records of one batch."""
    data = bytearray(batch.path.read_bytes())
    data[batch.position + batch.size // 2] ^= 0x10
    batch.path.write_bytes(data)


def _read_what_is_served(broker: NilometerBroker) -> list[int]:
    """Offsets from the start on, until an error, the end, or three seconds of silence."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    offsets: list[int] = []
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        quiet_from = time.monotonic()
        while time.monotonic() - quiet_from < 3:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error():
                break
            value = message.value()
            assert value == b"%06d" % message.offset() * 10_000
            offsets.append(message.offset())
            quiet_from = time.monotonic()
    finally:
        consumer.close()
    return offsets


@pytest.mark.parametrize("segment", ["first", "last"])
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_flipped_bit_is_named_and_nothing_behind_it_is_served(
    tmp_path: Path, segment: str, end: str
) -> None:
    broker = NilometerBroker(tmp_path / "data")
    with broker:
        batches = _fill(broker)
        if end == "killed":
            broker.kill()
    path = batches[0].path if segment == "first" else batches[-1].path
    inside = [batch for batch in batches if batch.path == path]
    damaged = inside[len(inside) // 2]
    _flip(damaged)
    before = broker.output
    broker.start()
    try:
        offsets = _read_what_is_served(broker)
        assert offsets == list(range(damaged.base_offset))
    finally:
        broker.stop()
    report = broker.output[len(before) :]
    assert damaged.path.name in report and str(damaged.position) in report, report[-3000:]
