"""SPEC R-2, R-4: a partition with one replica, the hot path."""

import pytest
from roles import log_of

from nilometer.invariants import InvariantBroken
from nilometer.replication.leader import LeaderRole
from nilometer.replication.shell_interface import (
    PENDING,
    NotHeld,
    PublishHighWatermark,
    Registration,
    ReleaseProduce,
    StartEpoch,
    WaitingForFlush,
)
from nilometer.simulation.model_check.processes import ModelLog
from nilometer.wire.errors import ErrorCode

ALONE = Registration(replicas=(1,), isr=(1,), leader=1, leader_epoch=4, partition_epoch=9)


def leader_on(log: ModelLog, **settings: object) -> LeaderRole:
    return LeaderRole(
        ALONE, log, broker_id=1, broker_epoch=7, high_watermark=0, eligible={1: 7}, now_ms=0, **settings
    )


def test_becoming_leader_enters_the_epoch_and_commits_what_is_there() -> None:
    log = log_of(1, 1, 3)
    leader = leader_on(log)
    assert leader.start(0) == (StartEpoch(4, 3), PublishHighWatermark())
    assert (leader.epoch_start_offset, leader.high_watermark) == (3, 3)


def test_high_watermark_is_the_log_end_at_once() -> None:
    leader = leader_on(log_of())
    leader.start(0)
    assert leader.on_appended(5, 0) == (PublishHighWatermark(),)
    assert leader.high_watermark == 5
    assert leader.acks_all_outcome(5) is ErrorCode.none
    assert leader.on_appended(5, 0) == ()
    assert leader.high_watermark_hold(0) == NotHeld()
    assert not leader.needs_tick


def test_one_replica_does_not_freeze_under_a_larger_min_isr() -> None:
    leader = leader_on(log_of(), min_insync_replicas=2)
    assert leader.admit_acks_all() is ErrorCode.none
    leader.on_appended(1, 0)
    assert leader.high_watermark == 1


def test_where_flushed_records_count_the_high_watermark_waits_for_the_flush() -> None:
    log = log_of()
    leader = leader_on(log, counts_flushed=True)
    leader.start(0)
    log.append(4, 0)
    assert leader.on_appended(1, 0) == ()
    assert leader.acks_all_outcome(1) is PENDING
    assert leader.high_watermark_hold(0) == WaitingForFlush()
    leader.hold_produce(11, 1)
    assert leader.on_flushed(1, 0) == (PublishHighWatermark(), ReleaseProduce(11, ErrorCode.none))


def test_only_what_was_written_can_be_flushed() -> None:
    leader = leader_on(log_of())
    leader.on_appended(5, 0)
    leader.on_flushed(5, 0)
    with pytest.raises(InvariantBroken, match="only what was written is flushed"):
        leader.on_flushed(6, 0)
