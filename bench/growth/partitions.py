"""Partitions: creating them, electing all leaders of a dead broker, a start, memory, the next controller.

Three brokers, three replicas of each partition, no records. A client that asks for one topic after another
sees the times: it has to read the metadata of all partitions, which is part of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ..cluster_rows import until_created
from ..clusters import BROKERS, NilometerThree, admin_of, wait_members
from ..systems import CREATE_TIMEOUT_S, cpu_seconds, descriptors, memory_mb
from .curve import Curve, Measure, Point, three_brokers

TOPIC_PARTITIONS = 500
IDLE_S = 20.0
SETTLE_S = 20.0
TIMEOUT_S = 600.0
POLL_S = 0.02

_IsDone = Callable[[int, int, int], bool]


def _measure(partitions: int) -> Point:
    with three_brokers() as system:
        topics, created_s = _create(system, partitions)
        time.sleep(SETTLE_S)
        idle = _idle_percent(system)
        rss, files = memory_mb(system)["rss_mb"], max(descriptors(system))
        victim = next(one for one in range(BROKERS, 0, -1) if one != system.controller())
        elected_s = _elect(system, topics, victim)
        back_s = _come_back(system, topics, victim)
        controller_s = _next_controller(system)
    return {
        "created_s": created_s,
        "elected_s": elected_s,
        "back_s": back_s,
        "controller_s": controller_s,
        "idle_percent": idle,
        "rss_mb": rss,
        "descriptors": files,
    }


def _create(system: NilometerThree, partitions: int) -> tuple[list[str], float]:
    """The topics, and the seconds until all their replicas are in sync."""
    per_topic = min(TOPIC_PARTITIONS, partitions)
    admin, began = admin_of(system), time.monotonic()
    topics = [f"many-{number}" for number in range(partitions // per_topic)]
    for topic in topics:
        new = NewTopic(topic, per_topic, BROKERS)
        admin.create_topics([new], request_timeout=CREATE_TIMEOUT_S)[topic].result(CREATE_TIMEOUT_S)
    _wait_each(admin, topics, began, lambda leader, isr, _replicas: leader >= 0 and isr == BROKERS)
    return topics, time.monotonic() - began


def _wait_each(admin: AdminClient, topics: list[str], began: float, is_done: _IsDone) -> None:
    """Until ``is_done`` (leader, number in sync, number of replicas) is true of all partitions."""
    for topic in topics:
        while True:
            found = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
            if found and all(is_done(one.leader, len(one.isrs), len(one.replicas)) for one in found):
                break
            if time.monotonic() > began + TIMEOUT_S:
                raise RuntimeError(f"{topic} is not ready after {TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)


def _idle_percent(system: NilometerThree) -> float:
    """Of one core, for all three brokers."""
    cpu, began = cpu_seconds(system), time.monotonic()
    time.sleep(IDLE_S)
    return 100 * (cpu_seconds(system) - cpu) / (time.monotonic() - began)


def _elect(system: NilometerThree, topics: list[str], victim: int) -> float:
    """kill -9 of a broker, until the others say that none of its partitions is led by it."""
    began = time.monotonic()
    system.kill(victim)
    _wait_each(
        admin_of(system), topics, began, lambda leader, _isr, _replicas: leader >= 0 and leader != victim
    )
    return time.monotonic() - began


def _come_back(system: NilometerThree, topics: list[str], victim: int) -> float:
    """A start after kill -9, until all its replicas are in sync."""
    began = time.monotonic()
    system.start(victim)
    wait_members(system, BROKERS)
    _wait_each(admin_of(system), topics, began, lambda _leader, isr, replicas: isr == replicas)
    return time.monotonic() - began


def _next_controller(system: NilometerThree) -> float:
    killed_at = time.monotonic()
    system.kill(system.controller())
    return until_created(system, killed_at)


PARTITIONS = Curve(
    "partitions",
    "Partitions, three brokers, three replicas each, no records",
    "partitions",
    (1_000, 5_000, 10_000, 25_000, 50_000),
    (
        Measure("created_s", "created and in sync", "s"),
        Measure("elected_s", "a broker dies: all its partitions have another leader", "s", 2),
        Measure("back_s", "it is back: all in sync", "s"),
        Measure("controller_s", "the controller dies: the next creates a topic", "s", 2),
        Measure("idle_percent", "idle, of a core, all three", "%", 2),
        Measure("rss_mb", "resident memory, all three", "MB", 0),
        Measure("descriptors", "descriptors of a broker", "", 0),
    ),
    _measure,
    (100, 200),
)
