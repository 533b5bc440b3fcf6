"""Placement: apart, across racks, leaders spread, and the same for the same numbers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.cluster.placement import CannotPlace, UsableBroker, interleave_racks, place_replicas
from nilometer.identifiers import BrokerId


def brokers(count: int, racks: int = 0) -> list[UsableBroker]:
    return [
        UsableBroker(BrokerId(broker), f"rack-{broker % racks}" if racks else None) for broker in range(count)
    ]


def test_the_pattern_of_five_brokers() -> None:
    placed = place_replicas(brokers(5), partitions=10, replication_factor=3, start=0, shift=0)
    assert placed == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("factor", [0, -1])
def test_a_partition_has_a_replica(factor: int) -> None:
    with pytest.raises(CannotPlace, match="must be positive"):
        place_replicas(brokers(3), partitions=1, replication_factor=factor, start=0, shift=0)


def test_partitions_added_later_go_on_with_the_pattern() -> None:
    whole = place_replicas(brokers(5), partitions=10, replication_factor=3, start=2, shift=1)
    later = place_replicas(
        brokers(5), partitions=4, replication_factor=3, start=2, shift=1, first_partition=6
    )
    assert whole[6:] == later


def test_racks_take_turns() -> None:
    mixed = [
        UsableBroker(BrokerId(0), "a"),
        UsableBroker(BrokerId(1), "a"),
        UsableBroker(BrokerId(2), "b"),
        UsableBroker(BrokerId(3), None),
        UsableBroker(BrokerId(4), "a"),
    ]
    assert [broker.id for broker in interleave_racks(mixed)] == [0, 2, 3, 1, 4]


@given(
    count=st.integers(1, 12),
    racks=st.integers(0, 5),
    dead=st.sets(st.integers(0, 11)),
    partitions=st.integers(1, 40),
    factor=st.integers(1, 6),
    start=st.integers(0, 50),
    shift=st.integers(0, 50),
)
def test_what_every_placement_keeps(
    count: int, racks: int, dead: set[int], partitions: int, factor: int, start: int, shift: int
) -> None:
    usable = [UsableBroker(b.id, b.rack, b.id not in dead) for b in brokers(count, racks)]
    live = {broker.id for broker in usable if broker.live}

    def place() -> list[tuple[BrokerId, ...]]:
        return place_replicas(
            usable, partitions=partitions, replication_factor=factor, start=start, shift=shift
        )

    if not live or factor > count:
        with pytest.raises(CannotPlace):
            place()
        return
    placed = place()
    assert placed == place()
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert replicas[0] in live
        assert len(live.intersection(replicas)) == min(factor, len(live))
        if racks and live == {broker.id for broker in usable}:
            used = {usable[replica].rack for replica in replicas}
            assert len(used) == min(factor, len({broker.rack for broker in usable}))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in live) <= 1


@pytest.mark.parametrize("racks", [0, 3])
def test_the_followers_of_one_leader_are_spread(racks: int) -> None:
    placed = place_replicas(brokers(9, racks), partitions=9 * 8, replication_factor=3, start=4, shift=2)
    followers = Counter(replica for replicas in placed if replicas[0] == 0 for replica in replicas[1:])
    assert len(followers) >= (8 if not racks else 6)
