"""The rows for three brokers: what replication costs, a shutdown, many partitions.

Topics have three replicas, `acks=all`, two of three in sync at least. What a leader's death costs is in
`failover_rows.py`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import cast

from tests.support.wire.new_topics import first_created

from . import plays
from .broker_rows import QUIET_S, RATE, SHAPES, first_acknowledgement, launch
from .clusters import Cluster, wait_in_sync, wait_members
from .rows import IDLE_CPU, LATENCY, START, THROUGHPUT, Column, Load, Numbers, Row
from .systems import System, cpu_seconds, delete_topic, descriptors, memory_mb

PARTITIONS = 6
SHUTDOWN_PARTITIONS = 1000
SHUTDOWNS = 3
MANY_TOPICS, MANY_PARTITIONS = 5, 2000
IDLE_S = 30.0
CREATE_TIMEOUT_S = 300.0


def _controlled_shutdown(
    system: System, partitions: int = SHUTDOWN_PARTITIONS, shutdowns: int = SHUTDOWNS
) -> Numbers:
    """Of a broker that is not the controller, again and again."""
    launch(system)
    cluster = cast(Cluster, system)
    topic = plays.fresh_topic(system, "shutdown", partitions, 3)
    seconds: list[float] = []
    for _ in range(shutdowns):
        controller = cluster.controller()
        victim = next(one for one in (3, 2, 1) if one != controller)
        seconds.append(cluster.shut_down(victim))
        cluster.start(victim)
        wait_in_sync(cluster, topic)
    delete_topic(system, topic)
    return {"seconds": seconds}


def _create_many(system: System, topics: int = MANY_TOPICS, partitions: int = MANY_PARTITIONS) -> Numbers:
    launch(system)
    began = time.monotonic()
    for _ in range(topics):
        plays.fresh_topic(system, "many", partitions, 3)
    return {"created_s": time.monotonic() - began}


def _idle_with_many(system: System, quiet_s: float = QUIET_S, idle_s: float = IDLE_S) -> Numbers:
    time.sleep(quiet_s)
    cpu, began = cpu_seconds(system), time.monotonic()
    time.sleep(idle_s)
    share = (cpu_seconds(system) - cpu) / (time.monotonic() - began)
    return {
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
    seconds = until_created(cluster, killed_at)
    cluster.start(controller)
    wait_members(cluster, 3)
    return {"controller_s": seconds}


def until_created(cluster: Cluster, since: float) -> float:
    """The seconds from ``since`` until a topic can be created."""
    first_created(cluster.bootstrap.split(","), f"after-{since}", CREATE_TIMEOUT_S, replication_factor=2)
    return time.monotonic() - since


def _produce_row(size: int, batch: int) -> Row:
    play = partial(
        plays.produce, size=size, partitions=PARTITIONS, brokers=3, settings=[f"batch.size={batch}"]
    )
    return Row(
        f"cluster-produce-{size}-{batch}",
        f"produce {size} B records, batches of {batch // 1000} kB, {PARTITIONS} partitions",
        THROUGHPUT,
        Load(play, "records_per_s"),
        brokers=3,
    )


_MANY = MANY_TOPICS * MANY_PARTITIONS

CLUSTER_ROWS: tuple[Row, ...] = (
    Row(
        "cluster-start",
        "cold start of three brokers to the first acknowledged record",
        START,
        measure=partial(first_acknowledgement, brokers=3),
        brokers=3,
    ),
    *(_produce_row(*shape) for shape in SHAPES),
    Row(
        f"cluster-latency-{RATE}",
        f"produce {RATE:,} records/s, linger 0",
        LATENCY,
        Load(partial(plays.constant_rate, rate=RATE, size=100, brokers=3), "p50_ms"),
        brokers=3,
    ),
    Row(
        "cluster-shutdown",
        f"controlled shutdown of a broker with {SHUTDOWN_PARTITIONS:,} replicas",
        START,
        measure=_controlled_shutdown,
        quick=partial(_controlled_shutdown, partitions=20, shutdowns=1),
        brokers=3,
        once=True,
    ),
    Row(
        "cluster-many",
        f"{_MANY:,} partitions, {3 * _MANY:,} replicas, idle, after five quiet minutes",
        (
            IDLE_CPU,
            Column("descriptors", "descriptors of a broker, at most", "", more_is_better=False, digits=0),
            Column("rss_mb", "resident memory of all", "MB", more_is_better=False, digits=0),
            Column("created_s", "time to create them", "s", more_is_better=False),
            Column(
                "controller_s",
                "kill -9 of the controller to the next topic created",
                "s",
                more_is_better=False,
                digits=2,
            ),
        ),
        measure=_idle_with_many,
        quick=partial(_idle_with_many, quiet_s=1.0, idle_s=2.0),
        before=_create_many,
        quick_before=partial(_create_many, topics=2, partitions=50),
        after=_controller_change,
        brokers=3,
        once=True,
    ),
)
