"""What a follower reads from its leader's response."""

from __future__ import annotations

import pytest

from nilometer.broker.replicas.replica_fetchers import _answer_of
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
