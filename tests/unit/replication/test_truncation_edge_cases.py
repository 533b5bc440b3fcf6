"""Where a returning replica's log parts from its leader's: each test is a case met in the field, named by
its tag."""

from __future__ import annotations

import pytest
from roles import ALL_REPLICAS, Leading, following, log_of, registered

from nilometer.replication.epochs import EpochEnd
from nilometer.replication.follower import FetchResponse, FollowerRole, NoFetch, TruncationRule
from nilometer.replication.leader import LeaderRole
from nilometer.replication.replica import NoRole, Replica
from nilometer.replication.shell_interface import (
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BackOff,
    DivergingFetch,
    FollowerFetch,
    ServeFetch,
    StartEpoch,
    TruncateFully,
    TruncateTo,
    clamped_high_watermark,
)
from nilometer.simulation.model_check.processes import ModelLog
from nilometer.simulation.scenario_stage import Stage
from nilometer.wire.errors import ErrorCode


def fetch_of(follower: FollowerRole) -> FollowerFetch:
    fetch = follower.next_fetch()
    assert isinstance(fetch, FollowerFetch)
    return fetch


def test_kip_101_scenario_1() -> None:
    """A returns with m2 above its high watermark, and keeps it; so it is there when B dies and A leads."""
    stage = Stage("BA")
    stage.produce("B")
    stage.fetch("A")
    stage.fetch("A")
    stage.produce("B")
    stage.fetch("A")
    stage.fetch("A", answer_is_lost=True)
    stage.crash("A", notice=False)
    stage.restart("A")
    assert stage.log_of("A").log_end_offset == 2
    stage.crash("B")
    assert stage.log_of("A").records == [(0, 1), (0, 2)]


def test_kip_101_scenario_2() -> None:
    """Offset 1 was written in epoch 0 by A and in epoch 1 by B: the epochs tell them apart, a watermark
    cannot."""
    new_leader = Leading(log_of(0), registered(1, leader_epoch=1, replicas=(1, 2)), high_watermark=1)
    new_leader.append()
    returning = log_of(0, 0)
    follower = following(returning, leader_epoch=1, high_watermark=2)
    fetch = fetch_of(follower)
    assert (fetch.fetch_offset, fetch.last_fetched_epoch) == (2, 0)
    verdict, effects = new_leader.fetch(2, 2, last_epoch=0)
    assert (verdict, effects) == (DivergingFetch(EpochEnd(0, 1)), ())
    assert follower.on_fetch_response(fetch, FetchResponse(diverging=EpochEnd(0, 1))) == (TruncateTo(1),)
    assert follower.high_watermark == 1


def test_kip_279_kafka_6361_fast_leader_changes() -> None:
    leader = Leading(log_of(*[0] * 12), registered(1, leader_epoch=2))
    leader.append()
    log = log_of(*[0] * 10, *[1] * 5)
    follower = following(log, leader_epoch=2)
    fetch = fetch_of(follower)
    verdict, _ = leader.fetch(2, 15, last_epoch=1)
    assert verdict == DivergingFetch(EpochEnd(0, 12))
    assert follower.on_fetch_response(fetch, FetchResponse(diverging=EpochEnd(0, 12))) == (TruncateTo(10),)


def test_kip_279_a_follower_without_the_epoch_steps_down_and_asks_again() -> None:
    """The leader names epoch 3, of which the follower has nothing: it keeps what is below and asks with
    that."""
    log = log_of(1, 1, 4, 4)
    follower = following(log, leader_epoch=5)
    effects = follower.on_fetch_response(fetch_of(follower), FetchResponse(diverging=EpochEnd(3, 9)))
    assert effects == (TruncateTo(2),)
    log.truncate_to(2)
    assert fetch_of(follower).last_fetched_epoch == 1


def test_kafka_7415_a_leader_that_never_writes_still_enters_its_epoch() -> None:
    log = log_of(0, 0)
    leader = Leading(log, registered(1, leader_epoch=3))
    assert leader.first_effects[0] == StartEpoch(3, 2)
    assert log.chain == [(0, 0), (3, 2)]
    verdict, _ = leader.fetch(2, 4, last_epoch=1)
    assert verdict == DivergingFetch(EpochEnd(0, 2))


def test_kafka_7415_an_epoch_below_the_chain_ends_where_the_chain_begins() -> None:
    log = ModelLog(log_start_offset=100)
    leader = Leading(log, registered(1, leader_epoch=5))
    leader.append(5)
    assert leader.role.end_offset_for_leader_epoch(5, 2) == (ErrorCode.none, EpochEnd(2, 100))


