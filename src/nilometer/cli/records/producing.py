"""Sends the records that ``nilometer produce`` reads, and counts what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import click

from nilometer.cli.records.input_records import BadInput, InputRecord
from nilometer.cli.records.produce_input import Item, Items
from nilometer.client.network.topic_lookup import no_such_topic, topic_exists
from nilometer.client.producer.delivery import Delivery
from nilometer.client.producer.producer import Producer
from nilometer.client.settings.client_settings import GivenConfig
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError

Parse = Callable[[bytes], InputRecord]
"""Makes a record of a line or file. Raises BadInput."""

_OF_ONE_RECORD = (ErrorCode.message_too_large, ErrorCode.unknown_topic_or_partition)


@dataclass(frozen=True, slots=True)
class Target:
    topic: str
    partition: int | None
    """The partition of every record; None: chosen by the record."""
    headers: tuple[tuple[str, bytes | None], ...]
    """Headers of every record, before its own."""
    create: bool
    """Whether a missing topic is created, with the brokers' defaults, for the first record."""


@dataclass(slots=True)
class Outcome:
    partitions: Counter[int] = field(default_factory=Counter[int])
    failed: int = 0
    first_error: KafkaError | None = None
    created: bool = False
    stopped_by: str | None = None
    """Why the input was not read to its end."""

    @property
    def written(self) -> int:
        return self.partitions.total()

    def count(self, delivery: Delivery) -> None:
        try:
            self.partitions[delivery.result().partition] += 1
        except KafkaError as error:
            self.failed += 1
            if self.first_error is None:
                self.first_error = error


async def produce_items(items: Items, parse: Parse, target: Target, config: GivenConfig) -> Outcome:
    """Send the records of ``items``, and wait until they are acknowledged. Raises KafkaError, OSError.

    A line that is no record ends the input; the records before it are written.
    """
    outcome = Outcome()
    async with Producer(Runtime.system(), config) as producer:
        may_create, producer.client.auto_create_topics = producer.client.auto_create_topics, False
        exists = await topic_exists(producer.client, target.topic, producer.config.max_block_ms)
        if not exists and not (target.create and may_create):
            raise no_such_topic(target.topic)
        try:
            async for some in items:
                for item in some:
                    record = _record(item, parse)
                    if not exists:
                        await _create(producer, target.topic)
                        exists = outcome.created = True
                    delivery = await _send(producer, item, record, target)
                    delivery.add_done_callback(outcome.count)
        except BadInput as error:
            outcome.stopped_by = str(error)
        await producer.flush()
    return outcome


def _record(item: Item, parse: Parse) -> InputRecord:
    try:
        return parse(item.data)
    except BadInput as error:
        raise BadInput(f"{item.place}: {error}") from None


async def _send(producer: Producer, item: Item, record: InputRecord, target: Target) -> Delivery:
    partition = record.partition if target.partition is None else target.partition
    try:
        return await producer.send(
            target.topic,
            record.value,
            key=record.key,
            headers=(*target.headers, *record.headers),
            partition=partition,
            timestamp=record.timestamp,
        )
    except KafkaError as error:
        if error.code in _OF_ONE_RECORD:
            raise BadInput(f"{item.place}: {error}") from error
        raise


async def _create(producer: Producer, topic: str) -> None:
    """Have a broker create the topic, and say so. Raises KafkaError if the brokers create none."""
    client, timeout_ms = producer.client, producer.config.max_block_ms
    client.auto_create_topics = True
    await client.refresh()
    client.auto_create_topics = False
    if not await topic_exists(client, topic, timeout_ms):
        code = client.topic_errors.get(topic, ErrorCode.unknown_topic_or_partition)
        raise KafkaError(
            code,
            f"topic {topic} does not exist, and the broker did not create it (auto.create.topics.enable): "
            f"`nilometer topic create {topic}`",
        )
    count = len((await client.topic(topic, timeout_ms)).partitions)
    click.echo(f"Created topic {topic} with {count} partition{'' if count == 1 else 's'}.", err=True)
