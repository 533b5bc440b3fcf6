"""The rows for three brokers: what replication costs, and how long a cluster takes to get over a loss.

Same rules as in `rows.py`. Topics have three replicas, `acks=all`, two of three in sync at least.
"""

from __future__ import annotations

import time
from functools import partial
from typing import cast

from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from . import load
from .clusters import Cluster, admin_of, leader_of, wait_in_sync, wait_members
from .pulse import Pulse, acknowledged_at
from .rows import IDLE_CPU, LATENCY, START, THROUGHPUT, Column, Numbers, Row
from .systems import System, cpu_seconds, create_topic, delete_topic, descriptors, memory_mb

PARTITIONS = 6
SHUTDOWN_PARTITIONS = 1000
MANY_TOPICS, MANY_PARTITIONS = 5, 2000
IDLE_S = 5.0
FAILOVER_TIMEOUT_S = 60.0


def _topic(system: System, name: str, partitions: int = 1) -> str:
    create_topic(system, name, partitions, 3)
    wait_in_sync(cast(Cluster, system), name)
    return name


def _warm_up(system: System) -> Numbers:
    topic = _topic(system, "warm-up", PARTITIONS)
    load.run("produce", system.bootstrap, topic, 300_000, 100, 1_000_000, "all")
    load.run("produce", system.bootstrap, topic, 50_000, 100, 16_384, "all")
    load.run("latency", system.bootstrap, topic, 1000, 1, 100, "all")
    delete_topic(system, topic)
    return {}


def _cold_start(system: System) -> Numbers:
    """All three at once, on folders that know one topic, while a producer already waits for them."""
    system.launch()
    system.wait_ready()
    topic = _topic(system, "first")
    load.run("first", system.bootstrap, topic)
    system.stop()
    began = time.monotonic()
    system.launch()
    waiting = load.start("first", system.bootstrap, topic)
    acknowledged_at = load.finish(waiting)["acknowledged_at"]
    system.wait_ready()
    return {"seconds": acknowledged_at - began}


def _produce(system: System, size: int, batch: int, count: int) -> Numbers:
    topic = _topic(system, f"replicated-{size}-{batch}", PARTITIONS)
    cpu = cpu_seconds(system)
    done = load.run("produce", system.bootstrap, topic, count, size, batch, "all")
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    return {
        "records_per_s": count / done["seconds"],
        "mb_per_s": count * size / done["seconds"] / 1e6,
        "cpu_s_per_million": cpu / count * 1e6,
    }


def _latency(system: System, rate: int, seconds: int) -> Numbers:
    topic = _topic(system, f"replicated-latency-{rate}")
    cpu = cpu_seconds(system)
    done = load.run("latency", system.bootstrap, topic, rate, seconds, 100, "all")
    cpu = cpu_seconds(system) - cpu
    return {"p50_ms": done["p50"], "p99_ms": done["p99"], "cpu_percent": 100 * cpu / (seconds + 2)}


def _failover(system: System, name: str) -> Numbers:
    """kill -9 of a partition's leader that is not the controller."""
    cluster = cast(Cluster, system)
    controller = cluster.controller()
    for number in range(10):
        topic = _topic(system, f"{name}-{number}")
        leader = leader_of(cluster, topic)
        if leader != controller:
            break
    else:
        raise RuntimeError("the controller leads every partition")
    with Pulse(system.bootstrap, topic) as pulse:
        pulse.wait_acknowledged(since=time.monotonic())
        killed_at = time.monotonic()
        cluster.kill(leader)
        bare = acknowledged_at(system.bootstrap, topic, other_than=leader)
        librdkafka = pulse.wait_acknowledged(since=killed_at)
    cluster.start(leader)
    wait_in_sync(cluster, topic)
    return {"seconds": bare - killed_at, "librdkafka_s": librdkafka - killed_at}


def _failover_noticed_early(system: System) -> Numbers:
    cast(Cluster, system).notice_deaths_early()
    return _failover(system, "failover-early")


def _controlled_shutdown(system: System) -> Numbers:
    cluster = cast(Cluster, system)
    topic = _topic(system, "shutdown", SHUTDOWN_PARTITIONS)
    controller = cluster.controller()
    victim = next(one for one in (3, 2, 1) if one != controller)
    seconds = cluster.shut_down(victim)
    cluster.start(victim)
    wait_in_sync(cluster, topic)
    delete_topic(system, topic)
    return {"seconds": seconds}