def test_kafka_10706_elections_without_data_are_reconciled_in_one_step() -> None:
    """The follower led in epoch 3 and wrote nothing: truncating to its own end still trims that epoch."""
    log = log_of(0, 0)
    log.start_epoch(3, 2)
    leader = Leading(log_of(0, 0), registered(1, leader_epoch=4))
    follower = following(log, leader_epoch=4)
    fetch = fetch_of(follower)
    verdict, _ = leader.fetch(2, 2, last_epoch=fetch.last_fetched_epoch)
    assert verdict == DivergingFetch(EpochEnd(0, 2))
    assert follower.on_fetch_response(fetch, FetchResponse(diverging=EpochEnd(0, 2))) == (TruncateTo(2),)
    log.truncate_to(2)
    assert log.chain == [(0, 0)]
    verdict, _ = leader.fetch(2, 2, last_epoch=fetch_of(follower).last_fetched_epoch)
    assert isinstance(verdict, ServeFetch)


def test_kafka_10432_epoch_0_is_an_epoch() -> None:
    follower = following(log_of(0))
    assert fetch_of(follower).last_fetched_epoch == 0
    assert fetch_of(following(log_of())).last_fetched_epoch == -1


def test_kafka_7164_every_epoch_change_is_reconciled_even_with_the_same_leader() -> None:
    log = log_of(0, 0)
    replica = Replica(log, broker_id=2, broker_epoch=20, checkpointed_high_watermark=1)
    replica.on_metadata(registered(leader=1, leader_epoch=0), ALL_REPLICAS, 0)
    before = replica.role
    assert isinstance(before, FollowerRole)
    old_fetch = fetch_of(before)
    replica.on_metadata(registered(leader=1, leader_epoch=4, partition_epoch=4), ALL_REPLICAS, 0)
    after = replica.role
    assert isinstance(after, FollowerRole)
    assert after is not before
    assert (fetch_of(after).leader_epoch, after.high_watermark) == (4, 1)
    assert replica.on_fetch_response(old_fetch, FetchResponse(diverging=EpochEnd(0, 0))) == ()


def test_kafka_14704_divergence_comes_first_and_alone() -> None:
    log = log_of(0, 0, 0)
    follower = following(log, leader_epoch=1, high_watermark=1)
    answer = FetchResponse(
        diverging=EpochEnd(0, 2), high_watermark=3, log_start_offset=1, base_offset=3, end_offset=4
    )
    assert follower.on_fetch_response(fetch_of(follower), answer) == (TruncateTo(2),)
    assert follower.high_watermark == 1


@pytest.mark.parametrize("half", [EpochEnd(0, -1), EpochEnd(-1, 2)], ids=["end offset", "epoch"])
def test_a_diverging_epoch_of_which_half_is_missing_truncates_nothing(half: EpochEnd) -> None:
    follower = following(log_of(0, 0, 0), leader_epoch=1, high_watermark=1)
    (effect,) = follower.on_fetch_response(fetch_of(follower), FetchResponse(diverging=half))
    assert isinstance(effect, BackOff)
    assert effect.error is ErrorCode.unknown_server_error


def test_kafka_13207_an_answer_that_finds_a_leader_truncates_nothing() -> None:
    log = log_of(0, 0)
    replica = Replica(log, broker_id=2, broker_epoch=20)
    replica.on_metadata(registered(leader=1), ALL_REPLICAS, 0)
    assert isinstance(replica.role, FollowerRole)
    fetch = fetch_of(replica.role)
    replica.on_metadata(registered(2, leader=2, leader_epoch=1, partition_epoch=1), ALL_REPLICAS, 0)
    assert isinstance(replica.role, LeaderRole)
    assert replica.on_fetch_response(fetch, FetchResponse(diverging=EpochEnd(0, 0))) == ()
    replica.resign()
    assert isinstance(replica.role, NoRole)
    assert replica.on_fetch_response(fetch, FetchResponse(diverging=EpochEnd(0, 0))) == ()


def test_the_next_role_knows_what_the_former_one_has_flushed() -> None:
    replica = Replica(log_of(0, 0, 0), broker_id=2, broker_epoch=20, counts_flushed=True)
    replica.on_metadata(registered(leader=1), ALL_REPLICAS, 0)
    replica.on_flushed(2, 0)
    replica.on_metadata(registered(2, leader=2, leader_epoch=1, partition_epoch=1), ALL_REPLICAS, 0)
    assert isinstance(replica.role, LeaderRole)
    assert (replica.role.flushed_end_offset, replica.role.high_watermark) == (2, 2)


def test_an_answer_that_comes_twice_or_after_giving_up_is_ignored() -> None:
    log = log_of(0, 0, 0)
    follower = following(log, leader_epoch=1)
    first = fetch_of(follower)
    second = fetch_of(follower)
    diverging = FetchResponse(diverging=EpochEnd(0, 2))
    assert follower.on_fetch_response(first, diverging) == ()
    assert follower.on_fetch_response(second, diverging) == (TruncateTo(2),)
    assert follower.on_fetch_response(second, diverging) == ()
    third = fetch_of(follower)
    follower.on_fetch_failed(third)
    assert follower.on_fetch_response(third, diverging) == ()


