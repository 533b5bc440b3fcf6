"""Plans of reassignments: even, over racks, and moving as little as that takes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.cluster.placement import CannotPlace, UsableBroker, plan_reassignment
from nilometer.cluster.records import Replicas
from nilometer.identifiers import BrokerId
from support.properties import examples


def brokers(*ids: int, racks: str = "") -> list[UsableBroker]:
    return [UsableBroker(BrokerId(broker), racks[at] if racks else None) for at, broker in enumerate(ids)]


def replicas(*ids: int) -> Replicas:
    return tuple(BrokerId(one) for one in ids)


def planned(
    before: dict[int, Replicas], usable: list[UsableBroker], factor: int | None = None
) -> dict[int, Replicas]:
    after = dict(before)
    after.update((move.partition, move.after) for move in plan_reassignment({"t": before}, usable, factor))
    return after


def copies(before: dict[int, Replicas], after: dict[int, Replicas]) -> int:
    return sum(len(set(after[partition]) - set(before[partition])) for partition in before)


def loads(assignment: dict[int, Replicas], usable: list[UsableBroker]) -> list[int]:
    counts = Counter(broker for each in assignment.values() for broker in each)
    return [counts[broker.id] for broker in usable]


def test_what_is_well_placed_stays() -> None:
    before = {0: replicas(1, 2), 1: replicas(2, 3), 2: replicas(3, 1)}
    assert plan_reassignment({"t": before}, brokers(1, 2, 3)) == []


def test_a_new_broker_takes_its_share_and_no_more() -> None:
    before = {number: replicas(1 + number % 3, 1 + (number + 1) % 3) for number in range(12)}
    usable = brokers(1, 2, 3, 4)
    after = planned(before, usable)
    assert loads(after, usable) == [6, 6, 6, 6]
    assert copies(before, after) == 6


def test_a_broker_that_is_left_out_is_emptied() -> None:
    before = {number: replicas(1 + number % 4, 1 + (number + 1) % 4) for number in range(8)}
    after = planned(before, brokers(1, 2, 3))
    assert 4 not in {broker for each in after.values() for broker in each}
    assert copies(before, after) == sum(4 in each for each in before.values())


def test_loads_are_evened_by_replicas_that_are_copied_in_any_case() -> None:
    """Two replicas leave broker 4, and both could go to 3, which has a replica to give to 2 then."""
    before = {0: replicas(3, 1), 1: replicas(4, 3), 2: replicas(2, 4)}
    after = planned(before, brokers(1, 2, 3))
    assert loads(after, brokers(1, 2, 3)) == [2, 2, 2]
    assert copies(before, after) == 2


def test_leaders_are_spread_by_order_alone() -> None:
    before = {number: replicas(1, 2, 3) for number in range(6)}
    after = planned(before, brokers(1, 2, 3))
    assert Counter(each[0] for each in after.values()) == {1: 2, 2: 2, 3: 2}
    assert copies(before, after) == 0


def test_leaders_are_spread_through_others_where_need_be() -> None:
    """1 leads too much and shares nothing with 3, who leads nothing: 2 passes on what it gets."""
    before = {0: replicas(1, 2), 1: replicas(1, 2), 2: replicas(2, 3)}
    after = planned(before, brokers(1, 2, 3))
    assert Counter(each[0] for each in after.values()) == {1: 1, 2: 1, 3: 1}


def test_replicas_go_to_racks_not_used_yet() -> None:
    before = {0: replicas(1, 2), 1: replicas(3, 4)}
    usable = brokers(1, 2, 3, 4, racks="aabb")
    after = planned(before, usable)
    racks = {broker.id: broker.rack for broker in usable}
    assert all({racks[one] for one in each} == {"a", "b"} for each in after.values())
    assert copies(before, after) == 2


def test_the_replication_factor_grows_and_shrinks() -> None:
    before = {0: replicas(1, 2), 1: replicas(2, 3), 2: replicas(3, 1)}
    grown = planned(before, brokers(1, 2, 3), 3)
    assert all(sorted(each) == [1, 2, 3] for each in grown.values())
    shrunk = planned(grown, brokers(1, 2, 3), 1)
    assert loads(shrunk, brokers(1, 2, 3)) == [1, 1, 1]
    assert copies(grown, shrunk) == 0


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(CannotPlace, match="3 replicas do not fit on 2 brokers"):
        plan_reassignment({"t": {0: replicas(1, 2, 3)}}, brokers(1, 2))
    with pytest.raises(CannotPlace):
        plan_reassignment({"t": {0: replicas(1)}}, [])


@st.composite
def _cases(draw: st.DrawFn) -> tuple[dict[int, Replicas], list[UsableBroker], int]:
    ids = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True))
    rack_of = draw(st.sampled_from(["", "abc"]))
    usable = [UsableBroker(BrokerId(one), rack_of[one % 3] if rack_of else None) for one in sorted(ids)]
    factor = draw(st.integers(1, len(ids)))
    before = draw(
        st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True), min_size=1, max_size=12)
    )
    return {number: replicas(*each) for number, each in enumerate(before)}, usable, factor


@given(_cases())
@examples(150)
def test_every_plan_is_sound_and_final(case: tuple[dict[int, Replicas], list[UsableBroker], int]) -> None:
    before, usable, factor = case
    after = planned(before, usable, factor)
    ids = {broker.id for broker in usable}
    racks = {broker.id: broker.rack for broker in usable}
    for each in after.values():
        assert len(set(each)) == len(each) == factor
        assert set(each) <= ids
        if None not in racks.values():
            assert len({racks[one] for one in each}) == min(factor, len(set(racks.values())))
    leads = Counter(dict.fromkeys(ids, 0))
    leads.update(each[0] for each in after.values())
    if set(racks.values()) == {None}:
        spread = loads(after, usable)
        assert max(spread) - min(spread) <= 1
    assert planned(after, usable, factor) == after
