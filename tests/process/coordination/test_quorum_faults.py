"""A metadata quorum whose voters are killed, cut off, paused, and lose power: what members were told holds.

A failing seed is played again by ``pytest tests/process/coordination/test_quorum_faults.py -k 'seed-N'``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import combinations

import pytest

from nilometer.coordination.quorum import node, sessions, store
from nilometer.coordination.quorum.commands import Append, Command, End, Outcome, encode
from nilometer.coordination.quorum.peers import PeerUnavailable, Proposal
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import (
    CoordinationError,
    Entry,
    OutcomeUnknown,
    SessionName,
    StoreUnavailable,
)
from nilometer.invariants import InvariantBroken
from nilometer.raft.leading import Leading
from nilometer.simulation.world import Process
from support.coordination.quorum_cluster import VOTERS, QuorumCluster
from support.eventually import becomes

FAULTS_S = 10.0
MEMBERS = (1, 2, 3)


class Course:
    """One run: what the members were told, and what contradicts it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = QuorumCluster(seed)
        self.cluster.on_applied = self._on_applied
        self.told: dict[int, bytes] = {}
        """Entries that were acknowledged, by number."""
        self.refused: set[bytes] = set()
        self.ended: set[SessionName] = set()
        self.problems: list[str] = []
        self.writers: list[asyncio.Task[None]] = []
        self.is_over = False
        self.voters: dict[int, Process] = {}
        self.lost = 0

    def _on_applied(self, _offset: int, command: Command, outcome: Outcome) -> None:
        if isinstance(command, End) and outcome is Outcome.DONE:
            self.ended.add(command.session)
            self._look_at_sessions()

    def _look_at_sessions(self) -> None:
        for each in self.cluster.stores:
            session = each._session
            if each._opened and session is not None and session.name in self.ended and session.is_live():
                self.problems.append(f"session {session.name} is ended, and its owner acts")

    async def watch(self) -> None:
        while True:
            self._look_at_sessions()
            await asyncio.sleep(0.02)

    async def run(self, _cluster: QuorumCluster) -> None:
        cluster = self.cluster
        self.voters = {voter: cluster.processes[voter] for voter in VOTERS}
        watching = asyncio.ensure_future(self.watch())
        members = [await cluster.start(broker_id) for broker_id in MEMBERS]
        for member, opened, broker_id in zip(members, cluster.stores, MEMBERS, strict=True):
            cluster.world.loop.in_process(0.0, member.process, self._begin_to_write, opened, broker_id)
        until = cluster.world.loop.time() + FAULTS_S
        while cluster.world.loop.time() < until:
            await asyncio.sleep(self.chance.uniform(0.05, 1.5))
            await self._fault()
            if not self.chance.randrange(4):
                member = self.chance.choice(members)
                member.stop()
                await asyncio.sleep(self.chance.uniform(0.1, 3))
                member.go_on()
        await self._heal()
        await asyncio.sleep(5)
        self.is_over = True
        await asyncio.gather(*self.writers)
        await self._check()
        watching.cancel()
        for member in members:
            await member.call("close")

    def _begin_to_write(self, opened: QuorumStore, broker_id: int) -> None:
        """In the member's process, so that it is paused with it."""
        self.writers.append(self.cluster.world.loop.create_task(self._write(opened, broker_id)))

    async def _write(self, opened: QuorumStore, broker_id: int) -> None:
        count = 0
        while not self.is_over:
            await asyncio.sleep(self.chance.uniform(0.02, 0.12))
            session = opened._session
            if session is not None and session.lost:
                self.lost += 1
                with suppress(CoordinationError):
                    await opened.register(broker_id, b"again")
                continue
            count += 1
            data = f"{broker_id}-{count}".encode()
            number = opened._node.state.next_number
            try:
                if await opened.append(number, data):
                    self._note(number, data)
                else:
                    self.refused.add(data)
                if not count % 40:
                    await opened.write_snapshot(number, f"all below {number}".encode())
            except OutcomeUnknown:
                pass
            except CoordinationError:
                self.refused.add(data)

    def _note(self, number: int, data: bytes) -> None:
        if number in self.told:
            self.problems.append(f"entry {number} was given to {self.told[number]!r} and {data!r}")
        self.told[number] = data

    # --- faults

    async def _fault(self) -> None:
        voter = self.chance.choice(VOTERS)
        kind = self.chance.randrange(5)
        if kind == 0:
            self.voters[voter].crash()
            await self._restart(voter)
        elif kind == 1:
            host = self.cluster.hosts[voter]
            host.power_off()
            await asyncio.sleep(self.chance.uniform(0, 2))
            host.power_on()
            await self._restart(voter)
        elif kind == 2:
            self.voters[voter].pause()
            await asyncio.sleep(self.chance.uniform(0.1, 3))
            self.voters[voter].resume()
        elif kind == 3:
            nodes = [*VOTERS, *MEMBERS]
            self.cluster.wire.cut |= {
                frozenset(pair) for pair in combinations(nodes, 2) if not self.chance.randrange(4)
            }
            await asyncio.sleep(self.chance.uniform(0.1, 3))
        else:
            self.cluster.wire.cut.clear()

    async def _restart(self, voter: int) -> None:
        await asyncio.sleep(self.chance.uniform(0, 1))
        self.voters[voter] = await self.cluster.start_voter(voter)

    async def _heal(self) -> None:
        self.cluster.wire.cut.clear()

    # --- what holds

    async def _check(self) -> None:
        states = []
        for opened in self.cluster.stores:
            await opened.sync()
            states.append(opened._node.state)
        states += [each.state for process, each in self.cluster.wire.nodes.values() if process.alive]
        end = max(state.next_number for state in states)
        await asyncio.sleep(1)
        assert {state.to_bytes() for state in states} == {states[0].to_bytes()}, "all have the same state"
        found = {one.number: one.data for one in self._entries(states[0].first_number)}
        for number, data in self.told.items():
            if number >= states[0].first_number and found.get(number) != data:
                self.problems.append(f"entry {number} was {data!r}, and is {found.get(number)!r}")
            if number >= end:
                self.problems.append(f"entry {number} was acknowledged, and is lost")
        self.problems += [
            f"{data!r} was refused, and is there" for data in self.refused & set(found.values())
        ]

    def _entries(self, first: int) -> list[Entry]:
        return self.cluster.stores[0]._node.state.entries(first, 1_000_000, 1 << 30)


