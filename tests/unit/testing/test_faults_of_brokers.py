"""What each broker gets of all faults that a test has injected."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nilometer.testing.faults import CLIENTS, BrokerFaults, Faults


class Brokers:
    """Takes the faults of three brokers."""

    def __init__(self) -> None:
        self.has = {broker: BrokerFaults() for broker in (1, 2, 3)}
        self.resets: list[tuple[int, int]] = []
        self.is_down = False

    def send(self, broker: int, faults: BrokerFaults, reset: Sequence[int]) -> None:
        if self.is_down:
            raise OSError
        self.has[broker] = faults
        self.resets += [(broker, other) for other in reset]


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def faults(brokers: Brokers) -> Faults:
    return Faults((1, 2, 3), brokers.send)


def test_both_ends_of_a_link_have_its_fault(brokers: Brokers, faults: Faults) -> None:
    cut, one_way = faults.cut(1, 2), faults.cut_one_way(2, 3)
    slow = faults.slow(3, 1, 50)
    assert brokers.has == {
        1: BrokerFaults(cut_to=(2,), cut_from=(2,), slow_ms={3: 50}),
        2: BrokerFaults(cut_to=(1, 3), cut_from=(1,)),
        3: BrokerFaults(cut_from=(2,), slow_ms={1: 50}),
    }
    for fault in (cut, one_way, slow, slow):
        fault.end()
    assert set(map(repr, brokers.has.values())) == {repr(BrokerFaults())}


def test_faults_overlap_and_end_each_by_itself(brokers: Brokers, faults: Faults) -> None:
    with faults.isolate(1), faults.cut(1, 2), faults.slow(1, CLIENTS, 5), faults.slow(1, CLIENTS, 7):
        one = brokers.has[1]
        assert (one.cut_to, one.cut_from, one.slow_ms) == ((0, 2, 3), (0, 2, 3), {0: 12})
    with faults.clock(1, 100), faults.clock(1, -30), faults.stall(1, 5), faults.stall(1):
        assert (brokers.has[1].clock_ms, brokers.has[1].stall_ms, brokers.has[1].is_stalled) == (70, 5, True)
        with faults.disk_error(1), faults.disk_full(1), faults.store(1):
            assert faults.without_store == {1}
            assert brokers.has[1].disk_error and brokers.has[1].disk_full and brokers.has[1].store
        assert not (brokers.has[1].disk_error or brokers.has[1].disk_full or brokers.has[1].store)
    assert brokers.has[1] == BrokerFaults()
    faults.isolate(2)
    faults.disk_full(3)
    faults.heal()
    assert [*brokers.has.values()] == [BrokerFaults()] * 3


def test_a_reset_is_told_once_to_the_brokers_of_the_link(brokers: Brokers, faults: Faults) -> None:
    faults.reset(1, 2)
    faults.reset(3, CLIENTS)
    assert brokers.resets == [(1, 2), (2, 1), (3, CLIENTS)]


def test_a_fault_that_a_broker_did_not_take_has_not_begun(brokers: Brokers, faults: Faults) -> None:
    brokers.is_down = True
    with pytest.raises(OSError):
        faults.clock(1, 5)
    brokers.is_down = False
    faults.stall(1, 1)
    assert brokers.has[1] == BrokerFaults(stall_ms=1)
