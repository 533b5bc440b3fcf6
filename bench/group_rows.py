"""The rows of consumer groups and of many clients, on three brokers: `group_load.py` makes the load.

It is one Python program, the same for both systems, on the same two cores as the brokers: of a rebalance of
many members, a part of the time is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from .rows import Column, Numbers, Row
from .systems import System, cpu_seconds, create_topic, delete_topic, memory_mb

MEMBERS = (10, 100, 500)
REBALANCES = 5
GROUPS = 1000
CONNECTIONS = 5000
PARTITIONS = 6
SECONDS = 10
LOAD_TIMEOUT_S = 300.0


def _rebalance(system: System, members: int) -> Numbers:
    cpu = cpu_seconds(system)
    found = _finish(_start("rebalance", system.bootstrap, members, REBALANCES))
    rounds = REBALANCES + 1  # and the first, in which they find together
    return {"seconds": found["seconds"], "cpu_s": (cpu_seconds(system) - cpu) / rounds}


def _commits(system: System) -> Numbers:
    topic = create_topic(system, "committed", 1, 3)
    _finish(_start("commits", system.bootstrap, topic, GROUPS, 2))  # their topic, and compilers warm
    cpu = cpu_seconds(system)
    found = _finish(_start("commits", system.bootstrap, topic, GROUPS, SECONDS))
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    return {"p50_ms": found["p50"], "p99_ms": found["p99"], "cpu_percent": 100 * cpu / SECONDS}


def _crowd(system: System) -> Numbers:
    topic = create_topic(system, "crowded", PARTITIONS, 3)
    before = memory_mb(system)["rss_mb"]
    load = _start("crowd", system.bootstrap, topic, CONNECTIONS, SECONDS)
    assert load.stdout is not None
    ready = load.stdout.readline()
    if ready.strip() != "ready":
        raise RuntimeError(f"the connections cannot be made: {load.communicate()[1].strip()}")
    grown = memory_mb(system)["rss_mb"] - before
    cpu = cpu_seconds(system)
    found = _finish(load, "go\n")
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    return {
        "p50_ms": found["p50"],
        "p99_ms": found["p99"],
        "kb_per_connection": 1024 * grown / CONNECTIONS,
        "opened_s": found["opened_s"],
        "cpu_percent": 100 * cpu / SECONDS,
    }


def _start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.group_load", *(str(each) for each in arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(load: subprocess.Popen[str], said: str = "") -> dict[str, float]:
    printed, error = load.communicate(said, timeout=LOAD_TIMEOUT_S)
    if load.returncode:
        raise RuntimeError(f"group load: exit {load.returncode}: {error.strip()}")
    return json.loads(printed.splitlines()[-1])


_CPU = Column("cpu_percent", "CPU of the brokers", "%", more_is_better=False)
_P50 = Column("p50_ms", "p50", "ms", more_is_better=False, digits=2)
_P99 = Column("p99_ms", "p99", "ms", more_is_better=False, digits=2)


def _rebalance_row(members: int) -> Row:
    return Row(
        f"group-rebalance-{members}",
        f"all {members} members of a group join again",
        (
            Column("seconds", "until all have their assignment", "s", more_is_better=False, digits=3),
            Column("cpu_s", "CPU of the brokers", "s", more_is_better=False, digits=3),
        ),
        partial(_rebalance, members=members),
        brokers=3,
    )


GROUP_ROWS: tuple[Row, ...] = (
    *(_rebalance_row(members) for members in MEMBERS),
    Row(
        "group-commits",
        f"{GROUPS:,} groups, each commits once a second",
        (_P50, _P99, _CPU),
        _commits,
        brokers=3,
    ),
    Row(
        "crowd",
        f"{CONNECTIONS:,} connections, each produces a record of 100 B every 5 s, acks=all",
        (
            _P50,
            _P99,
            Column("kb_per_connection", "resident memory per connection", "kB", more_is_better=False),
            Column("opened_s", "time to open them", "s", more_is_better=False, digits=2),
            _CPU,
        ),
        _crowd,
        brokers=3,
    ),
)
