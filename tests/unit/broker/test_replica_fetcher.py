"""A follower's fetches: what it reads from its leader's response, and which partitions it asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from nilometer.broker.replicas.replica_fetchers import ReplicaFetcher, _answer_of, _key
from nilometer.identifiers import BrokerId, TopicIdPartition, topic_id_of
from nilometer.replication.epochs import NO_DIVERGENCE, EpochEnd
from nilometer.wire.errors import ErrorCode
from nilometer.wire.fetch import FetchedFromLeader


@pytest.mark.parametrize(
    ("diverging", "expected"),
    [((-1, -1), NO_DIVERGENCE), ((0, 5), EpochEnd(0, 5)), ((3, 0), EpochEnd(3, 0))],
)
def test_logs_may_diverge_in_the_first_epoch_and_at_the_first_offset(
    diverging: tuple[int, int], expected: EpochEnd
) -> None:
    fetched = FetchedFromLeader(bytes(16), 0, ErrorCode.none, 7, 0, b"", diverging)
    assert _answer_of(fetched).diverging == expected


async def test_a_partition_that_is_not_followed_any_more_leaves_the_leaders_session() -> None:
    config: Any = SimpleNamespace(node_id=2, integer=lambda _: 1_000, replica_lag_time_max_ms=10_000)
    unused: Any = None
    fetcher = ReplicaFetcher(
        BrokerId(1), 0, config, unused, unused, unused, unused, leader_liveness=unused, turns=unused
    )
    partition: Any = SimpleNamespace(key=TopicIdPartition(topic_id_of(UUID(int=1)), 0))
    fetcher.follow(partition)
    fetcher._in_session[_key(partition)] = None
    fetcher.forget(partition)
    assert (len(fetcher), fetcher._due, fetcher._in_session) == (0, {}, {})
    assert list(fetcher._dropped) == [_key(partition)], "the next request says so"
