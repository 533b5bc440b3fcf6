"""The shapes of load that several rows are made of: produce, consume, constant rates.

Each plays for so many seconds on a topic of its own, so that nothing that was left behind counts, and
deletes it; with three brokers, topics have three replicas. Clients batch equally for both systems.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any, cast

from . import load
from .clusters import Cluster, wait_in_sync
from .rows import Numbers
from .systems import System, cpu_seconds, create_topic, delete_topic

ACKS = "all"
_names = itertools.count()


def fresh_topic(system: System, name: str, partitions: int, brokers: int, **config: str) -> str:
    """A topic with a name of its own, its replicas in sync."""
    settings = {"retention.ms": "-1", "file.delete.delay.ms": "1000", **config}
    topic = create_topic(system, f"{name}-{next(_names)}", partitions, brokers, settings)
    if brokers > 1:
        wait_in_sync(cast(Cluster, system), topic)
    return topic


def throughput(records: float, seconds: float, size: int, cpu_s: float, done: dict[str, Any]) -> Numbers:
    return {
        "records_per_s": records / seconds,
        "mb_per_s": records * size / seconds / 1e6,
        "cpu_s_per_million": cpu_s / records * 1e6,
        **load.client_numbers(done),
    }


def produce(
    system: System,
    seconds: float,
    *,
    size: int,
    partitions: int = 1,
    brokers: int = 1,
    settings: Sequence[str],
    bootstrap: str | None = None,
) -> Numbers:
    """As fast as librdkafka and the brokers can; ``bootstrap``: by another listener."""
    topic = fresh_topic(system, "produced", partitions, brokers)
    cpu = cpu_seconds(system)
    done = load.run("produce", bootstrap or system.bootstrap, topic, seconds, size, *settings)
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    return throughput(done["records"], done["seconds"], size, cpu, done)


def consume(
    system: System,
    seconds: float,
    *,
    topic: str,
    size: int,
    count: int,
    settings: Sequence[str] = (),
    bootstrap: str | None = None,
) -> Numbers:
    """``count`` records from the start of the topic, again and again."""
    cpu = cpu_seconds(system)
    done = load.run("consume", bootstrap or system.bootstrap, topic, count, 1, seconds, *settings)
    cpu = cpu_seconds(system) - cpu
    return throughput(done["records"], done["seconds"], size, cpu, done)


def constant_rate(
    system: System, seconds: float, *, rate: int, size: int, partitions: int = 1, brokers: int = 1
) -> Numbers:
    """Records at a constant rate, each sent at once; times count from when a record was due."""
    topic = fresh_topic(system, "paced", partitions, brokers)
    cpu, began = cpu_seconds(system), time.monotonic()
    done = load.run("latency", system.bootstrap, topic, rate, seconds, size, ACKS)
    share = (cpu_seconds(system) - cpu) / (time.monotonic() - began)
    delete_topic(system, topic)
    return {
        **{f"{key}_ms": done[key] for key in ("p50", "p99", "p999", "max")},
        "achieved_per_s": done["per_s"],
        "sent_late_ms": done["sent_late"],
        "cpu_percent": 100 * share,
        **load.client_numbers(done),
    }