def _idle_with_many(system: System) -> Numbers:
    began = time.monotonic()
    for number in range(MANY_TOPICS):
        _topic(system, f"many-{number}", MANY_PARTITIONS)
    created = time.monotonic() - began
    time.sleep(IDLE_S)
    cpu, began = cpu_seconds(system), time.monotonic()
    time.sleep(IDLE_S)
    share = (cpu_seconds(system) - cpu) / (time.monotonic() - began)
    return {
        "created_s": created,
        "cpu_percent": 100 * share,
        "descriptors": max(descriptors(system)),
        "rss_mb": memory_mb(system)["rss_mb"],
    }


def _controller_change(system: System) -> Numbers:
    """kill -9 of the controller, to the next topic created by its successor."""
    cluster = cast(Cluster, system)
    controller = cluster.controller()
    killed_at = time.monotonic()
    cluster.kill(controller)
    seconds = _until_created(cluster, killed_at)
    cluster.start(controller)
    wait_members(cluster, 3)
    return {"seconds": seconds}


def _until_created(cluster: Cluster, since: float) -> float:
    admin = admin_of(cluster)
    number = 0
    while time.monotonic() < since + FAILOVER_TIMEOUT_S:
        number += 1
        topic = NewTopic(f"under-the-next-{number}", 1, 2)
        try:
            admin.create_topics([topic], request_timeout=2, operation_timeout=2)[topic.topic].result(5)
        except KafkaException:
            continue  # no controller to decide it yet: asked again
        return time.monotonic() - since
    raise RuntimeError("no topic could be created")


_SECONDS = (Column("seconds", "time", "s", more_is_better=False, digits=2),)
_FAILOVER = (
    Column("seconds", "client that asks again at once", "s", more_is_better=False, digits=2),
    Column("librdkafka_s", "librdkafka", "s", more_is_better=False, digits=2),
)
_MANY = MANY_TOPICS * MANY_PARTITIONS
_SHAPES = (
    (100, 1_000_000, 1_500_000),
    (100, 16_384, 600_000),
    (1000, 1_000_000, 250_000),
    (1000, 16_384, 150_000),
)

CLUSTER_WARM_UP = Row("cluster-warm-up", "warm-up", (), _warm_up, brokers=3)


def _produce_row(size: int, batch: int, count: int) -> Row:
    return Row(
        f"cluster-produce-{size}-{batch}",
        f"produce {size} B records, batches of {batch // 1000} kB, {PARTITIONS} partitions",
        THROUGHPUT,
        partial(_produce, size=size, batch=batch, count=count),
        brokers=3,
    )


CLUSTER_ROWS: tuple[Row, ...] = (
    Row(
        "cluster-start",
        "cold start of three brokers to the first acknowledged record",
        START,
        _cold_start,
        launches=True,
        is_under_load=False,
        brokers=3,
    ),
    *(_produce_row(*shape) for shape in _SHAPES),
    Row(
        "cluster-latency-1000",
        "produce 1,000 records/s, linger 0",
        LATENCY,
        partial(_latency, rate=1000, seconds=6),
        brokers=3,
    ),
    Row(
        "cluster-failover",
        "kill -9 of a leader to the next acknowledged record, at default settings",
        _FAILOVER,
        partial(_failover, name="failover"),
        brokers=3,
    ),
    Row(
        "cluster-shutdown",
        f"controlled shutdown of a broker with {SHUTDOWN_PARTITIONS:,} replicas",
        _SECONDS,
        _controlled_shutdown,
        brokers=3,
    ),
    Row(
        "cluster-many-idle",
        f"{_MANY:,} partitions, {3 * _MANY:,} replicas, idle",
        (
            IDLE_CPU,
            Column("descriptors", "descriptors of a broker, at most", "", more_is_better=False, digits=0),
            Column("rss_mb", "resident memory of all", "MB", more_is_better=False, digits=0),
            Column("created_s", "time to create them", "s", more_is_better=False),
        ),
        _idle_with_many,
        brokers=3,
        once=True,
    ),
    Row(
        "cluster-many-controller",
        f"kill -9 of the controller with {_MANY:,} partitions to the next topic created",
        _SECONDS,
        _controller_change,
        brokers=3,
        once=True,
    ),
    Row(
        "cluster-failover-early",
        "kill -9 of a leader to the next acknowledged record, Kafka's broker session 1 s, not 9 s",
        _FAILOVER,
        _failover_noticed_early,
        brokers=3,
    ),
)
