"""A follower whose next records its leader has in remote storage only goes on behind these, and fetches
nothing before."""

from __future__ import annotations

from roles import following, log_of

from nilometer.replication.epochs import EpochEnd
from nilometer.replication.follower import FetchResponse, FollowerRole, NoFetch
from nilometer.replication.shell_interface import (
    AdvanceHighWatermark,
    BackOff,
    FollowerFetch,
    StartInTier,
    TruncateFully,
    TruncateTo,
)
from nilometer.simulation.model_check.processes import ModelLog
from nilometer.wire.errors import ErrorCode

MOVED = ErrorCode.offset_moved_to_tiered_storage


def answered(follower: FollowerRole, response: FetchResponse) -> tuple[object, ...]:
    fetch = follower.next_fetch()
    assert isinstance(fetch, FollowerFetch)
    return follower.on_fetch_response(fetch, response)


def test_it_fetches_nothing_until_its_log_has_begun_again() -> None:
    log = log_of(0, 0, 0)
    follower = following(log, high_watermark=2)
    assert answered(follower, FetchResponse(error=MOVED, log_start_offset=1)) == (StartInTier(1),)
    assert follower.next_fetch() is NoFetch.IN_TIER
    log.truncate_fully(40)
    follower.on_started_in_tier()
    assert follower.high_watermark == 40
    fetch = follower.next_fetch()
    assert isinstance(fetch, FollowerFetch)
    assert fetch.fetch_offset == 40


def test_it_fetches_again_after_an_attempt_that_failed() -> None:
    follower = following(log_of(0, 0), high_watermark=1)
    assert answered(follower, FetchResponse(error=MOVED, log_start_offset=0)) == (StartInTier(0),)
    follower.give_up_start_in_tier()
    assert follower.high_watermark == 1
    assert answered(follower, FetchResponse(error=MOVED, log_start_offset=0)) == (StartInTier(0),)


def test_a_leader_that_does_not_say_where_its_log_begins_is_asked_again() -> None:
    (effect,) = answered(following(log_of(0)), FetchResponse(error=MOVED))
    assert isinstance(effect, BackOff)


class LogInTier(ModelLog):
    """Its first three records are in remote storage only."""

    __slots__ = ()

    @property
    def local_start_offset(self) -> int:
        return self.log_start_offset + 3


def test_a_log_that_diverges_in_remote_storage_begins_again_at_its_start() -> None:
    """Behind that it could not tell what producers had done: it gets that from remote storage, too."""
    records = [(0, offset) for offset in range(6)]
    follower = following(LogInTier(records, 10), leader_epoch=2, high_watermark=14)
    effects = answered(follower, FetchResponse(diverging=EpochEnd(0, 12)))
    assert effects == (TruncateFully(10), AdvanceHighWatermark(10))
    assert follower.high_watermark == 10
    follower = following(LogInTier(records, 10), leader_epoch=2, high_watermark=14)
    assert answered(follower, FetchResponse(diverging=EpochEnd(0, 13))) == (TruncateTo(13),)
