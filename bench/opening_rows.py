"""The rows of a start with many partitions: after an orderly end, and after kill -9.

50 of them, chosen at random, have records: with records in all of them, the orderly end before would take
longer than all else, for both systems sync the files of each.
"""

from __future__ import annotations

import random
import time
from functools import partial
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from .rows import Column, Numbers, Row
from .systems import OneBroker, System, create_topic, memory_mb, shut_down

TOPIC_PARTITIONS = 2_000
"""Of each topic: one request to create more would take longer than clients wait."""
SAMPLED = 50
TIMEOUT_S = 600.0
EAGER = {
    "linger.ms": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "message.timeout.ms": int(TIMEOUT_S * 1000),
    # Kafka takes longer than the 30 s of librdkafka's default until it serves each of 20,000 new partitions.
    "topic.metadata.propagation.max.ms": int(TIMEOUT_S * 1000),
    "log_level": 0,
}

Partition = tuple[str, int]


def _open(system: System, partitions: int, per_topic: int = TOPIC_PARTITIONS) -> Numbers:
    system.launch()
    system.wait_ready()
    began = time.monotonic()
    topics = [create_topic(system, f"many-{number}", per_topic) for number in range(partitions // per_topic)]
    everything = [(topic, number) for topic in topics for number in range(per_topic)]
    sample = random.Random(partitions).sample(everything, min(SAMPLED, len(everything)))
    write_to(system, sample)
    # Kafka answers CreateTopics before the logs exist: what counts is when the partitions can be written to.
    created = time.monotonic() - began
    broker = cast(OneBroker, system)
    ended = shut_down(broker, TIMEOUT_S)
    ordered = _start(broker, sample)
    broker.kill()
    killed = _start(broker, sample)
    return {
        "ordered_s": ordered,
        "killed_s": killed,
        "created_s": created,
        "ended_s": ended,
        "rss_mb": memory_mb(broker)["rss_mb"],
    }


def _start(system: OneBroker, sample: list[Partition]) -> float:
    """The seconds until partitions taken at random have all acknowledged a record."""
    began = time.monotonic()
    system.launch()
    write_to(system, sample)
    return time.monotonic() - began


def write_to(system: System, partitions: list[Partition]) -> None:
    """One record to each, acks=all; returns when all are acknowledged, so that each can be written to."""

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)

    producer = Producer({"bootstrap.servers": system.bootstrap, "acks": "all", **EAGER})
    for topic, number in partitions:
        producer.produce(topic, b"x" * 100, partition=number, on_delivery=on_delivery)
    if left := producer.flush(TIMEOUT_S):
        raise RuntimeError(f"{system.name}: {left} records are not acknowledged after {TIMEOUT_S:.0f} s")


def _row(partitions: int, *, on_request: bool = False) -> Row:
    return Row(
        f"opening-{partitions}",
        f"start with {partitions:,} partitions",
        (
            Column("ordered_s", "after an orderly end", "s", more_is_better=False, digits=2),
            Column("killed_s", "after kill -9", "s", more_is_better=False, digits=2),
            Column("created_s", "until the new partitions take records", "s", more_is_better=False),
            Column("ended_s", "time of the orderly end", "s", more_is_better=False),
            Column("rss_mb", "resident memory after the start", "MB", more_is_better=False, digits=0),
        ),
        measure=partial(_open, partitions=partitions),
        once=True,
        on_request=on_request,
        quick=partial(_open, partitions=partitions // 100, per_topic=20),
    )


MANY = 16_000
"""Kafka holds a descriptor for each partition: more do not fit into a limit of 20,000 open files."""
OPENING_ROWS: tuple[Row, ...] = (_row(2_000), _row(MANY, on_request=True))
