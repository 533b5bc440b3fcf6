"""Fencing, the ISR and the high watermark: each test is a case met in the field, named by its tag."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from roles import ALL_REPLICAS, Leading, asked, log_of, members, registered

from nilometer.invariants import InvariantBroken
from nilometer.replication.epochs import EpochEnd
from nilometer.replication.isr import AlterPartitionResponse, CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from nilometer.replication.shell_interface import (
    FollowerFetch,
    NotHeld,
    PublishHighWatermark,
    RejectFetch,
    ReleaseProduce,
    ServeFetch,
    UnderMinIsr,
    WaitingFor,
)
from nilometer.wire.errors import ErrorCode

MOVED = PublishHighWatermark()


def refused(verdict: object) -> ErrorCode:
    assert isinstance(verdict, RejectFetch)
    return verdict.error


def granted(leader: Leading, request: object, *isr: int, partition_epoch: int = 1) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        leader_epoch=leader.role.leader_epoch, partition_epoch=partition_epoch, isr=isr
    )


# ── fencing ─────────────────────────────────────────────────────────────────────────────────────
def test_kip_320_a_replica_of_another_epoch_is_fenced() -> None:
    leader = Leading(log_of(0), registered(leader_epoch=3))
    before = [remote.log_end_offset for remote in leader.role.remote_replicas]
    assert refused(leader.fetch(2, 1, leader_epoch=2)[0]) is ErrorCode.fenced_leader_epoch
    assert refused(leader.fetch(2, 1, leader_epoch=4)[0]) is ErrorCode.unknown_leader_epoch
    assert refused(leader.fetch(2, 1, leader_epoch=-1)[0]) is ErrorCode.fenced_leader_epoch
    assert [remote.log_end_offset for remote in leader.role.remote_replicas] == before


def test_kip_320_a_consumer_learns_that_its_position_was_cut_off() -> None:
    """It read to 100 in epoch 3; an unclean election cut the log to 80; epoch 5 has gone on to 120."""
    leader = Leading(log_of(*[3] * 80), registered(1, leader_epoch=5))
    leader.append(40)
    assert leader.role.end_offset_for_leader_epoch(5, 3) == (ErrorCode.none, EpochEnd(3, 80))
    assert leader.role.end_offset_for_leader_epoch(-1, 3) == (ErrorCode.none, EpochEnd(3, 80))
    assert leader.role.end_offset_for_leader_epoch(4, 3)[0] is ErrorCode.fenced_leader_epoch
    assert leader.role.end_offset_for_leader_epoch(0, 3)[0] is ErrorCode.fenced_leader_epoch
    assert leader.role.end_offset_for_leader_epoch(6, 3)[0] is ErrorCode.unknown_leader_epoch


def test_kip_207_kafka_2334_latest_is_not_available_before_the_epoch_start_is_committed() -> None:
    leader = Leading(log_of(0, 0, 0), registered(1, 2, leader_epoch=1), high_watermark=1)
    assert not leader.role.is_latest_offset_available
    leader.fetch(2, 2)
    assert not leader.role.is_latest_offset_available
    leader.fetch(2, 3)
    assert leader.role.is_latest_offset_available


def test_kip_380_kafka_7235_a_fetch_of_an_earlier_incarnation_is_stale_kafka_9839_of_a_newer_is_not() -> None:
    leader = Leading(log_of(0), registered(1, 2))
    assert refused(leader.fetch(2, 1, broker_epoch=19)[0]) is ErrorCode.stale_broker_epoch
    verdict, _ = leader.fetch(2, 1, broker_epoch=25)
    assert isinstance(verdict, ServeFetch)
    assert refused(leader.fetch(2, 1)[0]) is ErrorCode.stale_broker_epoch


def test_a_fetch_with_an_epoch_from_the_future_as_its_last_is_a_wire_error() -> None:
    leader = Leading(log_of(0), registered(1, 2, leader_epoch=1))
    assert refused(leader.fetch(2, 1, last_epoch=7)[0]) is ErrorCode.unknown_leader_epoch


def test_a_fetch_outside_the_log_is_out_of_range() -> None:
    leader = Leading(log_of(0), registered(1, 2))
    assert refused(leader.fetch(2, 5, last_epoch=-1)[0]) is ErrorCode.offset_out_of_range


# ── high watermark ──────────────────────────────────────────────────────────────────────────────
def test_kip_497_a_replica_being_added_is_waited_for_from_the_moment_it_is_asked_for() -> None:
    leader = Leading(log_of(), registered(1, 2))
    _, effects = leader.fetch(3, 0)
    assert members(asked(effects)) == (1, 2, 3)
    assert isinstance(leader.role.isr_state, PendingExpandIsr)
    leader.append(2)
    assert leader.fetch(2, 2)[1] == ()
    assert leader.role.high_watermark == 0
    assert leader.role.high_watermark_hold(0) == WaitingFor((3,))
    assert leader.fetch(3, 1)[1] == (MOVED,)
    assert leader.role.high_watermark == 1


def test_kip_497_a_replica_being_removed_is_waited_for_until_that_is_committed() -> None:
    leader = Leading(log_of(), registered(1, 2, 3))
    leader.append()
    leader.fetch(2, 1)
    request = asked(leader.role.on_lag_expired(3, 0))
    assert members(request) == (1, 2)
    assert isinstance(leader.role.isr_state, PendingShrinkIsr)
    assert leader.role.high_watermark == 0
    effects = leader.role.on_alter_partition_response(request, granted(leader, request, 1, 2), 0)
    assert effects == (MOVED,)
    assert leader.role.high_watermark == 1


def test_a_replica_at_the_end_of_the_log_does_not_lag() -> None:
    leader = Leading(log_of(), registered(1, 2, 3))
    leader.append()
    leader.fetch(2, 1)
    assert leader.role.on_lag_expired(2, 0) == ()
    assert leader.role.on_lag_expired(99, 0) == (), "no replica of the partition"
    assert members(asked(leader.role.on_lag_expired(3, 0))) == (1, 2)


def test_kip_497_one_request_is_in_flight_at_most() -> None:
    leader = Leading(log_of(), registered(1))
    asked(leader.fetch(2, 0)[1])
    assert leader.fetch(3, 0)[1] == ()
    leader.append()
    assert leader.role.on_lag_expired(2, 0) == ()


def test_kafka_13091_a_committed_shrink_releases_who_waits() -> None:
    leader = Leading(log_of(), registered(1, 2))
    leader.append()
    leader.role.hold_produce(7, 1)
    request = asked(leader.role.on_lag_expired(2, 0))
    effects = leader.role.on_alter_partition_response(request, granted(leader, request, 1), 0)
    assert effects == (MOVED, ReleaseProduce(7, ErrorCode.none))


@pytest.mark.parametrize(
    "error", [ErrorCode.request_timed_out, ErrorCode.network_exception, ErrorCode.not_controller]
)
def test_kafka_14144_a_request_of_unknown_outcome_stays_pending_and_is_sent_again(error: ErrorCode) -> None:
    leader = Leading(log_of(), registered(1))
    request = asked(leader.fetch(2, 0)[1])
    assert leader.role.on_alter_partition_response(request, AlterPartitionResponse(error=error), 0) == ()
    assert isinstance(leader.role.isr_state, PendingExpandIsr)
    assert leader.role.needs_tick
    assert asked(leader.role.on_tick(0)) == request
    assert leader.role.on_tick(0) == ()


def test_kafka_12686_an_answer_to_an_overtaken_request_changes_nothing() -> None:
    leader = Leading(log_of(), registered(1, 2))
    request = asked(leader.fetch(3, 0)[1])
    leader.role.on_metadata(registered(1, partition_epoch=5), ALL_REPLICAS, 0)
    before = leader.role.isr_state
    late = granted(leader, request, 1, 2, 3, partition_epoch=4)
    assert leader.role.on_alter_partition_response(request, late, 0) == ()
    assert leader.role.isr_state == before
    assert leader.role.isr == (1,)


def test_an_answer_to_an_earlier_request_says_nothing_of_the_pending_one() -> None:
    leader = Leading(log_of(), registered(1, 2))
    earlier = asked(leader.fetch(3, 0)[1])
    pending = asked(leader.role.on_metadata(registered(1, partition_epoch=5), ALL_REPLICAS, 0))
    for late in (
        granted(leader, earlier, 1, 2, 3, partition_epoch=5),
        AlterPartitionResponse(error=ErrorCode.ineligible_replica),
    ):
        assert leader.role.on_alter_partition_response(earlier, late, 0) == ()
        assert isinstance(leader.role.isr_state, PendingExpandIsr)
        assert leader.role.isr_state.request == pending
    assert leader.role.isr == (1,)


def test_kafka_12751_a_state_that_is_known_already_is_success() -> None:
    """The metadata log was faster than the answer, or the answer than the metadata log."""
    leader = Leading(log_of(), registered(1, 2))
    request = asked(leader.fetch(3, 0)[1])
    leader.role.on_alter_partition_response(request, granted(leader, request, 1, 2, 3), 0)
    assert leader.role.isr_state == CommittedIsr.of((1, 2, 3), 1)
    assert leader.role.on_metadata(registered(1, 2, 3, partition_epoch=1), ALL_REPLICAS, 0) == ()
    assert leader.role.on_alter_partition_response(request, granted(leader, request, 1, 2, 3), 0) == ()
    assert leader.role.partition_epoch == 1


@pytest.mark.parametrize("error", [ErrorCode.fenced_leader_epoch, ErrorCode.invalid_update_version])
def test_kafka_12686_a_leader_that_is_behind_waits_for_the_metadata_log(error: ErrorCode) -> None:
    leader = Leading(log_of(), registered(1, 2))
    request = asked(leader.fetch(3, 0)[1])
    assert leader.role.on_alter_partition_response(request, AlterPartitionResponse(error=error), 0) == ()
    assert isinstance(leader.role.isr_state, PendingExpandIsr)
    assert not any(asks for asks in leader.role.on_tick(0))
    leader.role.on_metadata(registered(1, 2, partition_epoch=3), {1: 10, 2: 20}, 0)
    assert leader.role.isr_state == CommittedIsr.of((1, 2), 3)


def test_kafka_7128_no_replica_joins_below_the_start_of_the_leaders_epoch() -> None:
    """The new leader's own high watermark is behind: a follower that has reached that may lack older
    records."""
    leader = Leading(log_of(0, 0, 0), registered(1, 2, leader_epoch=5), high_watermark=1)
    assert leader.fetch(3, 1)[1] == ()
    assert leader.fetch(3, 2)[1] == ()
    assert members(asked(leader.fetch(3, 3)[1])) == (1, 2, 3)


def test_kip_841_kafka_13916_an_ineligible_replica_is_given_up_and_not_asked_for_again() -> None:
    leader = Leading(log_of(), registered(1, 2))
    request = asked(leader.fetch(3, 0)[1])
    refusal = AlterPartitionResponse(error=ErrorCode.ineligible_replica)
    leader.role.on_alter_partition_response(request, refusal, 0)
    assert leader.role.isr_state == CommittedIsr.of((1, 2), 0)
    assert leader.fetch(3, 0)[1] == ()
    assert members(asked(leader.role.on_metadata(registered(1, 2), ALL_REPLICAS, 0))) == (1, 2, 3)


def test_kip_841_a_replica_that_drops_out_while_it_is_being_added_is_no_longer_waited_for() -> None:
    leader = Leading(log_of(), registered(1, 2))
    request = asked(leader.fetch(3, 0)[1])
    leader.append()
    leader.fetch(2, 1)
    assert leader.role.high_watermark == 0
    assert leader.role.on_metadata(registered(1, 2), {1: 10, 2: 20}, 0) == (MOVED,)
    assert leader.role.on_alter_partition_response(request, granted(leader, request, 1, 2, 3), 0) == ()


def test_a_broker_that_dies_is_not_asked_back_by_the_entry_that_removes_it() -> None:
    leader = Leading(log_of(0), registered(1, 2, 3))
    leader.fetch(3, 1)
    effects = leader.role.on_metadata(registered(1, 2, partition_epoch=1), {1: 10, 2: 20}, 0)
    assert effects == ()


def test_kafka_15021_a_caught_up_replica_that_is_shutting_down_is_not_waited_for() -> None:
    leader = Leading(log_of(), registered(1, 2), eligible={1: 10, 2: 20})
    leader.fetch(3, 0)
    leader.append()
    assert leader.fetch(2, 1)[1] == (MOVED,)


def test_r_5_a_caught_up_and_eligible_replica_is_waited_for_before_it_is_asked_for() -> None:
    """Broker 3 has not reached the start of the epoch, so it may not join; but it is close behind."""
    leader = Leading(log_of(0, 0), registered(1, 2, leader_epoch=1), high_watermark=0)
    leader.fetch(3, 2, now_ms=1)
    request = leader.role.isr_state
    assert isinstance(request, PendingExpandIsr)
    refusal = AlterPartitionResponse(error=ErrorCode.ineligible_replica)
    leader.role.on_alter_partition_response(request.request, refusal, 2)
    leader.append(now_ms=3)
    leader.fetch(2, 3, now_ms=4)
    assert leader.role.high_watermark == 2
    assert leader.role.high_watermark_hold(4) == WaitingFor((3,))
    leader.role.on_tick(20_000)
    assert leader.role.high_watermark == 3


def test_who_leaves_for_lagging_comes_back_only_after_another_fetch() -> None:
    """Under min ISR the high watermark stands still, so a silent replica would still be at it."""
    leader = Leading(log_of(), registered(1, 2, replicas=(1, 2)), min_insync_replicas=2)
    leader.fetch(2, 0)
    leader.append()
    request = asked(leader.role.on_tick(20_000))
    assert leader.role.on_alter_partition_response(request, granted(leader, request, 1), 20_001) == ()
    assert members(asked(leader.fetch(2, 0, now_ms=20_002)[1])) == (1, 2)


def test_kip_903_the_incarnation_that_fetched_is_the_one_that_is_asked_for() -> None:
    """The metadata log knows a newer incarnation of broker 3, which has not fetched: its former LEO counts
    for nothing."""
    leader = Leading(log_of(), registered(1, 2), eligible={1: 10, 2: 20})
    leader.fetch(3, 0)
    assert leader.role.on_metadata(registered(1, 2), {1: 10, 2: 20, 3: 31}, 0) == ()
    request = asked(leader.fetch(3, 0, broker_epoch=31)[1])
    assert request.new_isr == ((1, 10), (2, 20), (3, 31))
    assert request.broker_epoch == 10


def test_kip_966_the_last_replica_standing_commits_nothing() -> None:
    leader = Leading(log_of(), registered(1, 2, 3), min_insync_replicas=2)
    leader.append()
    leader.role.hold_produce(1, 1)
    leader.role.on_metadata(registered(1, partition_epoch=1), {1: 10}, 0)
    assert leader.role.high_watermark == 0
    assert leader.role.admit_acks_all() is ErrorCode.not_enough_replicas
    effects = leader.role.on_metadata(registered(1, 2, partition_epoch=2), {1: 10, 2: 20}, 0)
    assert effects == ()
    assert leader.fetch(2, 1)[1] == (MOVED, ReleaseProduce(1, ErrorCode.none))


def test_acks_1_under_min_isr_says_why_it_is_invisible() -> None:
    leader = Leading(log_of(), registered(1), min_insync_replicas=2)
    leader.append()
    hold = leader.role.high_watermark_hold(0)
    assert (hold, str(hold)) == (UnderMinIsr(1, 2), "under min ISR (1 of 2)")


def test_min_isr_lowered_frees_the_high_watermark() -> None:
    leader = Leading(log_of(), registered(1), min_insync_replicas=2)
    leader.append()
    assert leader.role.configure(1, counts_flushed=False, flushed_end_offset=0, now_ms=0) == (MOVED,)
    assert leader.role.high_watermark_hold(0) == NotHeld()


def test_p_4_a_repeated_batch_below_the_high_watermark_meets_too_small_an_isr() -> None:
    leader = Leading(log_of(), registered(1, 2), min_insync_replicas=2)
    leader.append()
    leader.fetch(2, 1)
    assert leader.role.acks_all_outcome(1) is ErrorCode.none
    leader.role.on_metadata(registered(1, partition_epoch=1), {1: 10}, 0)
    assert leader.role.acks_all_outcome(1) is ErrorCode.not_enough_replicas_after_append


def test_p_4_who_waits_is_told_when_the_leader_goes() -> None:
    leader = Leading(log_of(), registered(1, 2))
    leader.append(2)
    leader.role.hold_produce(5, 2)
    leader.role.hold_produce(6, 1)
    leader.role.hold_produce(7, 1)
    leader.role.abandon_produce(7, 1)
    leader.role.abandon_produce(5, 1)  # of another offset: unknown
    leader.role.abandon_produce(8, 3)
    assert leader.role.resign() == (
        ReleaseProduce(6, ErrorCode.not_leader_or_follower),
        ReleaseProduce(5, ErrorCode.not_leader_or_follower),
    )


def test_kafka_9672_members_that_are_no_longer_assigned_are_tolerated_and_not_added_again() -> None:
    leader = Leading(log_of(), registered(1, 2, 3, replicas=(1, 2)))
    leader.append()
    leader.fetch(2, 1)
    assert leader.role.high_watermark_hold(0) == WaitingFor((3,))
    request = asked(leader.role.on_lag_expired(3, 0))
    leader.role.on_alter_partition_response(request, granted(leader, request, 1, 2), 0)
    assert leader.role.high_watermark == 1
    assert refused(leader.fetch(3, 1)[0]) is ErrorCode.not_leader_or_follower


# ── joining and leaving in time ─────────────────────────────────────────────────────────────────
def test_a_follower_was_caught_up_when_it_asked_for_what_it_has_now() -> None:
    """It always has what the leader had at its previous fetch, and never all: since that fetch it lags."""
    leader = Leading(log_of(), registered(1, 2))
    for number in range(4):
        leader.append(now_ms=9_000 * number)
        leader.fetch(2, number, now_ms=9_000 * number)
    assert leader.role.on_tick(28_000) == (), "10 s after its fetch at 18 s"
    assert members(asked(leader.role.on_tick(28_001))) == (1,)


def test_r_6_a_follower_that_falls_behind_leaves_and_returns_when_it_has_caught_up() -> None:
    leader = Leading(log_of(), registered(1, 2))
    leader.append(2, now_ms=0)
    leader.fetch(2, 1, now_ms=10)
    assert leader.role.on_tick(10_000) == ()
    request = asked(leader.role.on_tick(10_001))
    assert members(request) == (1,)
    leader.role.on_alter_partition_response(request, granted(leader, request, 1), 10_002)
    assert leader.role.high_watermark == 2
    request = asked(leader.fetch(2, 2, now_ms=10_003)[1])
    assert members(request) == (1, 2)


def test_r_6_having_what_the_leader_had_at_the_last_fetch_is_being_caught_up_then() -> None:
    leader = Leading(log_of(), registered(1, 2))
    for now_ms in range(0, 60_000, 5_000):
        leader.append(1, now_ms=now_ms)
        leader.fetch(2, now_ms // 5_000, now_ms=now_ms)
        assert leader.role.on_tick(now_ms) == ()


def test_an_idle_hour_does_not_make_a_follower_late_at_the_next_append() -> None:
    leader = Leading(log_of(), registered(1, 2))
    leader.fetch(2, 0, now_ms=0)
    assert not leader.role.needs_tick
    leader.append(1, now_ms=3_600_000)
    assert leader.role.needs_tick
    assert leader.role.on_tick(3_600_001) == ()
    assert members(asked(leader.role.on_tick(3_610_001))) == (1,)


def test_a_leader_never_removes_itself() -> None:
    leader = Leading(log_of(), registered(1, 2, 3))
    leader.append()
    request = asked(leader.role.on_tick(20_000))
    assert members(request) == (1,)


def test_r_13_a_follower_hears_of_the_high_watermark_it_moved_one_fetch_later() -> None:
    leader = Leading(log_of(), registered(1, 2))
    leader.append(2)
    verdict, effects = leader.fetch(2, 1)
    assert effects == (MOVED,)
    assert verdict == ServeFetch(end_offset=2, high_watermark=0, log_start_offset=0, has_update=True)
    verdict, _ = leader.fetch(2, 2)
    assert verdict == ServeFetch(end_offset=2, high_watermark=1, log_start_offset=0, has_update=True)
    assert leader.role.send_high_watermark(2) == 2
    verdict, _ = leader.fetch(2, 2)
    assert verdict == ServeFetch(end_offset=2, high_watermark=2, log_start_offset=0, has_update=False)


def test_low_watermark_is_the_lowest_log_start_of_those_who_live() -> None:
    leader = Leading(log_of(0, 0), registered(1, 2, 3))
    leader.role.on_follower_fetch(FollowerFetch(2, 20, 0, 2, 0, 1), 0)
    assert leader.role.low_watermark == -1
    leader.role.on_metadata(registered(1, 2, partition_epoch=1), {1: 10, 2: 20}, 0)
    leader.log.log_start_offset = 2
    assert leader.role.low_watermark == 1


def test_a_leader_knows_that_it_leads() -> None:
    with pytest.raises(InvariantBroken, match="a leader is in the ISR"):
        Leading(log_of(), replace(registered(), isr=(2,)))