def test_r_4_records_then_high_watermark_then_log_start() -> None:
    log = log_of(0)
    follower = following(log)
    answer = FetchResponse(base_offset=1, end_offset=4, high_watermark=9, log_start_offset=1)
    effects = follower.on_fetch_response(fetch_of(follower), answer)
    assert effects == (AppendBatches(4), AdvanceHighWatermark(4), AdvanceLogStart(1))


def test_the_high_watermark_of_a_follower_is_not_above_its_log() -> None:
    follower = following(log_of(0, 0))
    behind = FetchResponse(high_watermark=7, log_start_offset=0)
    assert follower.on_fetch_response(fetch_of(follower), behind) == (AdvanceHighWatermark(2),)
    one_more = FetchResponse(base_offset=2, end_offset=3, high_watermark=7, log_start_offset=0)
    effects = follower.on_fetch_response(fetch_of(follower), one_more)
    assert effects == (AppendBatches(3), AdvanceHighWatermark(3))


def test_r_8_nothing_is_truncated_before_the_leader_has_spoken() -> None:
    log = log_of(0, 0, 0)
    follower = following(log, leader_epoch=1, high_watermark=1)
    assert follower.start() == ()
    assert fetch_of(follower).fetch_offset == 3


def test_r_12_the_old_rule_truncates_to_the_high_watermark_at_once() -> None:
    log = log_of(0, 0, 0)
    follower = following(log, leader_epoch=1, high_watermark=1, rule=TruncationRule.TO_HIGH_WATERMARK)
    assert follower.start() == (TruncateTo(1),)
    assert fetch_of(follower).last_fetched_epoch == -1


def test_a_partition_without_a_leader_is_not_fetched() -> None:
    assert following(log_of(0), leader=-1).next_fetch() is NoFetch.NO_LEADER


def test_what_is_not_flushed_is_not_acknowledged_by_a_fetch() -> None:
    log = log_of(0, 0)
    follower = following(log)
    follower.configure(counts_flushed=True, flushed_end_offset=1)
    assert follower.next_fetch() is NoFetch.UNFLUSHED
    follower.on_flushed(2)
    assert fetch_of(follower).fetch_offset == 2


def test_kafka_9491_below_the_leaders_log_start_the_log_starts_again_with_its_high_watermark() -> None:
    log = log_of(0, 0)
    follower = following(log, high_watermark=1)
    answer = FetchResponse(error=ErrorCode.offset_out_of_range, log_start_offset=7)
    assert follower.on_fetch_response(fetch_of(follower), answer) == (
        TruncateFully(7),
        AdvanceHighWatermark(7),
    )
    assert follower.high_watermark == 7


def test_kafka_6975_a_log_that_begins_in_a_batch_takes_the_whole_batch() -> None:
    log = ModelLog(log_start_offset=105)
    follower = following(log, high_watermark=105)
    answer = FetchResponse(base_offset=100, end_offset=110, high_watermark=110, log_start_offset=105)
    assert follower.on_fetch_response(fetch_of(follower), answer)[0] == AppendBatches(110)


def test_a_follower_takes_what_lies_behind_a_gap_that_compaction_left() -> None:
    """A new replica of a compacted partition finds one before the first batch."""
    for log in (log_of(0, 0), log_of()):
        follower = following(log)
        answer = FetchResponse(base_offset=7, end_offset=9, high_watermark=9, log_start_offset=0)
        assert follower.on_fetch_response(fetch_of(follower), answer)[0] == AppendBatches(9)


@pytest.mark.parametrize(("base_offset", "end_offset"), [(1, 3), (2, 2)])
def test_batches_that_do_not_follow_the_log_are_not_appended(base_offset: int, end_offset: int) -> None:
    """A peer's mistake is no broken invariant: the follower rests and asks again."""
    follower = following(log_of(0, 0))
    answer = FetchResponse(
        base_offset=base_offset, end_offset=end_offset, high_watermark=2, log_start_offset=0
    )
    (effect,) = follower.on_fetch_response(fetch_of(follower), answer)
    assert isinstance(effect, BackOff)
    assert effect.error is ErrorCode.corrupt_message


def test_kafka_16452_a_checkpointed_high_watermark_is_brought_within_the_log() -> None:
    assert clamped_high_watermark(3, 5, 9) == 5
    assert clamped_high_watermark(12, 5, 9) == 9
    assert clamped_high_watermark(7, 5, 9) == 7
    replica = Replica(
        ModelLog(log_start_offset=5), broker_id=2, broker_epoch=1, checkpointed_high_watermark=3
    )
    assert replica.high_watermark == 5


def test_a_diverging_epoch_below_the_log_start_starts_the_log_again() -> None:
    log = ModelLog(log_start_offset=10)
    log.append(3, 0)
    follower = following(log, leader_epoch=4)
    effects = follower.on_fetch_response(fetch_of(follower), FetchResponse(diverging=EpochEnd(2, 6)))
    assert effects == (TruncateFully(6), AdvanceHighWatermark(6))