def play(seed: int) -> Course:
    course = Course(seed)
    course.cluster.run(course.run)
    return course


@pytest.fixture(autouse=True)
def many_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "SNAPSHOT_BYTES", 4_000)
    monkeypatch.setattr(node, "VALUE_BYTES", 1_000)
    monkeypatch.setattr(node, "FETCH_BYTES_MAX", 5_000)


@pytest.mark.parametrize("seed", range(2), ids="seed-{}".format)
def test_what_members_were_told_holds(seed: int) -> None:
    course = play(seed)
    assert course.problems == []
    assert len(course.told) > 50, "the quorum takes entries between the faults"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_200), ids="seed-{}".format)
def test_what_members_were_told_holds_through_many_faults(seed: int) -> None:
    assert play(seed).problems == []


# --- planted faults: each is found within a few seeds


def _lease_from_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner counts its lease from when the answer came."""
    monkeypatch.setattr(
        store.QuorumSession,
        "lease",
        property(lambda _self: _LateLease(), lambda _self, _lease: None),
        raising=False,
    )


class _LateLease:
    """A lease that a paused owner still believes in."""

    def is_live(self, _now_ms: int) -> bool:
        return True

    def on_renewed(self, _sent_ms: int) -> None: ...


def _renewals_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader answers a renewal though it may have been deposed."""

    async def renew(self: sessions.SessionKeeper, name: object) -> bool:
        book = self._book
        return book is not None and book.renew(name, self._clock.monotonic_ms())  # type: ignore[arg-type]

    monkeypatch.setattr(sessions.SessionKeeper, "renew", renew)


def _short_first_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader ends sessions sooner than one time-out after its election."""
    init = sessions.SessionBook.__init__

    def early(self: sessions.SessionBook, timeout_ms: int, live: object, elected_ms: int) -> None:
        init(self, timeout_ms, live, elected_ms - timeout_ms * 9 // 10)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions.SessionBook, "__init__", early)


def _outcome_of_another_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposer takes the outcome of what another leader has put at its offset."""

    class Equal(int):
        def __eq__(self, _other: object) -> bool:
            return True

        __hash__ = int.__hash__

    wait = node._Waiting
    monkeypatch.setattr(node, "_Waiting", lambda epoch, future: wait(Equal(epoch), future))


@pytest.mark.parametrize("plant", [_lease_from_the_response, _short_first_time_out])
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(12):
        try:
            if play(seed).problems:
                return
        except (AssertionError, InvariantBroken):
            return
    raise AssertionError("it is not found")


