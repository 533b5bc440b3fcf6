"""kafka-python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kafka
import kafka.errors
import kafka.structs

from .face import DEFAULTS, TIMEOUT_S, Options, Read, Refused, Written, constant_case, ordered


@dataclass
class KafkaPythonClient:
    """kafka-python."""

    bootstrap: str
    name: str = "kafka-python"

    def write(
        self, topic: str, records: Sequence[Written], options: Options = DEFAULTS
    ) -> list[tuple[int, int] | None]:
        limits: dict[str, Any] = (
            {"max_request_size": options.max_request_bytes} if options.max_request_bytes else {}
        )
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all" if options.acks == "all" else int(options.acks),
            enable_idempotence=options.idempotent and options.acks == "all",
            compression_type=None if options.codec == "none" else options.codec,
            linger_ms=20,
            **limits,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in records
            ]
            producer.flush(TIMEOUT_S)
            metadata = [each.get(TIMEOUT_S) for each in sent]
        except kafka.errors.BrokerResponseError as refusal:
            raise Refused(constant_case(type(refusal).__name__)) from refusal
        finally:
            producer.close()
        return [(each.partition, each.offset) if options.acks != "0" else None for each in metadata]

    def read(self, topic: str, partitions: int) -> list[Read]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=None, enable_auto_commit=False
        )
        try:
            assigned = [kafka.structs.TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(assigned)
            consumer.seek_to_beginning(*assigned)
            ends = consumer.end_offsets(assigned)
            found: list[Read] = []
            while any((consumer.position(each) or 0) < ends[each] for each in assigned):
                for batch in consumer.poll(timeout_ms=200).values():
                    found += [self.as_read(record) for record in batch]
            return ordered(found)
        finally:
            consumer.close()

    @staticmethod
    def as_read(record: Any) -> Read:
        return Read(
            record.partition, record.offset, record.key, record.value, record.timestamp, tuple(record.headers)
        )

    def close(self) -> None:
        pass
