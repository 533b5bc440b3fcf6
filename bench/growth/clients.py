"""Groups, members and connections, on three brokers; `bench/group_load.py` makes the load.

It is one Python program on the same cores: `client_busiest_percent` says where it is at its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from .. import group_rows
from ..rows import Numbers
from ..systems import create_topic, memory_mb
from .curve import Curve, Measure, Point, three_brokers

SECONDS = 10.0
_CLIENT = Measure("client_busiest_percent", "busiest thread of the client", "%", 0)


def _numbers(found: Numbers) -> dict[str, float]:
    return dict(cast(Mapping[str, float], found))


def _members(members: int) -> Point:
    with three_brokers() as system:
        found = _numbers(group_rows.rebalance(system, SECONDS, members=members))
        return {**found, "rss_mb": memory_mb(system)["rss_mb"]}


def _groups(groups: int) -> Point:
    with three_brokers() as system:
        create_topic(system, group_rows.COMMITTED, replication_factor=3)
        found = _numbers(group_rows.commits(system, SECONDS, groups=groups, per_s=min(groups, COMMITS_PER_S)))
        return {**found, "rss_mb": memory_mb(system)["rss_mb"]}


def _connections(connections: int) -> Point:
    with three_brokers() as system:
        return _numbers(group_rows.crowd(system, SECONDS, connections=connections))


COMMITS_PER_S = 1_000
"""Of all groups together: what grows is the number of groups."""

CLIENTS = (
    Curve(
        "members",
        "All members of one group join again",
        "members",
        (100, 500, 1_000, 2_500),
        (
            Measure("seconds", "until all have their assignment", "s", 3),
            Measure("cpu_s", "CPU of the brokers", "s", 3),
            Measure("rss_mb", "resident memory, all three", "MB", 0),
            _CLIENT,
        ),
        _members,
        (5, 10),
    ),
    Curve(
        "groups",
        f"Groups that commit, {COMMITS_PER_S:,} commits a second in all",
        "groups",
        (1_000, 2_500, 5_000, 10_000),
        (
            Measure("p50_ms", "p50", "ms", 2),
            Measure("p99_ms", "p99", "ms", 2),
            Measure("cpu_percent", "CPU of the brokers", "%"),
            Measure("rss_mb", "resident memory, all three", "MB", 0),
            _CLIENT,
        ),
        _groups,
        (20, 40),
    ),
    Curve(
        "connections",
        "Connections, each produces a record of 100 B every 5 s, acks=all",
        "connections",
        (1_000, 2_500, 5_000, 10_000),
        (
            Measure("p50_ms", "p50", "ms", 2),
            Measure("p99_ms", "p99", "ms", 2),
            Measure("cpu_percent", "CPU of the brokers", "%"),
            Measure("kb_per_connection", "resident memory per connection", "kB"),
            Measure("opened_s", "time to open them", "s", 2),
            _CLIENT,
        ),
        _connections,
        (50, 100),
    ),
)
