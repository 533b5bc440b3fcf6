"""More clients than one: Java's, many connections, one producer to many partitions, compressed batches.

All on one broker. Java's programs run for a number of records, not for a time: each round's number follows
from the rate of the round before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from tests.support.wire.wire_peer import WirePeer, make

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api, encode_request
from nilometer.wire.records import BatchBuilder

from . import java_clients, load, plays
from .opening_rows import write_to
from .rows import (
    CLIENT,
    CPU_PER_MILLION,
    MB_PER_S,
    P50,
    P99,
    P999,
    RECORDS_PER_S,
    THROUGHPUT,
    Column,
    Load,
    Numbers,
    Row,
)
from .systems import System, cpu_seconds, create_topic, delete_topic

SIZE, BATCH = 100, 16_384
JAVA_RECORDS_MIN, JAVA_RECORDS_MAX = 20_000, 20_000_000
JAVA_WARM_UP_RECORDS, MANY_WARM_UP_RECORDS = 200_000, 20_000
"""Of the client, with one partition and with many: then each batch has a record or two."""
JAVA_TOPIC, JAVA_CONSUMED, JAVA_QUICK = "java-consumed", 6_000_000, 200_000
PRODUCER_SETTINGS = ("acks=all", "linger.ms=5", f"batch.size={BATCH}")
MANY_PARTITIONS = 2_000
SPREAD = "partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner"
CONNECTIONS = (1, 10, 100, 1_000)
CONNECTION_PARTITIONS = 6
SMALL_BATCH = 10
"""Records in each request of a connection."""
PRODUCE_VERSION, IDEMPOTENT_VERSION = 8, 13
WRITABLE_TIMEOUT_S = 30.0
CODECS = ("lz4", "zstd")

_java_rates: dict[tuple[str, int], float] = {}
"""(system, partitions) → records a second of the round before."""


def _java_produce(system: System, seconds: float, *, partitions: int, settings: tuple[str, ...]) -> Numbers:
    rate = _java_rates.get((system.name, partitions), JAVA_RECORDS_MIN / seconds)
    records = min(max(int(rate * seconds), JAVA_RECORDS_MIN), JAVA_RECORDS_MAX)
    warm_up_records = JAVA_WARM_UP_RECORDS if partitions == 1 else MANY_WARM_UP_RECORDS
    topic = plays.fresh_topic(system, "java-produced", partitions, 1)
    # Kafka answers CreateTopics before the logs exist, and the client would count its retries.
    write_to(system, [(topic, number) for number in range(partitions)])
    cpu = cpu_seconds(system)
    done = java_clients.produce(
        system.bootstrap, topic, records, SIZE, *settings, warm_up_records=warm_up_records
    )
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    _java_rates[system.name, partitions] = done["per_s"]
    sent = records + warm_up_records
    return {
        "records_per_s": done["per_s"],
        "mb_per_s": done["per_s"] * SIZE / 1e6,
        "cpu_s_per_million": cpu / sent * 1e6,
        **{f"{key}_ms": done[key] for key in ("p50", "p99", "p999")},
        **load.client_numbers(done),
    }


def _java_fill(system: System, records: int) -> None:
    create_topic(system, JAVA_TOPIC)
    load.run("fill", system.bootstrap, JAVA_TOPIC, records, SIZE, f"batch.size={BATCH}")


def _java_consume_load(records: int) -> Load:
    return Load(
        partial(_java_consume, records=records),
        "records_per_s",
        prepare=partial(_java_fill, records=records),
        clean=partial(delete_topic, name=JAVA_TOPIC),
    )


def _java_consume(system: System, seconds: float, *, records: int) -> Numbers:
    """The whole topic, by one process after another."""
    began = time.monotonic()
    passes: list[dict[str, Any]] = []
    cpu = cpu_seconds(system)
    while not passes or time.monotonic() - began < seconds:
        passes.append(java_clients.consume(system.bootstrap, JAVA_TOPIC, records))
    cpu = cpu_seconds(system) - cpu
    return plays.throughput(
        records * len(passes), sum(done["seconds"] for done in passes), SIZE, cpu, passes[-1]
    )


def small_batches(system: System, seconds: float, *, connections: int) -> Numbers:
    """Each connection sends a small batch, acks=all, and the next when it is answered."""
    topic = plays.fresh_topic(system, "connected", CONNECTION_PARTITIONS, 1)
    batch = _batch()
    frames = [_produce_frame(batch, partition, topic=topic) for partition in range(CONNECTION_PARTITIONS)]
    error_at = 4 + 4 + 2 + len(topic) + 4 + 4
    """In a response of version 8: behind correlation id, topics, name, partitions, index."""
    _wait_writable(system, frames, error_at)
    found = ask(system, seconds, frames, error_at, connections)
    delete_topic(system, topic)
    return {**found, "records_per_s": SMALL_BATCH * found["requests_per_s"]}


def idempotent_batches(system: System, seconds: float, *, connections: int) -> Numbers:
    """The same by idempotent producers, one on each connection, with the newest version of Produce."""
    topic = plays.fresh_topic(system, "numbered", CONNECTION_PARTITIONS, 1)
    with WirePeer(system.bootstrap) as peer:
        (found,) = peer.ask(
            ApiKey.METADATA, 12, topics=(make(ApiKey.METADATA, 12, "MetadataRequestTopic", name=topic),)
        ).topics
        ids = [_producer_id(peer) for _ in range(connections)]
    batch = _batch()
    frames = [
        _produce_frame(batch, partition, topic_id=found.topic_id)
        for partition in range(CONNECTION_PARTITIONS)
    ]
    error_at = 4 + 1 + 1 + 16 + 1 + 4
    """In a response of version 13: behind correlation id, tags, topics, id, partitions, index."""
    _wait_writable(system, frames, error_at)
    producers = Producers(ids, frames[0].index(batch), SMALL_BATCH)
    numbers = ask(system, seconds, frames, error_at, connections, producers)
    delete_topic(system, topic)
    return {**numbers, "records_per_s": SMALL_BATCH * numbers["requests_per_s"]}


def _producer_id(peer: WirePeer) -> int:
    """Raises RuntimeError if the broker gives none for ``WRITABLE_TIMEOUT_S``."""
    deadline = time.monotonic() + WRITABLE_TIMEOUT_S
    while True:
        given = peer.ask(
            ApiKey.INIT_PRODUCER_ID,
            4,
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        if given.error_code is ErrorCode.none:
            return given.producer_id
        if time.monotonic() > deadline:
            raise RuntimeError(f"no producer id: {given.error_code.name}")
        time.sleep(0.02)


class Producers(NamedTuple):
    """The connections as idempotent producers."""

    ids: list[int]
    batch_at: int
    """Where a frame has its batch."""
    records: int
    """In each batch."""


def ask(
    system: System,
    seconds: float,
    frames: list[bytes],
    error_at: int,
    connections: int,
    producers: Producers | None = None,
) -> dict[str, float]:
    """Each connection sends one of the frames, and again when it is answered.

    ``error_at``: where a response has its error code, which must be 0.
    """
    host, _, port = system.bootstrap.rpartition(":")
    numbered = () if producers is None else (producers.batch_at, producers.records)
    ids = b"" if producers is None else b"".join(one.to_bytes(8, "big") for one in producers.ids)
    cpu, began = cpu_seconds(system), time.monotonic()
    client = load.start(
        *(host, port, connections, seconds, len(frames), error_at, *numbered),
        program="connections",
        text=False,
    )
    done = load.finish(client, b"".join(frames) + ids)
    taken = time.monotonic() - began
    cpu = cpu_seconds(system) - cpu
    return {
        "requests_per_s": done["requests"] / done["seconds"],
        **{f"{key}_ms": done[key] for key in ("p50", "p99", "p999")},
        "cpu_percent": 100 * cpu / taken,
        "cpu_us_per_request": cpu / done["requests"] * 1e6,
        **load.client_numbers(done),
    }


def _wait_writable(system: System, frames: list[bytes], error_at: int) -> None:
    """Until a record is acknowledged for each frame: Kafka answers CreateTopics before the logs exist."""
    deadline = time.monotonic() + WRITABLE_TIMEOUT_S
    with WirePeer(system.bootstrap) as peer:
        for frame in frames:
            while True:
                peer.socket.sendall(frame)
                error = ErrorCode(int.from_bytes(peer.receive()[error_at : error_at + 2], "big"))
                if error is ErrorCode.none:
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{system.name} takes no records: {error.name}")
                time.sleep(0.02)


def _batch() -> bytes:
    builder = BatchBuilder()
    for _ in range(SMALL_BATCH):
        builder.append(time.time_ns() // 1_000_000, None, b"x" * SIZE, ())
    return builder.build()


def _produce_frame(batch: bytes, partition: int, *, topic: str = "", topic_id: UUID | None = None) -> bytes:
    """``topic_id``: with it, in the newest version."""
    named = {"name": topic} if topic_id is None else {"topic_id": topic_id}
    made = api(ApiKey.PRODUCE, PRODUCE_VERSION if topic_id is None else IDEMPOTENT_VERSION)
    part = made.make_request("PartitionProduceData", index=partition, records=batch)
    data = made.make_request("TopicProduceData", **named, partition_data=(part,))
    request = made.request(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=(data,))
    return encode_request(1, "bench", request)


REQUESTS_COLUMNS = (
    Column("requests_per_s", "requests/s", "requests/s", more_is_better=True, digits=0),
    P50,
    P99,
    P999,
    Column("cpu_us_per_request", "broker CPU per request", "µs", more_is_better=False),
    *CLIENT,
)


def _connection_row(key: str, clients: str, connections: int, play: Callable[..., Numbers]) -> Row:
    plural = "s" if connections > 1 else ""
    return Row(
        f"{key}-{connections}",
        f"{connections:,} {clients}{plural}, batches of {SMALL_BATCH} records of {SIZE} B, "
        "each sent when the one before is acknowledged",
        REQUESTS_COLUMNS,
        Load(partial(play, connections=connections), "requests_per_s"),
    )


def _compressed_row(codec: str) -> Row:
    settings = [f"batch.size={BATCH}", f"compression.type={codec}", "payload=text"]
    return Row(
        f"compressed-{codec}",
        f"produce {SIZE} B records of text, batches of {BATCH // 1000} kB, compressed by {codec}",
        THROUGHPUT,
        Load(partial(plays.produce, size=SIZE, settings=settings), "records_per_s"),
    )


CLIENT_ROWS: tuple[Row, ...] = (
    Row(
        "java-produce",
        f"`kafka-producer-perf-test`: {SIZE} B records, batches of {BATCH // 1000} kB, acks=all",
        (RECORDS_PER_S, MB_PER_S, CPU_PER_MILLION, P50, P99, *CLIENT),
        Load(partial(_java_produce, partitions=1, settings=PRODUCER_SETTINGS), "records_per_s"),
    ),
    Row(
        "java-consume",
        f"`kafka-consumer-perf-test`: {SIZE} B records, stored in batches of {BATCH // 1000} kB",
        THROUGHPUT,
        _java_consume_load(JAVA_CONSUMED),
        quick_load=_java_consume_load(JAVA_QUICK),
    ),
    Row(
        f"partitions-{MANY_PARTITIONS}",
        f"`kafka-producer-perf-test` to {MANY_PARTITIONS:,} partitions in turn, linger 5 ms",
        (RECORDS_PER_S, CPU_PER_MILLION, P50, P99, *CLIENT),
        Load(
            partial(_java_produce, partitions=MANY_PARTITIONS, settings=(*PRODUCER_SETTINGS, SPREAD)),
            "records_per_s",
        ),
    ),
    *(_connection_row("connections", "connection", count, small_batches) for count in CONNECTIONS),
    *(
        _connection_row("idempotent", "idempotent producer", count, idempotent_batches)
        for count in CONNECTIONS[1:]
    ),
    *(_compressed_row(codec) for codec in CODECS),
)
