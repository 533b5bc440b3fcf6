"""The epochs of a consumer's fetch session (KIP-227)."""

from __future__ import annotations

from nilometer.client.consumer.fetch_exchange import FetchSessionHandler, WantedPartition
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import ErrorCode

WANTED = {TopicPartition("t", 0): WantedPartition(None, 5, 0, 1_000)}
INT32_MAX = 2**31 - 1


def epochs(session: FetchSessionHandler, count: int) -> list[int]:
    """The epochs of the next requests, each of which the broker answers."""
    found: list[int] = []
    for _ in range(count):
        found.append(session.plan(WANTED).session_epoch)
        session.on_answer(ErrorCode.none, 7)
    return found


def test_the_epoch_rises_with_each_request_and_the_largest_one_is_followed_by_1() -> None:
    """0 would begin another session."""
    session = FetchSessionHandler()
    assert epochs(session, 4) == [0, 1, 2, 3]
    session._epoch = INT32_MAX - 1  # pyright: ignore[reportPrivateUsage]
    assert epochs(session, 4) == [INT32_MAX - 1, INT32_MAX, 1, 2]


def test_an_error_begins_another_session() -> None:
    session = FetchSessionHandler()
    epochs(session, 3)
    session.on_answer(ErrorCode.invalid_fetch_session_epoch, 0)
    assert epochs(session, 2) == [0, 1]
