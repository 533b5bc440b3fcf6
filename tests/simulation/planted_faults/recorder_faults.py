"""Faults that no checker of a cluster sees, since all that the brokers do is right: but it depends on more
than what they are told, so that they cannot be replayed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.replicas.replica_fetchers import ReplicaFetcher
from nilometer.groups.shard import GroupShard
from nilometer.simulation.plan import Kind
from nilometer.simulation.workload.consumers import GroupPlan

GROUP = GroupPlan(members=2, assignor="range", static=False, auto_commit=True)


def ask_the_system_for_the_time(patch: Patch) -> None:
    handle = GroupShard.handle

    def with_the_systems_milliseconds(
        self: GroupShard, token: Any, request: Any, now_ms: int, wall_ms: int
    ) -> Any:
        system_ms = time.time_ns() // 1_000_000
        return handle(self, token, request, now_ms, wall_ms - wall_ms % 1_000 + system_ms % 1_000)

    patch.setattr(GroupShard, "handle", with_the_systems_milliseconds)


def fetch_in_the_order_of_a_set(patch: Patch) -> None:
    request = ReplicaFetcher._request

    def in_any_order(self: ReplicaFetcher, asked: Iterable[Any]) -> bytes:
        by_partition = {each.partition: each for each in asked}
        return request(self, [by_partition[one] for one in set(by_partition)])

    patch.setattr(ReplicaFetcher, "_request", in_any_order)


FAULTS = (
    PlantedFault(
        name="ask-the-system-for-the-time",
        what="records of a group have the system's time, past the runtime",
        plant=ask_the_system_for_the_time,
        kinds=(Kind.CRASH,),
        seeds=3,
        minutes=0.2,
        group=GROUP,
        is_replayed=True,
    ),
    PlantedFault(
        name="fetch-in-the-order-of-a-set",
        what="a follower names partitions in the order of a set of objects, that of their addresses",
        plant=fetch_in_the_order_of_a_set,
        kinds=(Kind.CRASH,),
        seeds=3,
        minutes=0.2,
        group=GROUP,
        is_replayed=True,
    ),
)
