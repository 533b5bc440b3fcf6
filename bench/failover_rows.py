"""The rows of a leader's death: kill -9 at a random moment, to the next acknowledged record.

librdkafka runs at its defaults and sends a record every 5 ms. What a client does after a loss depends on
where its own timers are, so the kill comes at a random moment of these; the seed is fixed. Apache Kafka's
brokers are killed less often: each time takes its session time-out (9 s by default) and a start.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import cast

from . import plays
from .clusters import Cluster, leader_of, wait_in_sync, wait_members
from .pulse import Pulse, acknowledged_at
from .rows import Column, Numbers, Row
from .run import console
from .systems import Nilometer, System

SEED = 1
KILLS = {"Nilometer": 30, "Apache Kafka": 8}
FEW_KILLS = dict.fromkeys(KILLS, 3)
ONE_KILL = dict.fromkeys(KILLS, 1)
AHEAD_S = 5.0
"""The producer runs so long before the first kill."""
PAUSE_S = (1.0, 3.0)
"""Between a cluster that is whole again and the next kill."""


def _failover(system: System, kills: dict[str, int], is_early: bool = False) -> Numbers:
    """As librdkafka sees it."""
    cluster = _launched(system, is_early)
    topic = plays.fresh_topic(system, "failover", 1, 3)
    with Pulse(system.bootstrap, topic) as pulse:
        pulse.wait_acknowledged(since=time.monotonic())
        time.sleep(AHEAD_S)
        seconds = _kill_leaders(
            cluster, topic, kills[system.name], lambda _, dead_at: pulse.wait_acknowledged(since=dead_at)
        )
    return {"seconds": seconds, "longest_s": max(seconds)}


def _failover_eager(system: System, kills: dict[str, int]) -> Numbers:
    """As a client sees it that asks again at once."""
    cluster = _launched(system, is_early=False)
    topic = plays.fresh_topic(system, "failover", 1, 3)
    seconds = _kill_leaders(
        cluster,
        topic,
        kills[system.name],
        lambda leader, _: acknowledged_at(system.bootstrap, topic, other_than=leader),
    )
    return {"seconds": seconds, "longest_s": max(seconds)}


def _launched(system: System, is_early: bool) -> Cluster:
    cluster = cast(Cluster, system)
    cluster.launch()
    cluster.wait_ready()
    if is_early:
        cluster.notice_deaths_early()
        cluster.wait_ready()
    return cluster


def _kill_leaders(
    cluster: Cluster, topic: str, kills: int, reached: Callable[[int, float], float]
) -> list[float]:
    """``reached`` gets the killed broker and when it was dead, and returns when a record was acknowledged."""
    chance = random.Random(SEED)
    seconds: list[float] = []
    for _ in range(kills):
        time.sleep(chance.uniform(*PAUSE_S))
        leader = leader_of(cluster, topic)
        began = time.monotonic()
        cluster.kill(leader)
        seconds.append(reached(leader, time.monotonic()) - began)
        console.print(f"    kill {len(seconds)} of {kills}: {seconds[-1]:.2f} s", highlight=False)
        cluster.start(leader)
        wait_members(cluster, 3)
        wait_in_sync(cluster, topic)
    return seconds


_COLUMNS = (
    Column("seconds", "median", "s", more_is_better=False, digits=2),
    Column("longest_s", "longest", "s", more_is_better=False, digits=2),
)
_TIMES = f"{KILLS[Nilometer.name]} times, Kafka's {KILLS['Apache Kafka']}"


def _row(
    key: str, title: str, measure: Callable[..., Numbers], kills: dict[str, int], **settings: bool
) -> Row:
    return Row(
        key,
        title,
        _COLUMNS,
        measure=partial(measure, kills=kills, **settings),
        quick=partial(measure, kills=ONE_KILL, **settings),
        brokers=3,
        once=True,
    )


FAILOVER_ROWS: tuple[Row, ...] = (
    _row(
        "cluster-failover",
        f"kill -9 of a leader ({_TIMES}) to the next record acknowledged to librdkafka at its defaults",
        _failover,
        KILLS,
    ),
    _row(
        "cluster-failover-early",
        "the same, three times each, Kafka's broker session 1 s, not 9 s",
        _failover,
        FEW_KILLS,
        is_early=True,
    ),
    _row(
        "cluster-failover-eager",
        "the same at default settings, three times each, for a client that asks again at once",
        _failover_eager,
        FEW_KILLS,
    ),
)
