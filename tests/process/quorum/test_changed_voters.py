"""The voters of a metadata quorum change while brokers serve clients: added, removed, replaced, moved."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from nilometer.client.admin.admin import NewTopic
from nilometer.wire.errors import ErrorCode
from support.brokers.quorum_brokers import QuorumBrokers
from support.brokers.quorum_clients import OK, add, described, has_voters, load, remove, texts_in
from support.eventually import eventually
from support.ports import free_ports

TIMEOUT_S = 60.0


def test_three_voters_become_five_and_the_first_two_leave_under_load(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster") as cluster:
        cluster.create_topic("t", 1)
        topics: list[str] = []

        def create() -> None:
            topics.append(f"t-{len(topics)}")
            cluster.operate(lambda admin: admin.create_topic(NewTopic(topics[-1], 1, 1)))

        with load(cluster, "t") as acknowledged:
            eventually(lambda: len(acknowledged) > 5, "records", TIMEOUT_S)
            for _ in range(2):
                broker_id = cluster.add_controller()
                assert add(cluster, broker_id, asked=1) == OK
                create()
            found = described(cluster, 2)
            assert found is not None
            assert (found.voters, found.observers) == ([1, 2, 3, 4, 5], [])
            error, message = add(cluster, 5, asked=2)
            assert error is ErrorCode.duplicate_voter
            assert "is already part of the set of voters" in (message or "")
            leader = found.leader
            for one in [leader, *(each for each in (1, 2) if each != leader)][:2]:
                assert remove(cluster, one, cluster.directory_id(one), asked=one) == OK
                create()
            gone = remove(cluster, leader, cluster.directory_id(leader), asked=4)
            assert gone[0] is ErrorCode.voter_not_found
        left = {1, 2, 3, 4, 5} - {leader, next(each for each in (1, 2) if each != leader)}
        for one in cluster.brokers:
            eventually(partial(has_voters, cluster, one, left), f"broker {one} knows the voters", TIMEOUT_S)
        eventually(lambda: {"t", *topics} <= set(cluster.topics()), "all topics are known", TIMEOUT_S)
        assert set(acknowledged) <= set(texts_in(cluster, "t", 1, len(acknowledged)))
        away = [one for one in cluster.brokers if one not in left]
        cluster.kill(*away)
        eventually(lambda: cluster.controller() in left, "a controller among the voters", TIMEOUT_S)
        create()


def test_a_voter_whose_folder_was_lost_is_replaced_by_its_successor(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster") as cluster:
        cluster.create_topic("t")
        former = cluster.directory_id(1)
        cluster.stop(1)
        shutil.rmtree(cluster.brokers[1].data_dir)
        cluster.start(1)
        error, _ = add(cluster, 1, asked=2)
        assert error is ErrorCode.duplicate_voter, "its former folder is still a voter"
        assert remove(cluster, 1, former, asked=2) == OK
        error, message = add(cluster, 1, asked=2, port=cluster.controllers[2])
        assert error is ErrorCode.invalid_request
        assert "at its endpoint listens 2-" in (message or "")
        assert add(cluster, 1, asked=2) == OK
        found = described(cluster, 1)
        assert found is not None
        assert (found.voters, found.observers) == ([1, 2, 3], [])
        assert cluster.directory_id(1) in found.directories
        cluster.kill(2 if found.leader == 1 else found.leader)
        eventually(lambda: cluster.controller() in cluster.running, "a majority with voter 1", TIMEOUT_S)
        assert "t" in cluster.topics()


def test_a_controller_joins_by_itself_and_again_after_its_folder_was_lost(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 1, voters=1) as cluster:
        cluster.create_topic("t")
        joiner = cluster.add_controller({"controller.quorum.auto.join.enable": "true"})
        eventually(partial(has_voters, cluster, 1, {1, joiner}), "it is a voter", TIMEOUT_S)
        third = cluster.add_controller({"controller.quorum.auto.join.enable": "true"})
        eventually(partial(has_voters, cluster, 1, {1, joiner, third}), "it is a voter", TIMEOUT_S)
        former = cluster.directory_id(joiner)
        cluster.stop(joiner)
        shutil.rmtree(cluster.metadata_folder(joiner))
        cluster.start(joiner)
        assert cluster.directory_id(joiner) != former

        def is_replaced() -> bool:
            found = described(cluster, 1)
            return found is not None and cluster.directory_id(joiner) in found.directories

        eventually(is_replaced, "its new folder is a voter", TIMEOUT_S)
        eventually(partial(has_voters, cluster, 1, {1, joiner, third}), "the former one is none", TIMEOUT_S)


def test_a_voter_that_moved_tells_the_leader_where_it_listens(tmp_path: Path) -> None:
    moved = free_ports(1)[0]
    with QuorumBrokers(tmp_path / "cluster") as cluster:
        cluster.create_topic("t")
        cluster.stop(3)
        cluster.move_controller(3, moved)
        cluster.start(3)

        def is_known() -> bool:
            found = described(cluster, 2)
            return found is not None and found.ports[3] == moved

        eventually(is_known, "the log has the address", TIMEOUT_S)
        found = described(cluster, 2)
        assert found is not None
        cluster.kill(1 if found.leader == 1 else 2)
        eventually(lambda: cluster.controller() in cluster.running, "a majority with voter 3", TIMEOUT_S)
