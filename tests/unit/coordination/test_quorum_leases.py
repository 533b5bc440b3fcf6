"""How long a session is live, as its leader and its owner see it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.coordination.quorum.commands import LiveSession
from nilometer.coordination.quorum.sessions import OwnLease, SessionBook
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import BrokerIdInUse, SessionName
from support.step_clock import StepClock

ONE, TWO = SessionName(1, 10), SessionName(2, 11)
TIMEOUT_MS = 6_000


def test_a_new_leader_ends_no_session_before_one_whole_time_out():
    book = SessionBook(TIMEOUT_MS, [ONE, TWO], elected_ms=1_000)
    assert (book.take_expired(6_999), book.next_end_ms) == ([], 7_000)
    assert book.take_expired(7_000) == [ONE, TWO]
    assert (book.take_expired(8_000), book.next_end_ms) == ([], None)


def test_a_renewal_counts_from_its_arrival():
    book = SessionBook(TIMEOUT_MS, [ONE, TWO], elected_ms=0)
    assert book.renew(ONE, 2_000)
    assert book.renew(ONE, 1_000), "confirmed late"
    assert book.take_expired(7_999) == [TWO], "it was not renewed"
    assert book.take_expired(8_000) == [ONE]


def test_a_session_that_is_being_ended_is_not_renewed():
    book = SessionBook(TIMEOUT_MS, [ONE], elected_ms=0)
    assert book.take_expired(6_000) == [ONE]
    assert not book.renew(ONE, 5_999), "its owner must not be answered"


def test_sessions_begin_and_end_with_the_commands_that_were_applied():
    book = SessionBook(TIMEOUT_MS, [], elected_ms=0)
    assert not book.renew(ONE, 10)
    book.on_registered(ONE, 1_000)
    assert book.next_end_ms == 7_000
    book.on_ended(ONE)
    book.on_ended(TWO)
    assert not book.renew(ONE, 1_100)


def test_an_owner_counts_from_when_it_sent_and_stops_before_the_leader_ends_the_session():
    lease = OwnLease(TIMEOUT_MS, registered_ms=1_000)
    assert lease.is_live(6_399) and not lease.is_live(6_400)
    lease.on_renewed(5_000)
    lease.on_renewed(4_000)  # a late answer
    assert lease.is_live(10_399) and not lease.is_live(10_400)
    book = SessionBook(TIMEOUT_MS, [ONE], elected_ms=0)
    book.renew(ONE, 5_000)  # it arrives at once
    assert book.next_end_ms == 11_000


def test_a_session_that_was_taken_over_is_neither_renewed_nor_ended_again():
    book = SessionBook(TIMEOUT_MS, [ONE, TWO], elected_ms=0)
    again = SessionName(1, 20)
    book.on_registered(again, 1_000)
    assert not book.renew(ONE, 2_000)
    assert book.take_expired(6_500) == [TWO]
    assert book.take_expired(7_000) == [again]


class BusyNode:
    """A node of a quorum in which something changes every millisecond, and another's session goes on."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock
        self.held = LiveSession(7, "another folder", b"", "its token")
        self.state = SimpleNamespace(session_of=lambda _: self.held, cluster_id="c")
        self.epoch, self.failure, self.applied, self.leads = 1, None, 0, False
        self.replica = SimpleNamespace(core=SimpleNamespace(key=SimpleNamespace(directory_id="own")))
        self.proposed = 0

    def listen(self, *_: object) -> None: ...

    async def start(self) -> None: ...

    async def catch_up(self) -> None: ...

    async def propose(self, _: object) -> None:
        self.proposed += 1

    async def wait_change(self, _: int | None = None) -> None:
        self.clock.us += 1_000
        await asyncio.sleep(0)


def test_who_waits_for_the_end_of_a_session_proposes_nothing_meanwhile():
    async def scenario() -> int:
        clock = StepClock()
        node, entropy = (
            BusyNode(clock),
            SimpleNamespace(uuid=lambda: SimpleNamespace(hex="0", bytes=b"0" * 16)),
        )
        runtime = SimpleNamespace(clock=clock, entropy=entropy)
        store = QuorumStore(cast(Any, runtime), cast(Any, node), session_timeout_ms=TIMEOUT_MS)
        await store.open()
        with pytest.raises(BrokerIdInUse):
            await store.register(1, b"")
        assert clock.monotonic_ms() >= 2 * TIMEOUT_MS
        return node.proposed

    assert asyncio.run(scenario()) <= 3
