"""What brokers ask of each other does not wait for what clients do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from nilometer.broker.api.large_requests import MADE_BYTES, LargeRequests
from nilometer.broker.connection_memory import HELD_BYTES_MAX, ResponseMemory
from nilometer.broker.replicas import replica_fetchers
from nilometer.broker.replicas.replica_fetchers import ReplicaFetcher
from nilometer.broker.turns import SLICE_US, Turns
from nilometer.identifiers import BrokerId
from nilometer.replication.follower import FollowerRole
from support.step_clock import StepClock

UNUSED = cast(Any, None)


class BrokersConnection:
    context = SimpleNamespace(is_broker=True)
    closed = False

    def expect(self, size: int) -> None:
        """Hold no memory."""


async def test_a_response_to_a_broker_is_made_although_memory_is_short() -> None:
    memory = ResponseMemory(lambda: 0)
    memory.hold(cast(Any, Mock(origin="silent")), HELD_BYTES_MAX + 2 * MADE_BYTES)
    large = LargeRequests(UNUSED, UNUSED, UNUSED, memory, UNUSED)
    request = cast(Any, SimpleNamespace(connection=BrokersConnection()))
    async with asyncio.timeout(1):
        await large._hold(request, MADE_BYTES, is_read_only=False)


async def test_a_response_of_the_leader_is_applied_although_clients_have_long_work() -> None:
    clock = StepClock()
    turns, taken = Turns(clock), list[int]()

    class Fetcher(ReplicaFetcher):
        def _take_partition(self, followed: Any, fetch: Any, fetched: Any) -> None:
            taken.append(fetched.partition)
            clock.us += SLICE_US

        def _broker_epoch(self) -> int:
            return -1

        def _build(self) -> tuple[list[Any], int]:
            return [], 0

    config = SimpleNamespace(node_id=2, integer=lambda _: 1_000, replica_lag_time_max_ms=30_000)
    fetcher = Fetcher(BrokerId(1), 0, cast(Any, config), UNUSED, UNUSED, UNUSED, UNUSED, UNUSED, turns)
    answers = [SimpleNamespace(topic_id=b"t", partition=index) for index in range(6)]
    for answer in answers:
        key = answer.topic_id, answer.partition
        fetcher._followed[key] = replica_fetchers._Followed(key, UNUSED, cast(Any, "sent"))

    def client_work() -> None:
        turns.call(client_work)

    for _ in range(100):
        turns.call(client_work)
    fetcher._apply(UNUSED, iter(cast(Any, answers)))
    for _ in range(10):
        await asyncio.sleep(0)
    assert taken == [0, 1, 2, 3, 4, 5], "slice by slice, with an iteration of the event loop between them"
    assert fetcher._exchange.done(), "the next fetch may be sent"


async def test_replicas_that_are_held_back_are_not_looked_at_for_each_request() -> None:
    """While partitions are moved, thousands may be throttled, and one record follows the other for others."""
    clock = StepClock()
    asked: list[int] = []

    class Quota:
        held_ms = 400

        def throttles(self, topic: str, index: int) -> bool:
            asked.append(index)
            return True

        def wait_ms(self) -> int:
            return self.held_ms

    quota = Quota()
    config = SimpleNamespace(node_id=2, integer=lambda _: 1_000, replica_lag_time_max_ms=30_000)
    runtime = SimpleNamespace(clock=clock)
    fetcher = ReplicaFetcher(
        BrokerId(1),
        0,
        cast(Any, config),
        cast(Any, runtime),
        UNUSED,
        cast(Any, quota),
        UNUSED,
        UNUSED,
        UNUSED,
    )
    role = Mock(FollowerRole, leader=1, outstanding=None, next_fetch=lambda: None)
    for index in range(50):
        replica = SimpleNamespace(role=role)
        log = SimpleNamespace(awaits_checkpoint=False)
        state = SimpleNamespace(isr=())
        partition = SimpleNamespace(
            topic="t", replica=replica, log=log, state=state, key=SimpleNamespace(partition=index)
        )
        key = (b"t", index)
        fetcher._followed[key] = replica_fetchers._Followed(key, cast(Any, partition))
        fetcher._due[key] = None
    for _ in range(10):
        assert fetcher._build() == ([], 400)
    assert len(asked) == 50, "each is looked at once, until its time has come"
    fetcher._due[b"t", 7] = None
    fetcher._build()
    assert asked[50:] == [7], "or something has changed"
    clock.us += 400_000
    quota.held_ms = 0
    assert fetcher._build() == ([], 1_000)
    assert sorted(asked[51:]) == sorted(range(50))
    quota.held_ms = 400
    for _ in range(5):  # something changes again and again for one that is held back
        clock.us += 10_000
        fetcher._due[b"t", 7] = None
        fetcher._build()
    before = len(asked)
    for _ in range(79):
        clock.us += 5_000
        fetcher._build()
    assert asked[before:].count(7) == 0
    clock.us += 5_000
    fetcher._build()
    assert asked[before:].count(7) == 1
