"""One share partition in the scenarios of KIP-932, KIP-1206 and KIP-1222."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise

import pytest
from share_partition_harness import (
    ACCEPT,
    GAP,
    LOCK_MS,
    RECORDS,
    REJECT,
    RELEASE,
    RENEW,
    Leader,
    ranges,
)

from nilometer.invariants import InvariantBroken
from nilometer.share.partition_events import (
    Acknowledgement,
    AcknowledgementBatch,
    Dead,
    DeadReason,
    ShareSettings,
    Write,
)
from nilometer.share.share_partition import LOCKS_PER_TURN, RUNS_PER_STEP, SPANS_PER_STEP, SharePartition
from nilometer.share.state_records import NO_START_OFFSET, DeliveryState, SharePartitionState, StateBatch
from nilometer.wire.errors import NONE, ErrorCode

AVAILABLE, ARCHIVED = DeliveryState.AVAILABLE, DeliveryState.ARCHIVED
ACKNOWLEDGED, ARCHIVING = DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVING
INVALID_RECORD_STATE, INVALID_REQUEST = ErrorCode.invalid_record_state, ErrorCode.invalid_request


class TestAcquiring:
    def test_new_records_are_acquired_up_to_the_end_of_the_batch_with_the_limit(self) -> None:
        leader = Leader()
        assert leader.fetch(0, 4, 5, 9, 10, 14, limit=7) == [(0, 9, 1)]
        assert leader.partition.next_fetch_offset() == 10
        assert leader.state == "0-9:acquired×1@a"

    def test_each_member_gets_other_records(self) -> None:
        leader = Leader()
        assert leader.fetch(0, 4, 5, 9, limit=1) == [(0, 4, 1)]
        assert leader.fetch(5, 9, member="b") == [(5, 9, 1)]
        assert leader.fetch(5, 9, at=5, member="c") == []
        assert leader.state == "0-4:acquired×1@a 5-9:acquired×1@b"

    def test_a_limit_of_records_is_kept_exactly(self) -> None:
        leader = Leader()
        assert leader.fetch(0, 9, limit=3, mode=RECORDS) == [(0, 2, 1)]
        assert leader.partition.next_fetch_offset() == 3
        assert leader.fetch(0, 9, member="b", limit=4, mode=RECORDS) == [(3, 6, 1)]
        assert leader.fetch(0, 9, 10, 19, member="c", limit=5, mode=RECORDS) == [(7, 9, 1), (10, 11, 1)]
        assert leader.state.endswith("10-11:acquired×1@c 12-19:available×0")

    def test_new_records_are_divided_at_the_bounds_of_batches(self) -> None:
        leader = Leader()
        assert leader.fetch(0, 3, 4, 9, 10, 11, 12, 19, size=5) == [(0, 9, 1), (10, 19, 1)]
        assert leader.fetch(20, 22, 23, 24, size=5) == [(20, 24, 1)]
        assert leader.fetch(25, 30, 31, 31, size=0) == [(25, 30, 1), (31, 31, 1)]

    def test_what_was_acquired_together_is_acquired_again_together(self) -> None:
        leader = Leader()
        leader.fetch(0, 3, 4, 9, 10, 11, 12, 19, size=5)
        leader.leave()
        assert leader.fetch(0, 3, 4, 9, 10, 11, 12, 19, limit=1, member="b") == [(0, 9, 2)]
        assert leader.fetch(10, 11, 12, 19, limit=3, mode=RECORDS, member="b") == [(10, 12, 2)]

    def test_what_is_held_between_is_left_out(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.acknowledge(2, 3, RELEASE)
        leader.acknowledge(6, 7, RELEASE)
        assert leader.partition.next_fetch_offset() == 2
        assert leader.fetch(0, 9, 10, 14, member="b") == [(2, 3, 2), (6, 7, 2), (10, 14, 1)]
        assert leader.partition.next_fetch_offset() == 15

    def test_only_what_was_read_is_acquired(self) -> None:
        leader = Leader()
        leader.fetch(0, 3, 4, 9)
        leader.leave()
        assert leader.fetch(0, 3, member="b") == [(0, 3, 2)]
        assert leader.fetch(0, 3, at=0, member="c") == []
        assert leader.state == "0-3:acquired×2@b 4-9:available×1"

    def test_the_first_read_may_begin_above_the_start(self) -> None:
        leader = Leader(start=5)
        assert leader.fetch(0, 9) == [(5, 9, 1)]
        assert Leader(start=5).fetch(0, 4, at=5) == []
        assert Leader().fetch() == []
        assert Leader().fetch(0, 9, limit=0) == []


class TestLimits:
    def test_the_records_between_start_and_end_are_limited(self) -> None:
        leader = Leader(max_record_locks=10)
        assert leader.fetch(0, 4, 5, 11, 12, 14) == [(0, 11, 1)]
        assert not leader.partition.can_acquire()
        assert leader.fetch(12, 14) == []
        leader.acknowledge(3, 11, ACCEPT)
        assert not leader.partition.can_acquire()  # the first records still stand in the way
        leader.acknowledge(0, 2, ACCEPT)
        assert leader.partition.can_acquire()
        assert leader.fetch(12, 14) == [(12, 14, 1)]

    def test_what_is_available_below_the_end_can_be_acquired_though_it_is_full(self) -> None:
        leader = Leader(max_record_locks=10)
        leader.fetch(0, 9)
        leader.acknowledge(4, 5, RELEASE)
        assert leader.partition.can_acquire()
        assert leader.fetch(0, 9, 10, 14, member="b") == [(4, 5, 2)]

    def test_a_batch_exceeds_the_limit_by_no_more_than_the_limit(self) -> None:
        leader = Leader(max_record_locks=10)
        assert leader.fetch(0, 999, limit=4) == [(0, 13, 1)]
        leader.acknowledge(0, 13, ACCEPT)
        assert leader.fetch(0, 999, limit=4) == [(14, 27, 1)]

    def test_locks_that_were_renewed_often_take_no_more_room(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        for _ in range(1_000):
            assert leader.acknowledge(0, 9, RENEW) is NONE
        assert len(leader.partition._locks) < 100  # pyright: ignore[reportPrivateUsage]

    def test_no_member_names_more_batches_than_it_can_hold(self) -> None:
        leader = Leader(start=10, max_record_locks=2)
        leader.fetch(10, 13)
        done = [AcknowledgementBatch(offset, offset, (ACCEPT,)) for offset in range(5)]
        assert leader.acknowledge_all(*done[:4]) is NONE
        assert leader.acknowledge_all(*done) is INVALID_REQUEST


class TestAcknowledging:
    def test_what_is_accepted_at_the_front_moves_the_start(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        assert leader.acknowledge(3, 5, ACCEPT) is NONE
        assert leader.state == "0-2:acquired×1@a 3-5:acknowledged×1 6-9:acquired×1@a"
        assert leader.acknowledge(0, 2, ACCEPT) is NONE
        assert leader.state == "6-9:acquired×1@a"
        assert leader.partition.start_offset == 6
        assert leader.acknowledge(6, 9, ACCEPT) is NONE
        assert (leader.partition.start_offset, leader.partition.end_offset) == (10, 10)
        assert leader.partition.next_deadline_ms() is None

    def test_a_write_has_the_batches_the_start_and_the_count(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.acknowledge(2, 5, ACCEPT, ACCEPT, RELEASE, REJECT)
        first = leader.writes[-1]
        assert first.batches == (
            StateBatch(2, 3, ACKNOWLEDGED, 1),
            StateBatch(4, 4, AVAILABLE, 1),
            StateBatch(5, 5, ARCHIVED, 1),
        )
        assert (first.start_offset, first.delivery_complete_count) == (0, 3)
        leader.acknowledge(0, 1, ACCEPT)
        second = leader.writes[-1]  # the start moves when that is written
        assert (second.start_offset, second.delivery_complete_count) == (0, 5)
        leader.acknowledge(6, 6, ACCEPT)
        assert (leader.writes[-1].start_offset, leader.writes[-1].delivery_complete_count) == (4, 2)

    def test_a_gap_is_archived_and_not_dead(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        assert leader.acknowledge(1, 2, GAP) is NONE
        assert leader.state == "0-0:acquired×1@a 1-2:archived×1 3-9:acquired×1@a"
        assert leader.dead == []

    def test_what_is_rejected_is_dead_when_it_is_written(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(1, 2, REJECT)
        assert leader.dead == []
        leader.written(leader.writes[-1].change)
        assert leader.dead == [Dead(1, 2, 1, DeadReason.REJECTED)]

    @pytest.mark.parametrize(
        ("first", "last", "types", "error"),
        [
            (4, 3, (ACCEPT,), INVALID_REQUEST),
            (0, 3, (), INVALID_REQUEST),
            (0, 3, (ACCEPT, ACCEPT), INVALID_REQUEST),
            (0, 3, (5,), INVALID_REQUEST),
            (0, 3, (-1,), INVALID_REQUEST),
            (0, 1, (ACCEPT, 7), INVALID_REQUEST),
            (8, 10, (ACCEPT,), INVALID_REQUEST),
            (10, 10, (ACCEPT,), INVALID_REQUEST),
            (5, 9, (ACCEPT,), INVALID_RECORD_STATE),  # some are another member's
            (4, 4, (ACCEPT,), INVALID_RECORD_STATE),  # it is available
            (0, 4, (ACCEPT,), INVALID_RECORD_STATE),
            (3, 3, (ACCEPT,), INVALID_RECORD_STATE),  # it was accepted before
            (0, 2, (ACCEPT,), NONE),
        ],
    )
    def test_what_cannot_be_acknowledged(
        self, first: int, last: int, types: tuple[int, ...], error: ErrorCode
    ) -> None:
        leader = Leader()
        leader.fetch(0, 5)
        leader.fetch(6, 9, member="b")
        leader.acknowledge(3, 4, ACCEPT, RELEASE)
        assert leader.acknowledge(first, last, *types) is error

    def test_one_batch_that_is_refused_refuses_all(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.acknowledge(5, 5, ACCEPT)
        batches = [AcknowledgementBatch(*pair, (ACCEPT,)) for pair in ranges(0, 1, 2, 3, 4, 5)]
        assert leader.acknowledge_all(*batches) is INVALID_RECORD_STATE
        assert leader.acknowledge_all(*batches[:2]) is NONE

    def test_batches_must_be_in_order(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        low, high = AcknowledgementBatch(0, 2, (ACCEPT,)), AcknowledgementBatch(3, 5, (ACCEPT,))
        again = AcknowledgementBatch(2, 4, (ACCEPT,))
        assert leader.acknowledge_all(high, low) is INVALID_REQUEST
        assert leader.acknowledge_all(low, again) is INVALID_RECORD_STATE
        assert leader.acknowledge_all(low, high) is NONE

    def test_nothing_is_held_where_nothing_was_read(self) -> None:
        leader = Leader(start=5)
        assert leader.acknowledge(5, 6, ACCEPT) is INVALID_RECORD_STATE
        assert leader.acknowledge(0, 4, ACCEPT) is NONE  # done long ago
        assert leader.writes == []

    def test_below_the_start_an_acknowledgement_is_ignored(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.partition.on_log_start_moved(5)
        assert leader.acknowledge(3, 6, ACCEPT, ACCEPT, RELEASE, ACCEPT) is NONE
        assert leader.state == "5-5:available×1 6-6:acknowledged×1 7-9:acquired×1@a"


class TestDeliveries:
    def test_a_release_counts(self) -> None:
        leader = Leader(delivery_count_limit=2)
        leader.fetch(0, 9)
        leader.acknowledge(0, 9, RELEASE)
        assert leader.fetch(0, 9) == [(0, 9, 2)]
        leader.acknowledge(3, 3, RELEASE)
        assert leader.state == "0-2:acquired×2@a 3-3:archived×2 4-9:acquired×2@a"
        assert leader.dead == [Dead(3, 3, 2, DeadReason.DELIVERY_LIMIT)]
        assert leader.acknowledge(4, 4, ACCEPT) is NONE  # the last delivery can still be accepted

    def test_the_more_often_it_failed_the_less_is_delivered_beside_it(self) -> None:
        leader = Leader(delivery_count_limit=5)
        leader.fetch(0, 15)
        for _ in range(2):
            leader.leave()
            leader.fetch(0, 15)
        leader.leave()
        assert leader.fetch(0, 15) == [(0, 7, 4)]  # the fourth time: half of the batch
        assert leader.fetch(0, 15, 16, 19, member="b") == [(8, 15, 4)]  # and nothing beside
        leader.leave()
        assert leader.fetch(0, 15) == [(0, 0, 5)]  # the last time: alone
        leader.fetch(0, 15, at=1)
        leader.leave()
        assert leader.partition.start_offset == 2
        assert leader.partition.next_fetch_offset() == 2

    def test_what_was_delivered_often_waits_for_its_turn(self) -> None:
        leader = Leader(
            StateBatch(0, 3, AVAILABLE, 1), StateBatch(4, 7, AVAILABLE, 4), StateBatch(8, 9, AVAILABLE, 0)
        )
        assert leader.fetch(0, 9) == [(0, 3, 2)]
        assert leader.fetch(0, 9) == [(4, 4, 5)]
        leader.partition.settings = ShareSettings(delivery_count_limit=2)
        assert leader.fetch(0, 9) == [(8, 9, 1)]

    def test_a_lower_limit_buries_what_was_delivered_that_often(self) -> None:
        leader = Leader(StateBatch(0, 4, AVAILABLE, 3), StateBatch(5, 9, AVAILABLE, 1))
        leader.partition.settings = ShareSettings(delivery_count_limit=3)
        assert leader.fetch(0, 9) == [(5, 9, 2)]
        assert leader.dead == [Dead(0, 4, 3, DeadReason.DELIVERY_LIMIT)]
        assert leader.partition.start_offset == 5
        assert leader.writes[-1].start_offset == 5


class TestDeadLetters:
    def test_what_is_rejected_is_archived_once_its_letter_is_written(self) -> None:
        leader = Leader(dead_letters=True)
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(0, 2, REJECT)
        assert leader.writes[-1].batches == (StateBatch(0, 2, ARCHIVING, 1),)
        assert leader.dead == []  # a leader that is lost now delivers them again
        leader.written(leader.writes[-1].change)
        assert leader.dead == [Dead(0, 2, 1, DeadReason.REJECTED, has_letters=True)]
        assert leader.state == "0-2:archiving×1 3-9:acquired×1@a"
        leader.bury(0, 1)
        assert leader.state == "2-2:archiving×1 3-9:acquired×1@a"
        assert (leader.writes[-1].start_offset, leader.writes[-1].delivery_complete_count) == (2, 0)
        leader.bury(0, 2)
        assert leader.partition.start_offset == 3

    def test_what_cannot_be_written_as_archiving_has_no_letter(self) -> None:
        leader = Leader(dead_letters=True)
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(0, 2, REJECT)
        leader.written(leader.writes[-1].change, ok=False)
        assert leader.dead == []
        assert leader.state == "0-9:acquired×1@a"

    def test_the_last_delivery_has_a_letter_too(self) -> None:
        leader = Leader(dead_letters=True, delivery_count_limit=1)
        leader.fetch(0, 4)
        leader.fetch(5, 9, member="b")
        leader.leave("b")
        leader.wait(LOCK_MS)
        assert leader.state == "0-4:archiving×1 5-9:archiving×1"
        assert [(one.first_offset, one.last_offset, one.reason) for one in leader.dead] == [
            (5, 9, DeadReason.DELIVERY_LIMIT),
            (0, 4, DeadReason.DELIVERY_LIMIT),
        ]
        leader.bury(5, 9)
        assert leader.state == "0-4:archiving×1 5-9:archived×1"
        assert leader.writes[-1].batches == (StateBatch(5, 9, ARCHIVED, 1),)
        assert leader.partition.view(0).archiving == 5

    def test_archiving_records_are_neither_delivered_nor_acknowledged(self) -> None:
        leader = Leader(dead_letters=True, max_record_locks=10)
        leader.fetch(0, 9)
        leader.acknowledge(0, 9, REJECT)
        assert not leader.partition.can_acquire()
        assert leader.fetch(0, 9, 10, 14) == []
        assert leader.acknowledge(0, 0, ACCEPT) is INVALID_RECORD_STATE
        leader.bury(0, 9)
        assert leader.partition.can_acquire()
        assert leader.fetch(10, 14) == [(10, 14, 1)]

    def test_a_new_leader_writes_the_letters_that_may_be_missing(self) -> None:
        leader = Leader(
            StateBatch(0, 2, ARCHIVING, 1),
            StateBatch(3, 4, ACKNOWLEDGED, 1),
            StateBatch(5, 5, ARCHIVING, 5),
            dead_letters=True,
        )
        assert leader.partition.on_loaded() == (
            Dead(0, 2, 1, DeadReason.REJECTED, has_letters=True),
            Dead(5, 5, 5, DeadReason.DELIVERY_LIMIT, has_letters=True),
        )
        leader.bury(0, 2)
        leader.bury(5, 5)
        assert leader.partition.start_offset == 6
        assert Leader(StateBatch(0, 2, ARCHIVED, 1)).partition.on_loaded() == ()

    def test_a_lower_limit_has_letters_too(self) -> None:
        leader = Leader(StateBatch(0, 4, AVAILABLE, 3), StateBatch(5, 9, AVAILABLE, 1), dead_letters=True)
        leader.partition.settings = ShareSettings(delivery_count_limit=3, dead_letters=True)
        assert leader.fetch(0, 9) == [(5, 9, 2)]
        assert leader.dead == [Dead(0, 4, 3, DeadReason.DELIVERY_LIMIT, has_letters=True)]
        assert leader.writes[-1].batches == (StateBatch(0, 4, ARCHIVING, 3),)
        leader.bury(0, 4)
        assert leader.partition.start_offset == 5

    def test_what_the_log_has_no_more_needs_no_letter(self) -> None:
        leader = Leader(dead_letters=True)
        leader.fetch(0, 9)
        leader.acknowledge(0, 4, REJECT)
        leader.partition.on_log_start_moved(3)
        writes = len(leader.writes)
        leader.bury(0, 2)
        assert len(leader.writes) == writes
        leader.bury(0, 4)
        assert leader.partition.start_offset == 5


class TestLocks:
    def test_what_was_not_acknowledged_in_time_is_available_again(self) -> None:
        leader = Leader()
        leader.fetch(0, 4)
        leader.wait(LOCK_MS // 2)
        leader.fetch(5, 9, member="b")
        assert leader.partition.next_deadline_ms() == LOCK_MS
        leader.wait(LOCK_MS // 2 - 1)
        assert leader.writes == []
        leader.wait(1)
        assert leader.state == "0-4:available×1 5-9:acquired×1@b"
        assert leader.writes[-1].batches == (StateBatch(0, 4, AVAILABLE, 1),)
        assert leader.acknowledge(0, 4, ACCEPT) is INVALID_RECORD_STATE
        assert leader.partition.next_deadline_ms() == LOCK_MS + LOCK_MS // 2

    def test_the_last_delivery_ends_in_the_archive(self) -> None:
        leader = Leader(delivery_count_limit=1)
        leader.fetch(0, 4)
        leader.fetch(5, 9)
        leader.acknowledge(0, 4, RENEW)
        leader.wait(LOCK_MS)
        assert (leader.partition.start_offset, leader.partition.end_offset) == (10, 10)
        [batch] = leader.writes[-1].batches
        assert (batch.first_offset, batch.last_offset, batch.state) == (0, 9, ARCHIVED)
        assert leader.writes[-1].start_offset == 0
        assert [(one.first_offset, one.last_offset) for one in leader.dead] == [(0, 4), (5, 9)]

    def test_the_start_waits_until_the_archive_is_written(self) -> None:
        """Below the start, a late acknowledgement would be answered as if it were taken."""
        leader = Leader(delivery_count_limit=1)
        leader.fetch(0, 4)
        leader.slow = True
        leader.wait(LOCK_MS)
        assert leader.acknowledge(0, 4, ACCEPT) is ErrorCode.invalid_record_state
        leader.fetch(5, 9)
        assert leader.partition.start_offset == 0
        leader.written(leader.writes[-1].change)
        assert leader.partition.start_offset == 5

    def test_many_locks_end_in_several_turns(self) -> None:
        leader = Leader(max_record_locks=1_000)
        for _ in range(LOCKS_PER_TURN + 2):
            leader.fetch(0, 999, limit=1, mode=RECORDS)
        leader.wait(LOCK_MS)
        assert leader.partition.view(0).acquired == 2
        assert leader.partition.next_deadline_ms() == LOCK_MS
        leader.wait(0)
        assert leader.state == f"0-{LOCKS_PER_TURN + 1}:available×1 {LOCKS_PER_TURN + 2}-999:available×0"

    def test_one_lock_of_many_pieces_ends_in_several_turns(self) -> None:
        leader = Leader(max_record_locks=2_000)
        leader.fetch(0, 1_999, limit=2_000)
        for offset in range(1, 2_000, 2):
            assert leader.acknowledge(offset, offset, ACCEPT) is NONE
        held = [leader.partition.view(0).acquired]
        leader.wait(LOCK_MS)
        while leader.partition.next_deadline_ms() is not None:
            held.append(leader.partition.view(0).acquired)
            leader.wait(0)
        held.append(leader.partition.view(0).acquired)
        assert (held[0], held[-1]) == (1_000, 0)
        assert all(0 <= before - after <= LOCKS_PER_TURN for before, after in pairwise(held))
        assert leader.partition.view(0).available == 1_000

    def test_a_renewal_starts_the_lock_again(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.wait(LOCK_MS - 1)
        assert leader.acknowledge(2, 4, RENEW, ACCEPT, RENEW) is NONE
        leader.wait(1)
        assert leader.state == (
            "0-1:available×1 2-2:acquired×1@a 3-3:acknowledged×1 4-4:acquired×1@a 5-9:available×1"
        )
        leader.wait(LOCK_MS - 2)
        assert leader.acknowledge(2, 2, ACCEPT) is NONE
        leader.wait(1)
        assert leader.state == "0-1:available×1 2-3:acknowledged×1 4-9:available×1"

    def test_renewals_alone_write_nothing(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        assert leader.acknowledge(0, 9, RENEW) is NONE
        assert leader.writes == []

    def test_a_renewal_leaves_the_neighbour_to_its_member(self) -> None:
        leader = Leader()
        leader.fetch(0, 9, limit=3, mode=RECORDS)
        leader.fetch(0, 9, limit=7, mode=RECORDS, member="b")
        assert leader.acknowledge(0, 2, RENEW) is NONE
        assert leader.state == "0-2:acquired×1@a 3-9:acquired×1@b"

    def test_renewals_may_be_disabled(self) -> None:
        leader = Leader(renew_enabled=False)
        leader.fetch(0, 9)
        assert leader.acknowledge(0, 9, RENEW) is INVALID_RECORD_STATE

    def test_what_a_member_held_is_available_when_it_leaves(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.fetch(10, 14, member="b")
        leader.acknowledge(4, 4, ACCEPT)
        leader.leave()
        assert leader.state == "0-3:available×1 4-4:acknowledged×1 5-9:available×1 10-14:acquired×1@b"
        leader.leave("c")
        assert len(leader.writes) == 2


class TestInSteps:
    """What is said of many records is taken in steps, between which others may come."""

    RUNS = 2 * RUNS_PER_STEP + 10

    def leader(self) -> Leader:
        leader = Leader(max_record_locks=1_000)
        leader.fetch(0, self.RUNS - 1, limit=self.RUNS)
        return leader

    def batches(self, *kinds: int) -> list[AcknowledgementBatch]:
        return [AcknowledgementBatch(at, at, (kinds[at % len(kinds)],)) for at in range(self.RUNS)]

    def acknowledged(self, leader: Leader, *batches: AcknowledgementBatch) -> int:
        """Return the change that waits until it is written."""
        (write,) = leader.partition.acknowledge("a", batches, 0).effects
        assert isinstance(write, Write)
        return write.change

    def end_of(self, steps: Generator[int, None, Acknowledgement]) -> Acknowledgement:
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value

    def test_each_step_has_few_runs_and_the_result_is_that_of_one(self) -> None:
        in_steps, at_once = self.leader(), self.leader()
        steps = in_steps.partition.acknowledge_in_steps("a", self.batches(ACCEPT, RELEASE), 0)
        assert [next(steps), next(steps)] == [RUNS_PER_STEP] * 2
        (write,) = self.end_of(steps).effects
        assert isinstance(write, Write)
        assert at_once.acknowledge_all(*self.batches(ACCEPT, RELEASE)) is NONE
        in_steps.partition.on_written(write.change, ok=True)
        assert in_steps.state == at_once.state
        assert write.batches == at_once.writes[0].batches

    def test_what_was_written_takes_effect_in_steps(self) -> None:
        for ok in (True, False):
            in_steps, at_once = self.leader(), self.leader()
            for leader in (in_steps, at_once):
                change = self.acknowledged(leader, *self.batches(ACCEPT, RELEASE))
            steps = in_steps.partition.on_written_in_steps(change, ok)
            assert next(steps) == SPANS_PER_STEP
            assert in_steps.partition.start_offset == 0
            at_once.partition.on_written(change, ok)
            assert list(steps) == []
            assert in_steps.state == at_once.state
            assert in_steps.partition.view(1_000) == at_once.partition.view(1_000)

    def test_a_member_may_leave_while_what_it_said_takes_effect(self) -> None:
        leader = self.leader()
        change = self.acknowledged(leader, *self.batches(RELEASE, REJECT)[:-1])
        steps = leader.partition.on_written_in_steps(change, True)
        next(steps)
        (write,) = leader.partition.release_member("a")
        assert isinstance(write, Write)
        assert [batch.first_offset for batch in write.batches] == [self.RUNS - 1]
        assert list(steps) == []
        assert leader.partition.acquired == 1

    def test_a_state_is_loaded_in_steps(self) -> None:
        leader = self.leader()
        leader.acknowledge_all(*self.batches(RELEASE, REJECT))
        state = SharePartitionState(1, 1, 0, 0, leader.writes[0].batches)
        settings = leader.partition.settings
        steps = SharePartition.in_steps(settings, state)
        assert next(steps) == SPANS_PER_STEP
        with pytest.raises(StopIteration) as done:
            next(steps)
        loaded = done.value.value
        assert loaded.view(1_000) == SharePartition(settings, state).view(1_000)
        assert loaded.ranges == self.RUNS

    def test_types_of_one_batch_are_runs_too(self) -> None:
        leader = self.leader()
        types = [ACCEPT, REJECT] * (self.RUNS // 2)
        steps = leader.partition.acknowledge_in_steps("a", [AcknowledgementBatch(0, self.RUNS - 1, types)], 0)
        assert next(steps) == RUNS_PER_STEP

    @pytest.mark.parametrize("kind", [ACCEPT, RENEW])
    def test_if_a_lock_ends_between_two_steps_nothing_has_changed(self, kind: int) -> None:
        leader = self.leader()
        steps = leader.partition.acknowledge_in_steps("a", self.batches(kind, RELEASE), 0)
        next(steps)
        assert leader.acknowledge(0, 0, ACCEPT) is (NONE if kind == RENEW else INVALID_RECORD_STATE)
        leader.wait(LOCK_MS)
        assert self.end_of(steps) == Acknowledgement(INVALID_RECORD_STATE)
        leader.wait(0)
        assert leader.partition.next_fetch_offset() == (1 if kind == RENEW else 0)
        assert leader.partition.view(1).acquired == 0

    def test_a_late_error_takes_back_what_the_first_steps_took(self) -> None:
        leader = self.leader()
        unknown = [*self.batches(ACCEPT)[:-1], AcknowledgementBatch(self.RUNS - 1, self.RUNS - 1, (9,))]
        assert leader.acknowledge_all(*unknown) is INVALID_REQUEST
        assert leader.acknowledge_all(*self.batches(ACCEPT)) is NONE
        assert leader.partition.start_offset == self.RUNS


class TestUntilItIsWritten:
    def test_what_waits_is_neither_acquired_nor_acknowledged_again(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(0, 4, RELEASE)
        assert leader.partition.next_fetch_offset() == 10
        assert leader.fetch(0, 9, member="b", at=0) == []
        assert leader.acknowledge(4, 4, ACCEPT) is INVALID_RECORD_STATE
        assert leader.acknowledge(4, 4, RENEW) is INVALID_RECORD_STATE
        leader.leave()
        assert leader.writes[-1].batches == (StateBatch(5, 9, AVAILABLE, 1),)
        leader.wait(LOCK_MS)
        assert len(leader.writes) == 2
        leader.written(leader.writes[0].change)
        assert leader.partition.next_fetch_offset() == 0
        leader.written(leader.writes[1].change)
        assert leader.state == "0-9:available×1"

    def test_a_write_that_failed_leaves_records_with_the_member(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(0, 3, ACCEPT, RELEASE, REJECT, GAP)
        leader.acknowledge(4, 6, ACCEPT)
        assert leader.writes[-1].delivery_complete_count == 6
        leader.written(1, ok=False)
        leader.written(2)
        assert leader.dead == []
        assert leader.state == "0-3:acquired×1@a 4-6:acknowledged×1 7-9:acquired×1@a"
        assert leader.partition.view(0).delivery_complete_count == 3
        assert leader.acknowledge(0, 3, ACCEPT) is NONE

    def test_a_lock_that_ended_meanwhile_ends_after_a_write_that_failed(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(0, 3, ACCEPT)
        leader.wait(LOCK_MS)
        assert leader.state == "0-3:acquired×1@a 4-9:available×1"
        leader.written(1, ok=False)
        assert leader.partition.next_deadline_ms() == LOCK_MS
        leader.wait(0)
        assert leader.state == "0-9:available×1"

    def test_the_start_waits(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(0, 4, ACCEPT)
        leader.acknowledge(5, 9, ACCEPT)
        leader.written(2)
        assert leader.partition.start_offset == 0
        leader.written(1)
        assert leader.partition.start_offset == 10


class TestWhatCannotBeRead:
    def test_it_is_archived_and_not_delivered(self) -> None:
        leader = Leader()
        acquired = leader.fetch(0, 9, 10, 19, 20, 20, 21, 24, unreadable=(3, 4, 8, 11, 20, 20))
        assert acquired == [(0, 2, 1), (5, 7, 1), (12, 19, 1), (21, 24, 1)]
        assert leader.writes == []  # the next write takes it along
        leader.acknowledge(0, 0, ACCEPT)
        assert leader.writes[-1].batches == (
            StateBatch(0, 0, ACKNOWLEDGED, 1),
            StateBatch(3, 4, ARCHIVED, 0),
            StateBatch(8, 11, ARCHIVED, 0),
            StateBatch(20, 20, ARCHIVED, 0),
        )
        assert leader.writes[-1].delivery_complete_count == 8
        leader.acknowledge(1, 1, ACCEPT)
        assert leader.writes[-1].batches == (StateBatch(1, 1, ACKNOWLEDGED, 1),)

    def test_where_there_is_nothing_else_the_start_passes_it(self) -> None:
        leader = Leader()
        assert leader.fetch(0, 9, unreadable=(0, 9)) == []
        assert leader.partition.start_offset == leader.partition.next_fetch_offset() == 10
        assert [(one.start_offset, one.batches) for one in leader.writes] == [(10, ())]

    def test_the_log_has_no_records_between_batches(self) -> None:
        leader = Leader()
        leader.fetch(0, 4)
        assert leader.fetch(50, 54) == [(50, 54, 1)]
        assert leader.state == "0-4:acquired×1@a 5-49:archived×0 50-54:acquired×1@a"
        leader.acknowledge(0, 4, ACCEPT)
        assert leader.partition.start_offset == 50

    def test_a_count_that_no_field_holds_is_the_highest_that_one_holds(self) -> None:
        leader = Leader()
        leader.fetch(0, 4)
        leader.fetch(2**40, 2**40)
        leader.acknowledge(4, 4, ACCEPT)
        assert leader.writes[-1].delivery_complete_count == 2**31 - 1

    def test_the_log_has_lost_what_was_released(self) -> None:
        leader = Leader()
        leader.fetch(0, 4, 5, 9)
        leader.acknowledge(1, 9, RELEASE)
        assert leader.fetch(7, 9) == [(7, 9, 2)]
        assert leader.state == "0-0:acquired×1@a 1-6:archived×1 7-9:acquired×2@a"

    def test_a_gap_within_the_limit_counts(self) -> None:
        leader = Leader()
        assert leader.fetch(0, 0, 100, 109, limit=10) == [(0, 9, 1)]

    def test_the_log_start_takes_records_away(self) -> None:
        leader = Leader()
        leader.fetch(0, 9)
        leader.slow = True
        leader.acknowledge(2, 5, ACCEPT)
        leader.partition.on_log_start_moved(4)
        assert leader.partition.start_offset == 4
        assert leader.partition.view(9).delivery_complete_count == 2
        leader.written(1)
        assert leader.state == "6-9:acquired×1@a"
        leader.partition.on_log_start_moved(5)
        assert leader.partition.start_offset == 6
        leader.partition.on_log_start_moved(20)
        assert (leader.partition.start_offset, leader.partition.next_fetch_offset()) == (20, 20)
        assert leader.partition.next_deadline_ms() is None
        assert leader.acknowledge(6, 9, ACCEPT) is NONE
        assert leader.fetch(20, 24) == [(20, 24, 1)]


class TestANewLeader:
    def test_it_takes_what_was_written(self) -> None:
        leader = Leader(
            StateBatch(2, 3, ACKNOWLEDGED, 1),
            StateBatch(6, 7, AVAILABLE, 2),
            StateBatch(8, 9, ARCHIVED, 1),
        )
        assert leader.state == (
            "0-1:available×0 2-3:acknowledged×1 4-5:available×0 6-7:available×2 8-9:archived×1"
        )
        assert leader.partition.next_fetch_offset() == 0
        acquired = leader.fetch(0, 4, 5, 9, 10, 14, 15, 19, limit=8)
        assert acquired == [(0, 1, 1), (4, 5, 1), (6, 7, 3), (10, 14, 1)]

    def test_a_long_gap_in_the_state_is_read_like_new_records(self) -> None:
        leader = Leader(StateBatch(50, 54, ACKNOWLEDGED, 1))
        assert leader.fetch(0, 4, 5, 9, 10, 54, limit=7) == [(0, 9, 1)]
        assert leader.fetch(0, 4, 5, 9, 10, 54, limit=7) == [(10, 49, 1)]

    def test_the_start_passes_what_is_done(self) -> None:
        leader = Leader(StateBatch(5, 7, ARCHIVED, 1), StateBatch(8, 8, ACKNOWLEDGED, 1), start=5)
        assert (leader.partition.start_offset, leader.partition.end_offset) == (9, 9)

    def test_it_needs_a_start_offset_and_batches_in_order(self) -> None:
        with pytest.raises(InvariantBroken):
            Leader(start=NO_START_OFFSET)
        with pytest.raises(InvariantBroken):
            Leader(StateBatch(3, 5, AVAILABLE, 1), start=4)
        with pytest.raises(InvariantBroken):
            Leader(StateBatch(0, 5, AVAILABLE, 1), StateBatch(5, 6, AVAILABLE, 1))


def test_observers_see_what_is_held_by_which_member() -> None:
    leader = Leader()
    leader.fetch(0, 4)
    leader.fetch(5, 9, member="b")
    leader.fetch(10, 12, member="c")
    leader.acknowledge(1, 3, ACCEPT, REJECT, RELEASE)
    view = leader.partition.view(2)
    assert (view.start_offset, view.end_offset) == (0, 13)
    assert (view.acquired, view.available, view.acknowledged, view.archived) == (10, 1, 1, 1)
    assert view.held == (("a", 2), ("b", 5))
    assert [(span.first_offset, span.lock_ends_ms) for span in view.spans] == [(0, LOCK_MS), (1, None)]
