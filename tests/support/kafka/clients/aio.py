"""aiokafka, on its own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiokafka

from .face import DEFAULTS, TIMEOUT_S, Options, Read, Refused, Written, constant_case, ordered

T = TypeVar("T")


@dataclass
class AiokafkaClient:
    """aiokafka, on its own event loop."""

    bootstrap: str
    name: str = "aiokafka"
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def write(
        self, topic: str, records: Sequence[Written], options: Options = DEFAULTS
    ) -> list[tuple[int, int] | None]:
        return self.run(self._write(topic, records, options))

    async def _write(
        self, topic: str, records: Sequence[Written], options: Options
    ) -> list[tuple[int, int] | None]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all" if options.acks == "all" else int(options.acks),
            enable_idempotence=options.idempotent and options.acks == "all",
            compression_type=None if options.codec == "none" else options.codec,
            linger_ms=20,
            **({"max_request_size": options.max_request_bytes} if options.max_request_bytes else {}),
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    topic,
                    record.value,
                    record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp,
                    headers=list(record.headers),
                )
                for record in records
            ]
            await producer.flush()
            metadata = [await each for each in sent]
        except aiokafka.errors.BrokerResponseError as refusal:
            raise Refused(constant_case(type(refusal).__name__)) from refusal
        finally:
            await producer.stop()
        return [(each.partition, each.offset) if options.acks != "0" else None for each in metadata]

    def read(self, topic: str, partitions: int) -> list[Read]:
        return self.run(asyncio.wait_for(self._read(topic, partitions), TIMEOUT_S))

    async def _read(self, topic: str, partitions: int) -> list[Read]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=None, enable_auto_commit=False
        )
        await consumer.start()
        try:
            assigned = [aiokafka.TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(assigned)
            await consumer.seek_to_beginning(*assigned)
            ends = await consumer.end_offsets(assigned)
            found: list[Read] = []
            while any([await consumer.position(each) < ends[each] for each in assigned]):
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    found += [self.as_read(record) for record in batch]
            return ordered(found)
        finally:
            await consumer.stop()

    @staticmethod
    def as_read(record: Any) -> Read:
        return Read(
            record.partition, record.offset, record.key, record.value, record.timestamp, tuple(record.headers)
        )

    def close(self) -> None:
        self._loop.close()
