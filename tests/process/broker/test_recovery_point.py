"""A segment that is full is flushed soon: after a kill -9 only what came later has to be checked."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from nilometer.runtime import Runtime
from nilometer.storage import checkpoints, names
from nilometer.storage.names import TopicPartition
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually
from support.logs.segments import segment_files

TOPIC = "full"


def test_the_recovery_point_follows_segments_that_are_full(tmp_path: Path) -> None:
    settings = {"log.segment.bytes": "1048576", "replica.high.watermark.checkpoint.interval.ms": "100"}
    with NilometerBroker(tmp_path / "data", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(10)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "batch.num.messages": 10,
                "compression.type": "none",
                "log_level": 0,
            }
        )
        for _ in range(400):
            producer.produce(TOPIC, b"x" * 10_000, partition=0)
        assert producer.flush(30) == 0
        bases = [int(path.stem) for path in segment_files(broker.data_dir, TOPIC, 0)]
        assert len(bases) >= 3
        eventually(lambda: _recovery_point(broker.data_dir) >= bases[-1], "the recovery point has followed")


def _recovery_point(data_dir: Path) -> int:
    path = str(data_dir / names.RECOVERY_POINT_CHECKPOINT)
    return checkpoints.read_offsets(Runtime.system().disk, path).get(TopicPartition(TOPIC, 0), 0)