def _outcome_of_a_replaced_append() -> bool:
    """Return what a member is told of its second append to a leader that is deposed before it is committed;
    the next leader has another member's append at that offset."""
    cluster = QuorumCluster(3, session_timeout_ms=6_000)
    outcomes: list[bool] = []

    async def scenario(_cluster: QuorumCluster) -> None:
        first, second = [await cluster.start(broker_id) for broker_id in (1, 2)]
        entry = cluster.stores[0]._node.leader()
        assert entry is not None
        leader = entry.key.node_id
        others = [*(voter for voter in VOTERS if voter != leader), 2]
        cluster.wire.cut |= {frozenset((node_id, other)) for node_id in (1, leader) for other in others}
        waiting = [first.start("append", 0, "first-0")]
        await asyncio.sleep(0.05)  # so that the second one is behind it in the log
        waiting.append(first.start("append", 1, "first-1"))
        node = cluster.stores[1]._node
        await becomes(lambda: node.leader() not in (None, entry), "another leader is elected")
        for number in range(3):
            assert await second.call("append", number, f"second-{number}")
        cluster.wire.cut.clear()
        outcomes.extend([await one for one in waiting])

    cluster.run(scenario)
    assert not outcomes[0]
    return outcomes[1]


def test_who_proposed_to_a_deposed_leader_does_not_take_the_outcome_of_another_command() -> None:
    assert _outcome_of_a_replaced_append() is False


def test_that_it_is_planted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    _outcome_of_another_command(monkeypatch)
    assert _outcome_of_a_replaced_append() is True


# --- a leader that others have deposed


async def _leader_is_cut_off(course: Course, cluster: QuorumCluster) -> None:
    """A member reaches only the leader, which no other voter reaches, and which does not notice that."""
    await cluster.start(1)
    [opened] = cluster.stores
    entry = opened._node.leader()
    assert entry is not None
    leader = entry.key.node_id
    others = [voter for voter in VOTERS if voter != leader]
    cluster.wire.cut |= {frozenset((node_id, voter)) for node_id in (1, leader) for voter in others}
    watching = asyncio.ensure_future(course.watch())
    await becomes(lambda: bool(course.ended), "its session is ended")
    await asyncio.sleep(2)
    watching.cancel()


@pytest.fixture
def late_check_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leading, "resigns_at_ms", lambda _self, _voters, now: now.ms + 60_000)


@pytest.mark.usefixtures("late_check_quorum")
def test_a_deposed_leader_renews_no_session() -> None:
    course = Course(7)
    course.cluster.run(partial(_leader_is_cut_off, course))
    assert (len(course.ended), course.problems) == (1, [])


@pytest.mark.usefixtures("late_check_quorum")
def test_renewals_without_a_majority_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _renewals_unconfirmed(monkeypatch)
    course = Course(7)
    course.cluster.run(partial(_leader_is_cut_off, course))
    assert course.problems


# --- what was not sent


async def _a_proposal_to_a_leader_that_was_killed(cluster: QuorumCluster) -> None:
    await cluster.start(1)
    [asking] = [each._node for each in cluster.stores]
    [(process, leader)] = [each for each in cluster.wire.nodes.values() if each[1].leads]
    await becomes(lambda: asking.leader() is not None, "the member knows the leader")
    process.crash()
    with pytest.raises(StoreUnavailable, match="is not reached"):
        await asking.propose(Append(None, 0, b"x"))
    assert asking.epoch == leader.epoch


def test_a_proposal_that_the_leaders_machine_refuses_is_certainly_not_in_the_log() -> None:
    QuorumCluster(7).run(_a_proposal_to_a_leader_that_was_killed)


# --- what no node can apply


async def _a_command_of_a_newer_version(cluster: QuorumCluster) -> None:
    member = await cluster.start(1)
    [leader] = [each for _, each in cluster.wire.nodes.values() if each.leads]
    with pytest.raises(PeerUnavailable, match="of a newer version"):
        await leader.serve(Proposal(b"\xc1"))
    assert await member.call("append", 0, "x") is True
    await leader._append(b"\xc1")  # as by a leader of that version
    await becomes(lambda: leader.failure is not None, "the node stops")
    assert f"at offset {leader.applied}" in str(leader.failure)
    with pytest.raises(PeerUnavailable, match="of a newer version"):
        await leader.serve(Proposal(encode(Append(None, 1, b"y"))))
    assert not leader.leads


def test_a_node_stops_at_a_command_that_it_cannot_read_and_appends_none() -> None:
    QuorumCluster(7).run(_a_command_of_a_newer_version)
