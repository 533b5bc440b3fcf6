"""confluent-kafka: librdkafka from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import confluent_kafka

from .face import DEFAULTS, TIMEOUT_S, Options, Read, Refused, Written, ordered


@dataclass
class ConfluentClient:
    """confluent-kafka: librdkafka, configured with Java's partitioner, which is not its default."""

    bootstrap: str
    name: str = "confluent-kafka"

    def _common(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 3}

    def write(
        self, topic: str, records: Sequence[Written], options: Options = DEFAULTS
    ) -> list[tuple[int, int] | None]:
        config = self._common() | {
            "partitioner": "murmur2_random",
            "compression.type": options.codec,
            "acks": options.acks,
            "enable.idempotence": options.idempotent and options.acks == "all",
            "linger.ms": 20,
        }
        if options.max_request_bytes:
            config["message.max.bytes"] = options.max_request_bytes
        producer = confluent_kafka.Producer(config)
        reports: list[tuple[int, int] | confluent_kafka.KafkaError | None] = [None] * len(records)

        for index, record in enumerate(records):

            def reported(error: Any, message: Any, index: int = index) -> None:
                reports[index] = error or (message.partition(), message.offset())

            optional: dict[str, Any] = {}
            if record.partition is not None:
                optional["partition"] = record.partition
            if record.timestamp is not None:
                optional["timestamp"] = record.timestamp
            producer.produce(
                topic,
                record.value,
                record.key,
                headers=list(record.headers),
                on_delivery=reported,
                **optional,
            )
        if producer.flush(TIMEOUT_S):
            raise TimeoutError("confluent-kafka did not deliver in time")
        outcomes: list[tuple[int, int] | None] = []
        for report in reports:
            if isinstance(report, confluent_kafka.KafkaError):
                raise Refused(report.name())
            outcomes.append(report)
        return outcomes

    def consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            self._common()
            | {"group.id": "reader", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        )

    def read(self, topic: str, partitions: int) -> list[Read]:
        consumer = self.consumer()
        try:
            ends = {
                partition: consumer.get_watermark_offsets(
                    confluent_kafka.TopicPartition(topic, partition), timeout=TIMEOUT_S
                )[1]
                for partition in range(partitions)
            }
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in ends])
            found: list[Read] = []
            missing = {partition for partition, end in ends.items() if end}
            while missing:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise TimeoutError(f"confluent-kafka read {len(found)} records, still missing {missing}")
                if message.error():
                    raise Refused(message.error().name())
                record = self.as_read(message)
                found.append(record)
                if record.offset + 1 >= ends[record.partition]:
                    missing.discard(record.partition)
            return ordered(found)
        finally:
            consumer.close()

    @staticmethod
    def as_read(message: Any) -> Read:
        return Read(
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            message.timestamp()[1],
            tuple(message.headers() or ()),
        )

    def close(self) -> None:
        pass
