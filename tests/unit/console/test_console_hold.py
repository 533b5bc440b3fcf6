"""Why a high watermark is held: each reason of the leader, explained with what is known of the replicas."""

from __future__ import annotations

import pytest

from nilometer.console.views.hold import Hold, why_held
from nilometer.identifiers import NO_LEADER
from nilometer.wire.own_apis import HighWatermarkHoldState
from support.console.replica_states import Partition


def held(partition: Partition, leader: int | None = None) -> Hold:
    return why_held(partition.survey().rows, partition.leader if leader is None else leader)


def test_nothing_is_held_when_all_is_committed() -> None:
    found = held(Partition())
    assert (found.is_held, found.summary) == (False, "Not held: every record is on all in-sync replicas.")
    empty = held(Partition(ends={1: 0, 2: 0, 3: 0}, high_watermark=0))
    assert (empty.is_held, empty.summary) == (False, "Not held: the log is empty.")


def test_it_warns_that_the_next_record_will_be_held() -> None:
    found = held(Partition(isr=(1,)))
    assert not found.is_held
    assert "only 1 of 2 needed replicas are in sync" in found.summary


def test_it_names_the_replica_that_lacks_the_next_record() -> None:
    waiting = HighWatermarkHoldState(reason="waiting-for-replicas", text="waiting for 3", replicas=(3,))
    found = held(Partition(ends={1: 10, 2: 10, 3: 7}, high_watermark=7, hold=waiting))
    assert found.summary == "Held at 7: Broker 3 lacks the record with this offset."
    assert found.replicas == (3,)
    assert found.details == (
        "Broker 3 lacks 3 records, from offset 7, last caught up 1.5 s ago.",
        "Broker 3 must catch up, or leaves the ISR after replica.lag.time.max.ms.",
    )


def test_a_replica_that_is_away_is_described_by_what_the_leader_knows() -> None:
    waiting = HighWatermarkHoldState(reason="waiting-for-replicas", text="waiting for 2, 3", replicas=(2, 3))
    found = held(Partition(ends={1: 10, 2: None, 3: 9}, high_watermark=8, remote={2: 8, 3: 9}, hold=waiting))
    assert found.summary == "Held at 8: Brokers 2 and 3 lack the record with this offset."
    assert found.details[0] == (
        "Broker 2 does not describe it (no response from it within 2000 ms); "
        "the leader knows its log end offset as 8."
    )
    assert found.details[1] == "Broker 3 lacks 1 record, from offset 9, last caught up 1.5 s ago."


def test_a_replica_outside_the_isr_can_hold_it() -> None:
    waiting = HighWatermarkHoldState(reason="waiting-for-replicas", text="waiting for 3", replicas=(3,))
    found = held(Partition(ends={1: 10, 2: 10, 3: 9}, high_watermark=9, isr=(1, 2), hold=waiting))
    assert "Broker 3 is not in the ISR yet" in found.details[1]
    assert not any("leaves the ISR" in line for line in found.details)


def test_too_few_in_sync() -> None:
    under = HighWatermarkHoldState(reason="under-min-isr", text="under min ISR (1 of 2)")
    found = held(
        Partition(ends={1: 12, 2: None, 3: None}, high_watermark=10, isr=(1,), remote={2: 10}, hold=under)
    )
    assert found.details[1] == "Broker 3 does not describe it (no response from it within 2000 ms)."
    assert found.summary.startswith("Held at 10: 1 of 2 replicas that min.insync.replicas needs")
    assert found.replicas == (2, 3)
    assert found.details[-1].startswith("2 records above it can be read once")


def test_records_that_are_not_flushed() -> None:
    flush = HighWatermarkHoldState(reason="waiting-for-flush", text="waiting for flush")
    found = held(Partition(high_watermark=8, flushed=8, hold=flush))
    assert found.summary.endswith("the leader has flushed up to 8.")


def test_no_leader_and_a_leader_that_does_not_answer() -> None:
    leaderless = held(Partition(ends={1: None, 2: 10, 3: 10}), NO_LEADER)
    assert (leaderless.reason, leaderless.is_held, leaderless.replicas) == ("no-leader", True, (1,))
    assert leaderless.details == ("Broker 1: no response from it within 2000 ms.",)
    silent = held(Partition(ends={1: None, 2: 10, 3: 10}))
    assert (silent.reason, silent.replicas) == ("leader-unreachable", (1,))
    elected = held(Partition(), 2)
    assert elected.summary == "Broker 2 was elected leader and has not taken the role yet."


@pytest.mark.parametrize("reason", ["later-version"])
def test_a_reason_of_a_later_version_is_shown_as_it_is(reason: str) -> None:
    found = held(Partition(high_watermark=8, hold=HighWatermarkHoldState(reason=reason, text="the moon")))
    assert (found.is_held, found.summary) == (True, "The leader reports: the moon.")
