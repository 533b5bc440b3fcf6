"""Clusters whose store is a metadata quorum of their own brokers; and that its checkers say no.

``nilometer simulate --seed N --minutes M --store quorum`` plays one of the seeds again.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nilometer.cluster.image import ClusterImage
from nilometer.coordination.quorum.commands import Append, AppliedState, Outcome
from nilometer.coordination.quorum.peers import PeerUnavailable, ReadIndex
from nilometer.coordination.store import SessionName
from nilometer.invariants import InvariantBroken
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import QuorumStopped
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.simulation.fault_kinds import FOLDER_KINDS, QUORUM_KINDS, Kind
from nilometer.simulation.plan import QUORUM, QUORUM_SHARE, draw
from nilometer.simulation.quorum import QuorumLedger, SimulatedPeers, serve_peers
from nilometer.simulation.run import run
from nilometer.simulation.workload.membership import MembershipPlan
from nilometer.simulation.workload.metadata_writers import MetadataLedger
from nilometer.simulation.world import World
from nilometer.storage.errors import LogFenced
from support.coordination.quorum_cluster import VOTERS, QuorumCluster
from support.eventually import becomes

MINUTES, FEWER = 0.3, 0.2
NAMED_BY_TESTS = (*range(9), 11, 13, 16, 101, 102)


@pytest.mark.parametrize("seed", [1010, pytest.param(1005, marks=pytest.mark.thorough)])
def test_a_cluster_with_a_quorum_survives_what_it_promises_to_survive(seed: int) -> None:
    verdict = run(draw(seed, FEWER, store=QUORUM))
    assert verdict.findings == [], f"nilometer simulate --seed {seed} --minutes {FEWER} --store quorum"
    assert verdict.workloads["epochs of the metadata quorum"] > 0
    assert verdict.workloads["acknowledged changes of a topic"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kinds", [(Kind.QUORUM_WIPE, Kind.QUORUM_CRASH), (Kind.POWER, Kind.QUORUM_CUT), (Kind.DISK_ERROR,)]
)
def test_a_quorum_survives_these(kinds: tuple[Kind, ...]) -> None:
    plan = replace(draw(3, MINUTES, kinds, QUORUM), one_machine=False)
    verdict = run(plan)
    assert verdict.findings == []
    assert sum(verdict.faults.values()) > 0


@pytest.mark.thorough
def test_a_voter_whose_broker_is_taken_out_goes_on_alone() -> None:
    plan = draw(2, 0.5, [Kind.RESET], QUORUM)
    membership = MembershipPlan(joins_at_s=3.0, leaves_at_s=6.0)
    lines: list[str] = []
    verdict = run(replace(plan, brokers=3, membership=membership, one_machine=False), sink=lines.append)
    assert verdict.findings == []
    assert verdict.workloads["brokers removed"] == 1
    assert any(" voter-" in line and "starts as" in line for line in lines)


# ---- the draw


def test_the_seeds_that_tests_name_keep_their_store_and_one_of_three_others_has_a_quorum() -> None:
    plans = [draw(seed, 1.0) for seed in range(400)]
    assert all(plans[seed].quorum is None for seed in NAMED_BY_TESTS)
    share = sum(plan.quorum is not None for plan in plans) / len(plans)
    assert abs(share - QUORUM_SHARE) < 0.1
    assert all(plan.quorum is None or plan.ensemble is None for plan in plans)


def test_a_plan_has_the_faults_of_its_store_alone() -> None:
    for seed in range(40):
        assert set(draw(seed, 1.0, store=QUORUM).kinds) & QUORUM_KINDS
        assert not set(draw(seed, 1.0, store=QUORUM).kinds) & FOLDER_KINDS
    assert draw(1, 1.0, [Kind.QUORUM_CUT, Kind.STORE]).kinds == (Kind.QUORUM_CUT,)


# ---- the checker of the quorum


def ledger() -> QuorumLedger:
    return QuorumLedger(lambda: 1.0)


def append(number: int, data: bytes) -> Append:
    return Append(None, number, data)


def test_two_commands_or_outcomes_at_one_offset_are_found() -> None:
    for other in ((append(0, b"b"), Outcome.DONE), (append(0, b"a"), Outcome.REFUSED)):
        checker = ledger()
        checker.on_applied("1", 5, append(0, b"a"), Outcome.DONE)
        checker.on_applied("2", 5, append(0, b"a"), Outcome.DONE)
        assert checker.violations == []
        checker.on_applied("3", 5, *other)
        assert len(checker.violations) == 1


def test_commands_out_of_order_and_entries_that_are_given_twice_are_found() -> None:
    checker = ledger()
    checker.on_applied("1", 5, append(0, b"a"), Outcome.DONE)
    checker.on_applied("1", 5, append(0, b"a"), Outcome.DONE)
    checker.on_applied("1", 6, append(0, b"b"), Outcome.DONE)
    assert [text.partition(" s ")[2] for text in checker.violations] == [
        "1 applies offset 5 after 5",
        "entry 0 of the metadata was given twice",
    ]


def test_two_leaders_or_controllers_of_an_epoch_are_found() -> None:
    checker = ledger()
    checker.on_leader(1, 3)
    checker.on_leader(1, 3)
    checker.on_controller(7, 1, "40")
    checker.on_controller(7, 1, "40")
    assert checker.violations == []
    checker.on_leader(2, 3)
    checker.on_controller(7, 1, "41")
    assert len(checker.violations) == 2


def test_an_acknowledged_append_that_is_not_there_and_a_refused_one_that_is_are_found() -> None:
    checker, state = ledger(), AppliedState()
    for number, data in enumerate((b"a", b"b")):
        state.apply(number, append(number, data))
        checker.on_answered(number, data, True)
    checker.on_answered(1, b"c", False)
    assert checker.judge(state) == []
    checker.on_answered(1, b"b", False)
    checker.on_answered(2, b"d", True)
    assert checker.judge(state) == [
        "quorum: entry 2 was acknowledged, and is not there",
        "quorum: entry 1 was refused, and is there",
    ]
    checker.on_unknown(1, b"b")
    assert len(checker.judge(state)) == 1, "the first attempt may have appended it"


def test_a_node_that_stops_for_a_broken_invariant_is_found() -> None:
    checker = ledger()
    checker.on_stopped(1, QuorumStopped("/m", OSError(5, "Input/output error")))
    checker.on_stopped(1, QuorumStopped("/m", LogFenced("__cluster_metadata-0", OSError(28, "No space"))))
    assert checker.violations == []
    checker.on_stopped(1, QuorumStopped("/m", InvariantBroken("what is committed is never truncated")))
    assert len(checker.violations) == 1


# ---- the checker of the metadata


def entry(number: int, *records: dict[str, Any]) -> tuple[int, bytes]:
    named = {"controller_id": 1, "controller_incarnation": "1", "controller_epoch": 1}
    first = [{"type": "TakeOffice"}] if number == 0 else []  # codespell:ignore
    return number, msgspec.json.encode(named | {"records": [*first, *records]})


def setting(value: str) -> dict[str, Any]:
    return {"type": "ConfigChanged", "resource_name": "t", "key": "delete.retention.ms", "value": value}


async def _make(ledger: MetadataLedger, *values: str) -> None:
    for value in values:
        await ledger.make(("setting", "t"), value, asyncio.sleep(0.001))


def test_a_lost_change_and_changes_out_of_order_are_found() -> None:
    ledger = MetadataLedger()
    asyncio.run(_make(ledger, "1", "2"))
    assert ledger.judge([entry(0), entry(1, setting("1")), entry(2, setting("2"))], {}) == []
    (lost,) = ledger.judge([entry(0), entry(1, setting("1"))], {})
    assert lost.startswith("lost metadata: setting t was set to 2")
    (turned,) = ledger.judge([entry(0), entry(1, setting("2")), entry(2, setting("1"))], {})
    assert turned.startswith("order of metadata: setting t")
    again = [entry(0), entry(1, setting("1")), entry(2, setting("2")), entry(3, setting("1"))]
    assert ledger.judge(again, {}) == [], "the first request may have arrived late"


def test_a_broker_whose_image_differs_from_the_log_is_found() -> None:
    ledger = MetadataLedger()
    asyncio.run(_make(ledger, "1"))
    (other,) = ledger.judge([entry(0), entry(1, setting("1"))], {"broker-1": ClusterImage()})
    assert other == "metadata: setting t is None on broker-1, and 1 in the log"


# ---- the disk


def test_a_folder_loses_what_is_not_synced_and_the_others_nothing() -> None:
    disk = World(1).host("m").disk
    runtime: list[Runtime] = []

    async def main(given: Runtime) -> None:
        runtime.append(given)
        for name in ("/a", "/b"):
            given.disk.make_directories(name)
            given.disk.replace_file(f"{name}/synced", b"s")
            given.disk.sync_directory(name)
            file = given.disk.open(f"{name}/open", create=True)
            file.append([b"x" * 100])
            file.close()

    world = World(1)
    disk = world.host("m").disk

    async def scenario(_world: World) -> None:
        await world.host("m").start("p", main).exited
        used = disk.used
        disk.chance = random.Random(3)
        for _ in range(5):
            disk.lose_unsynced("/a")
        assert bytes(disk.file("/a/synced").data) == b"s"
        assert len(disk.file("/b/open").data) == 100
        assert disk.find("/a/open") is None
        assert disk.used == used - 100
        disk.wipe("/b")
        assert disk.find("/b") is None
        assert disk.used == used - 201

    world.run(scenario)


# ---- the wire


def test_a_request_over_a_cut_link_has_no_response_and_a_later_one_has() -> None:
    world = World(1)
    entry = VoterEntry(VoterKey(1, "a"), (Endpoint("CONTROLLER", "one", 9292),))
    answers: list[object] = []
    served: list[object] = []

    async def serve(request: object) -> int:
        served.append(request)
        return len(served)

    async def server(runtime: Runtime) -> None:
        await serve_peers(runtime, 9292, serve)
        await asyncio.sleep(60)

    async def client(runtime: Runtime) -> None:
        peers = SimulatedPeers(runtime)
        answers.append(await peers.ask(entry, ReadIndex()))
        world.network.cut("one", "two")
        with pytest.raises(PeerUnavailable, match="did not answer"):
            await peers.ask(entry, ReadIndex())
        world.network.heal("one", "two")
        answers.append(await peers.ask(entry, ReadIndex()))

    async def scenario(_world: World) -> None:
        world.host("one").start("server", server)
        await asyncio.sleep(0.1)
        error = await world.host("two").start("client", client).exited
        assert error is None

    world.run(scenario)
    assert answers == [1, 3], "the second request arrived, and its response is not taken for the third one's"


# ---- what the simulation has found


def test_the_signal_of_the_store_rests_when_nothing_changes() -> None:
    """Each read asks the leader, which is an event of its node: who follows the signal read without end."""
    cluster = QuorumCluster(4)

    async def scenario(_cluster: QuorumCluster) -> None:
        member = await cluster.start(1)
        await asyncio.sleep(2)
        seen = await member.call("wait_changed", -1)
        waiting = member.start("wait_changed", seen)
        for _ in range(20):
            await member.call("controller")
            await asyncio.sleep(0.05)
        assert not waiting.done()
        await member.call("append", 0, "entry")
        await waiting

    cluster.run(scenario)


def test_a_member_whose_node_has_stopped_is_told_that_it_cannot_register_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = QuorumCluster(5)

    async def scenario(_cluster: QuorumCluster) -> None:
        member = await cluster.start(1)
        (store,) = cluster.stores
        node = store._node

        def fail() -> None:
            node._end_with(node.replica.fail(OSError(5, "Input/output error")))

        for _ in range(2):
            cluster.world.loop.in_process(0.0, member.process, fail)
        await asyncio.sleep(0.5)
        said = [one for one in caplog.records if "Input/output error" in one.getMessage()]
        assert [one.levelname for one in said] == ["ERROR"], "once, however often it fails"
        refused = await member.refusal("register", 1, "again")
        assert refused.kind == "CoordinationError"
        assert "Input/output error" in str(refused)

    cluster.run(scenario)


def test_a_snapshot_may_cover_entries_that_this_member_has_not_seen_yet() -> None:
    cluster = QuorumCluster(6)

    async def scenario(_cluster: QuorumCluster) -> None:
        writer, late = await cluster.start(), await cluster.start()
        is_cut = {frozenset((2, voter)) for voter in VOTERS}
        cluster.wire.cut |= is_cut
        assert await writer.call("append", 0, "entry") is True
        cluster.wire.cut -= is_cut
        assert await late.call("write_snapshot", 1, "snapshot") is True
        refused = await late.refusal("write_snapshot", 2, "of what is not there")
        assert refused.kind == "ValueError"

    cluster.run(scenario)


def test_the_files_that_a_snapshot_replaces_are_removed() -> None:
    cluster = QuorumCluster(7)

    async def scenario(_cluster: QuorumCluster) -> None:
        member = await cluster.start()
        nodes = [node for _, node in cluster.wire.nodes.values()]
        for node in nodes:
            node._snapshot_bytes = 4_000
        for number in range(30):
            await member.call("append", number, 1_000 * "x")
        await asyncio.sleep(1)
        for node in nodes:
            names = node._disk.list_directory(node.replica.folder)
            made = [name for name in names if name.endswith(".checkpoint") and int(name.partition("-")[0])]
            assert len(made) == 2, "the newest, and the one before, where the log begins"

    cluster.run(scenario)


def test_a_leader_that_has_nothing_new_keeps_its_only_follower() -> None:
    """It held fetches for longer than a follower with a short time-out waits, which began an election."""
    cluster = QuorumCluster(5)

    async def scenario(_cluster: QuorumCluster) -> None:
        await asyncio.sleep(2)
        ((leader, node),) = [each for each in cluster.wire.nodes.values() if each[1].leads]
        next(process for process in cluster.processes.values() if process is not leader).pause()
        epoch = node.epoch
        await asyncio.sleep(5)
        assert node.leads
        assert node.epoch == epoch

    cluster.run(scenario)


def test_the_successor_of_a_leader_that_does_not_answer_keeps_its_only_follower() -> None:
    """The follower waited for its fetch from the former leader, and let the next one resign."""
    cluster = QuorumCluster(3)

    async def scenario(_cluster: QuorumCluster) -> None:
        await asyncio.sleep(1)
        ((former, _node),) = [each for each in cluster.wire.nodes.values() if each[1].leads]
        former.pause()
        others = [node for process, node in cluster.wire.nodes.values() if process is not former]
        await becomes(lambda: any(node.leads for node in others), "another leader is elected")
        (leader,) = [node for node in others if node.leads]
        epoch = leader.epoch
        await asyncio.sleep(3)
        assert leader.leads
        assert leader.epoch == epoch

    cluster.run(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_sessions_survive_leaders_that_do_not_answer(seed: int) -> None:
    """Followers, observers and owners of sessions turn to the next leader before the former one answers."""
    cluster = QuorumCluster(seed)

    async def scenario(_cluster: QuorumCluster) -> None:
        members = [await cluster.start(broker_id) for broker_id in (1, 2, 3)]
        before = await members[0].call("sessions")
        for _ in range(2):
            (leader,) = [process for process, node in cluster.wire.nodes.values() if node.leads]
            leader.pause()
            await asyncio.sleep(3)
            leader.resume()
            await asyncio.sleep(1)
        assert await members[0].call("sessions") == before

    cluster.run(scenario)


def test_a_time_out_in_the_book_of_a_deposed_leader_ends_no_session() -> None:
    """A leader that was stopped finds every session timed out. Its successor may have renewed them."""
    cluster = QuorumCluster(6)

    async def scenario(_cluster: QuorumCluster) -> None:
        member = await cluster.start(1)
        ((broker_id, incarnation, _),) = await member.call("sessions")
        name = SessionName(broker_id, incarnation)
        (leader,) = [process for process, node in cluster.wire.nodes.values() if node.leads]
        (node,) = [node for process, node in cluster.wire.nodes.values() if process is leader]
        for epoch, is_live in ((node.epoch - 1, True), (node.epoch, False)):
            end = node._end(name, epoch)
            cluster.world.loop.in_process(0.0, leader, node._spawn, end)
            await asyncio.sleep(0.3)
            assert (len(await member.call("sessions")) == 1) is is_live

    cluster.run(scenario)


def test_a_broker_with_a_new_folder_waits_for_its_former_session_while_leaders_change() -> None:
    cluster = QuorumCluster(7, session_timeout_ms=3_000)

    async def scenario(_cluster: QuorumCluster) -> None:
        former = await cluster.start(1)
        await former.kill()
        member = await cluster.start()
        registering = member.start("register", 1, "again")
        for _ in range(2):
            leading = [each for each in cluster.wire.nodes.values() if each[1].leads]
            leader, _node = max(leading, key=lambda each: each[1].epoch)
            leader.pause()
            await asyncio.sleep(3.5)  # a leader that follows it keeps each session for 3 s more
            leader.resume()
        await registering

    cluster.run(scenario)
