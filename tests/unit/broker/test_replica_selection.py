"""KIP-392: consumers are sent to the in-sync replica in their own rack."""

from __future__ import annotations

from nilometer.broker.replicas.replica_manager import preferred_read_replica
from nilometer.replication.leader import LeaderRole
from nilometer.replication.shell_interface import FollowerFetch, Registration

RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}


class EmptyLog:
    log_start_offset = 0
    log_end_offset = 0
    latest_epoch = -1

    def end_offset_for_epoch(self, epoch):
        return (epoch, self.log_end_offset)


def leader(isr=(1, 2, 3)) -> LeaderRole:
    """Broker 1 leads with ten records; 2 has eight of them, 3 all, 4 (never in sync) none."""
    registration = Registration(replicas=(1, 2, 3, 4), isr=isr, leader=1, leader_epoch=1)
    log = EmptyLog()
    eligible = {1: 1, 2: 2, 3: 3, 4: 4}
    role = LeaderRole(
        registration, log, broker_id=1, broker_epoch=1, high_watermark=0, eligible=eligible, now_ms=0
    )
    role.start(0)
    log.log_end_offset, log.latest_epoch = 10, 1
    role.on_appended(10, 0)
    for broker, offset in ((2, 8), (3, 10)):
        role.on_follower_fetch(FollowerFetch(broker, eligible[broker], 1, offset, 1, 0), 0)
    return role


def test_the_one_with_most_records_in_the_consumers_rack():
    assert preferred_read_replica(leader(), "b", 5, RACKS) == 3


def test_the_leader_serves_its_own_rack_and_those_who_do_not_say():
    assert preferred_read_replica(leader(), "a", 5, RACKS) is None
    assert preferred_read_replica(leader(), "", 5, RACKS) is None


def test_a_replica_that_is_not_in_sync_or_not_alive_is_not_named():
    assert preferred_read_replica(leader(), "c", 5, RACKS) is None
    assert preferred_read_replica(leader(isr=(1, 2)), "b", 5, RACKS) == 2
    assert preferred_read_replica(leader(), "b", 5, {1: "a", 2: "b"}) == 2


def test_a_replica_that_does_not_have_the_offset_is_not_named():
    assert preferred_read_replica(leader(isr=(1, 2)), "b", 9, RACKS) is None
