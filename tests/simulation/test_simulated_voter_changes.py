"""Changes of a virtual quorum's voters: one at a time, with faults, and what their proposer is told."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.store import CoordinationError, StoreUnavailable
from nilometer.identifiers import LeaderEpoch
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.exchange import BeginEpochRequest
from nilometer.raft.voter_changes import (
    DONE,
    PENDING,
    AddVoter,
    ChangeResult,
    RemoveVoter,
    VoterChange,
)
from nilometer.raft.voters import VoterKey
from nilometer.simulation.world import Process
from nilometer.wire.errors import ErrorCode
from support.coordination import quorum_cluster
from support.coordination.quorum_cluster import QuorumCluster

PATIENCE_MS = 1_000


def leader_of(cluster: QuorumCluster) -> tuple[Process, QuorumNode]:
    (found,) = [each for each in cluster.wire.nodes.values() if each[0].alive and each[1].leads]
    return found


def entry(key: VoterKey) -> VoterEntry:
    return VoterEntry(key, (Endpoint("CONTROLLER", f"host-{key.node_id}", 9093),))


def begin(
    cluster: QuorumCluster, at: tuple[Process, QuorumNode], change: VoterChange
) -> asyncio.Future[ChangeResult]:
    """Ask for a change at a node, in its process."""
    process, node = at
    answer: asyncio.Future[ChangeResult] = cluster.world.loop.create_future()

    async def ask() -> None:
        try:
            answer.set_result(await node.ask_for_change(change))
        except CoordinationError as error:
            answer.set_exception(error)

    cluster.world.loop.in_process(
        0.0, process, lambda: cluster.wire.serving.add(asyncio.ensure_future(ask()))
    )
    return answer


async def led(cluster: QuorumCluster, other_than: QuorumNode | None = None) -> tuple[Process, QuorumNode]:
    for _ in range(500):
        found = [each for each in cluster.wire.nodes.values() if each[0].alive and each[1].leads]
        if len(found) == 1 and found[0][1] is not other_than:
            return found[0]
        await asyncio.sleep(0.02)
    raise AssertionError("no leader")


async def observers(cluster: QuorumCluster, count: int) -> list[VoterKey]:
    """Start nodes that are no voters; return them once they have fetched."""
    for _ in range(count):
        await cluster.start()
    await asyncio.sleep(1)
    return [key for key in cluster.wire.nodes if key.node_id <= count]


def test_two_voters_at_once_are_added_one_after_the_other() -> None:
    cluster = QuorumCluster(1)

    async def scenario(_cluster: QuorumCluster) -> None:
        await led(cluster)
        first, second = await observers(cluster, 2)
        leader = leader_of(cluster)
        one = begin(cluster, leader, AddVoter(entry(first), PATIENCE_MS))
        two = begin(cluster, leader, AddVoter(entry(second), PATIENCE_MS))
        assert await two == PENDING
        assert await one == DONE
        assert await begin(cluster, leader, AddVoter(entry(second), PATIENCE_MS)) == DONE
        again = await begin(cluster, leader, AddVoter(entry(second), PATIENCE_MS))
        assert again.error is ErrorCode.duplicate_voter
        await asyncio.sleep(1)
        for _, node in cluster.wire.nodes.values():
            assert {first, second} <= set(node.replica.core.voters.latest.voters)

    cluster.run(scenario)


def test_a_voter_that_does_not_answer_or_has_another_folder_is_not_added() -> None:
    cluster = QuorumCluster(2)

    async def scenario(_cluster: QuorumCluster) -> None:
        await led(cluster)
        (key,) = await observers(cluster, 1)
        leader = leader_of(cluster)
        found = await begin(cluster, leader, AddVoter(entry(key), 0))
        assert found.error is ErrorCode.request_timed_out
        assert "it has not said who it is within 0 ms" in str(found.message)
        cluster.wire.cut.add(frozenset((leader[1].replica.core.key.node_id, key.node_id)))
        found = await begin(cluster, leader, AddVoter(entry(key), PATIENCE_MS))
        assert found.error is ErrorCode.request_timed_out
        assert "is not ready to receive requests" in str(found.message)
        cluster.wire.cut.clear()
        former = VoterKey(key.node_id, "AAAAAAAAAAAAAAAAAAAAAQ")
        cluster.wire.nodes[former] = cluster.wire.nodes[key]  # the address is the same
        found = await begin(cluster, leader, AddVoter(entry(former), PATIENCE_MS))
        assert found.error is ErrorCode.invalid_request
        assert f"at its endpoint listens {key}" in str(found.message)
        assert len(leader[1].replica.core.voters.latest.voters) == 3

    cluster.run(scenario)


def test_a_change_without_a_majority_is_said_to_be_open() -> None:
    cluster = QuorumCluster(3)

    async def scenario(_cluster: QuorumCluster) -> None:
        leader = await led(cluster)
        await asyncio.sleep(1)
        own = leader[1].replica.core.key
        others = [key for key in cluster.wire.nodes if key != own]
        cluster.wire.cut |= {frozenset((own.node_id, other.node_id)) for other in others}
        found = await begin(cluster, leader, RemoveVoter(others[0]))
        assert found.error is ErrorCode.request_timed_out
        assert "but was not committed while" in str(found.message), "the leader has resigned meanwhile"
        successor = await led(cluster, leader[1])
        cluster.wire.cut.clear()
        await asyncio.sleep(2)
        assert len(leader[1].replica.core.voters.latest.voters) == 3, "its change is truncated"
        assert await begin(cluster, successor, RemoveVoter(own)) == DONE

    cluster.run(scenario)


def test_a_leader_removes_itself_observes_and_is_no_longer_counted() -> None:
    cluster = QuorumCluster(4)

    async def scenario(_cluster: QuorumCluster) -> None:
        leader = await led(cluster)
        await asyncio.sleep(1)
        own = leader[1].replica.core.key
        assert await begin(cluster, leader, RemoveVoter(own)) == DONE
        with pytest.raises(StoreUnavailable, match="has no leader that this node can reach"):
            await begin(cluster, leader, RemoveVoter(own))
        successor = await led(cluster, leader[1])
        await asyncio.sleep(1)
        assert leader[1].epoch == successor[1].epoch
        assert leader[1].applied == successor[1].applied, "it follows the log as an observer"
        leader[0].crash()
        (other,) = [
            process
            for key, (process, _) in cluster.wire.nodes.items()
            if key != own and process is not successor[0]
        ]
        other.pause()
        await asyncio.sleep(2)
        assert not successor[1].leads, "it has no majority of two"
        other.resume()
        await led(cluster)

    cluster.run(scenario)


def test_where_a_leader_says_it_listens_counts_more_than_the_log_in_its_epoch() -> None:
    cluster = QuorumCluster(5)

    async def scenario(_cluster: QuorumCluster) -> None:
        leader = await led(cluster)
        await asyncio.sleep(1)
        key, epoch = leader[1].replica.core.key, leader[1].epoch
        (other, *_) = [node for _, node in cluster.wire.nodes.values() if node is not leader[1]]
        moved = (Endpoint("CONTROLLER", "elsewhere", 9094),)
        other.on_announced(BeginEpochRequest(LeaderEpoch(epoch - 1), key.node_id), moved)
        other.on_announced(BeginEpochRequest(epoch, key.node_id), ())
        assert other.leader() == entry(key)
        other.on_announced(BeginEpochRequest(epoch, key.node_id), moved)
        assert other.leader() == VoterEntry(key, moved)

    cluster.run(scenario)


@pytest.mark.parametrize("voters", [2, 4])
def test_a_leader_that_alone_has_the_record_of_its_removal_stands_for_election(
    voters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is the longest, so it grants no vote: without it two voters of two, or of four of which one is
    down, have no majority."""
    monkeypatch.setattr(quorum_cluster, "VOTERS", tuple(range(101, 101 + voters)))
    cluster = QuorumCluster(6)

    async def scenario(_cluster: QuorumCluster) -> None:
        _, node = await led(cluster)
        await asyncio.sleep(1)
        own = node.replica.core.key
        others = [key for key in cluster.wire.nodes if key != own]
        if voters == 4:
            cluster.wire.nodes[others[-1]][0].crash()
            await asyncio.sleep(1)
        cluster.wire.cut |= {frozenset((own.node_id, other.node_id)) for other in others}
        await asyncio.sleep(0.01)
        await node.change_voters(partial(node.replica.remove_voter, own))
        await asyncio.sleep(2)
        assert not any(process.alive and other.leads for process, other in cluster.wire.nodes.values())
        cluster.wire.cut.clear()
        await asyncio.sleep(10)
        successor = (await led(cluster))[1].replica.core
        assert successor.key != own
        for key in others[: len(others) - (voters == 4)]:
            core = cluster.wire.nodes[key][1].replica.core
            assert own not in core.voters.latest
            assert core.voters.latest_offset < core.high_watermark

    cluster.run(scenario)
