"""ListOffsets by time: what happens to the replica while its log is searched on another thread."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api import offsets
from nilometer.broker.api.spec import Request
from nilometer.wire.errors import ErrorCode, KafkaError

UNKNOWN = (-1, -1, -1)


class SearchedPartition:
    """A led partition; ``meanwhile`` happens before its search ends, and none is found."""

    def __init__(self, meanwhile: str) -> None:
        self.leader_epoch = 3
        self.leads = True
        self.log = SimpleNamespace(log_start_offset=0, local_start_offset=0)
        self._meanwhile = meanwhile

    def check_reader(self, _epoch: int) -> None:
        if not self.leads:
            raise KafkaError(ErrorCode.not_leader_or_follower)

    def latest_offset(self, *, read_committed: bool) -> int:
        return 10

    def find_by_time(self, _timestamp: int, _bound: int) -> None: ...

    async def run(self, _origin: object, _search: None) -> None:
        if self._meanwhile != "nothing":
            self.leader_epoch += 1
        self.leads = self._meanwhile != "it resigns"


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        ("nothing", ErrorCode.none),
        ("it resigns", ErrorCode.not_leader_or_follower),
        ("it is elected again", ErrorCode.not_leader_or_follower),
    ],
)
def test_a_search_ends_in_the_leadership_in_which_it_began(meanwhile: str, error: ErrorCode) -> None:
    """A damaged log is truncated while it is searched, and another replica leads: that one has the record."""
    partition = SearchedPartition(meanwhile)
    parts: Any = SimpleNamespace(
        replicas=SimpleNamespace(partition=lambda _name, _index: partition, remote=None),
        record_reading=partition,
    )
    connection = SimpleNamespace(origin=("User:a", "127.0.0.1"))
    request: Any = SimpleNamespace(version=7, field=lambda _name, default: default, connection=connection)
    asked: Any = SimpleNamespace(timestamp=1_000, partition_index=0, current_leader_epoch=-1)
    answer = offsets._look_up(  # pyright: ignore[reportPrivateUsage]
        parts, cast(Request, request), "t", asked, 0.0
    )
    assert asyncio.run(answer) == (error, UNKNOWN)
