"""The rows of consumer groups and of many clients, on three brokers: `group_load.py` makes the load.

It is one Python program, the same for both systems, on the same two cores as the brokers: of a rebalance of
many members, a part of the time is its own, as the columns about the client show.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

from . import load, plays
from .client_watch import ClientWatch
from .rows import CLIENT, P50, P99, P999, Column, Load, Numbers, Row
from .systems import System, cpu_seconds, create_topic, delete_topic, memory_mb

MEMBERS = (10, 100, 500)
GROUPS = 1000
CONNECTIONS = 5000
PARTITIONS = 6
COMMITTED = "committed"


def rebalance(system: System, seconds: float, *, members: int) -> Numbers:
    client = _start("rebalance", system.bootstrap, members, seconds)
    _wait_ready(client)
    cpu = cpu_seconds(system)
    found = _finish(client, "go\n")
    cpu = cpu_seconds(system) - cpu
    return {
        "seconds": found["seconds"],
        "p99_s": found["p99_s"],
        "cpu_s": cpu / found["rebalances"],
        **load.client_numbers(found),
    }


def commits(system: System, seconds: float, *, groups: int = GROUPS, per_s: int = GROUPS) -> Numbers:
    """Each group commits as often as the others, ``per_s`` in all."""
    client = _start("commits", system.bootstrap, COMMITTED, groups, groups / per_s, seconds)
    _wait_ready(client)
    cpu = cpu_seconds(system)
    found = _finish(client, "go\n")
    cpu = cpu_seconds(system) - cpu
    return {
        **{f"{key}_ms": found[key] for key in ("p50", "p99", "p999")},
        "cpu_percent": 100 * cpu / seconds,
        **load.client_numbers(found),
    }


def crowd(system: System, seconds: float, *, connections: int = CONNECTIONS) -> Numbers:
    topic = plays.fresh_topic(system, "crowded", PARTITIONS, 3)
    before = memory_mb(system)["rss_mb"]
    client = _start("crowd", system.bootstrap, topic, connections, seconds)
    _wait_ready(client)
    grown = memory_mb(system)["rss_mb"] - before
    cpu = cpu_seconds(system)
    found = _finish(client, "go\n")
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    return {
        **{f"{key}_ms": found[key] for key in ("p50", "p99", "p999")},
        "kb_per_connection": 1024 * grown / connections,
        "opened_s": found["opened_s"],
        "cpu_percent": 100 * cpu / seconds,
        **load.client_numbers(found),
    }


def _start(*arguments: object) -> subprocess.Popen[str]:
    return load.start_client([sys.executable, "-m", "bench.group_load", *map(str, arguments)])


def _wait_ready(client: subprocess.Popen[str]) -> None:
    assert client.stdout is not None
    if client.stdout.readline().strip() != "ready":
        raise RuntimeError(f"the connections cannot be made: {client.communicate()[1].strip()}")


def _finish(client: subprocess.Popen[str], said: str = "") -> dict[str, Any]:
    with ClientWatch(client.pid) as watch:
        printed = load.printed_by(client, said)
    return {**load.last_line(printed), **watch.numbers()}


_CPU = Column("cpu_percent", "CPU of the brokers", "%", more_is_better=False)


def _rebalance_row(members: int) -> Row:
    return Row(
        f"group-rebalance-{members}",
        f"all {members} members of a group join again",
        (
            Column("seconds", "until all have their assignment", "s", more_is_better=False, digits=3),
            Column("cpu_s", "CPU of the brokers", "s", more_is_better=False, digits=3),
            *CLIENT,
        ),
        Load(partial(rebalance, members=members), "seconds"),
        brokers=3,
    )


GROUP_ROWS: tuple[Row, ...] = (
    *(_rebalance_row(members) for members in MEMBERS),
    Row(
        "group-commits",
        f"{GROUPS:,} groups, each commits once a second",
        (P50, P99, P999, _CPU, *CLIENT),
        Load(
            commits,
            "p50_ms",
            prepare=partial(create_topic, name=COMMITTED, replication_factor=3),
            clean=partial(delete_topic, name=COMMITTED),
        ),
        brokers=3,
    ),
    Row(
        "crowd",
        f"{CONNECTIONS:,} connections, each produces a record of 100 B every 5 s, acks=all",
        (
            P50,
            P99,
            P999,
            Column("opened_s", "time to open them", "s", more_is_better=False, digits=2),
            _CPU,
            *CLIENT,
        ),
        Load(crowd, "p50_ms"),
        brokers=3,
    ),
)
