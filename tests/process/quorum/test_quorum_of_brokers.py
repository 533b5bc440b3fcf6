"""Brokers as real processes that keep their metadata in a quorum of their own, without any other system."""

from __future__ import annotations

import json
import shutil
import socket
import time
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as ConfluentTopic

from nilometer.broker.process import LINES_PER_SECOND
from nilometer.cli.main import run
from nilometer.client.admin.admin import NewTopic
from nilometer.identifiers import BrokerId, LeaderEpoch, Offset
from nilometer.raft.exchange import VoteRequest
from nilometer.raft.messages import vote_request
from nilometer.raft.voters import VoterKey
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import encode_request
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.quorum_brokers import QuorumBrokers
from support.brokers.quorum_clients import produce, texts_in
from support.eventually import eventually
from support.ports import HOST
from support.wire.wire_peer import WirePeer, make

TIMEOUT_S = 60.0


def test_the_leader_is_killed_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 4) as cluster:
        cluster.create_topic("before", 2)
        produce(cluster, "before", ["a", "b"])
        eventually(lambda: cluster.controller() is not None, "a controller", TIMEOUT_S)
        leader = cluster.controller()
        assert leader in cluster.controllers, "the controller is at the quorum's leader, a voter"
        cluster.kill(leader)
        client = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        created = client.create_topics([ConfluentTopic("meanwhile", 1, 2)], request_timeout=20)
        created["meanwhile"].result()  # no broker names the dead one, which librdkafka would wait for
        eventually(lambda: cluster.controller() not in (None, leader), "another controller", TIMEOUT_S)
        cluster.wait_leader("before", other_than=leader, timeout_s=TIMEOUT_S)
        cluster.operate(lambda admin: admin.create_topic(NewTopic("after", 1, 1)))
        produce(cluster, "before", ["c"])
        cluster.start(leader)
        cluster.wait_full_isr("before", TIMEOUT_S)
        cluster.kill(*cluster.brokers)
        cluster.start()
        assert {"before", "meanwhile", "after"} <= set(cluster.topics())
        assert texts_in(cluster, "before", 2, 3) == ["a", "b", "c"]


def test_a_broker_that_starts_alone_waits_for_a_majority_as_long_as_it_takes(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 3, {"broker.session.timeout.ms": "1000"}) as cluster:
        cluster.create_topic("t")
        eventually(lambda: cluster.controller() is not None, "a controller", TIMEOUT_S)
        leader = cluster.controller()
        assert leader is not None
        other = next(one for one in cluster.brokers if one != leader)
        cluster.kill(*cluster.brokers)
        alone = cluster.brokers[other]
        waits = "The metadata quorum has no leader yet"
        before = alone.output.count(waits)
        alone.launch()
        eventually(lambda: alone.output.count(waits) > before, "it says that it waits", TIMEOUT_S)
        assert alone.alive()
        cluster.start()
        cluster.wait_full_isr("t", TIMEOUT_S)


def test_the_controller_follows_the_leader_of_the_quorum_before_the_session_of_the_former_one_ends(
    tmp_path: Path,
) -> None:
    long_sessions = {"broker.session.timeout.ms": str(int(TIMEOUT_S) * 3_000)}
    with QuorumBrokers(tmp_path / "cluster", 3, long_sessions) as cluster:
        eventually(lambda: cluster.controller() is not None, "a controller", TIMEOUT_S)
        leader = cluster.controller()
        assert leader is not None
        cluster.kill(leader)
        eventually(lambda: cluster.controller() not in (None, leader), "another controller", TIMEOUT_S)
        there = next(one for one in cluster.running)
        topic = NewTopic("t", assignments={0: (there,)})
        cluster.operate(lambda admin: admin.create_topic(topic))
        assert "is fenced" not in cluster.output()


def test_every_broker_describes_the_quorum_as_its_leader_knows_it(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 4) as cluster:
        cluster.create_topic("t")
        eventually(lambda: cluster.controller() is not None, "a controller", TIMEOUT_S)
        for broker in cluster.brokers.values():
            eventually(partial(is_described, cluster, broker), "no replica lags", TIMEOUT_S)


def is_described(cluster: QuorumBrokers, broker: NilometerBroker) -> bool:
    with WirePeer(broker.bootstrap) as peer:
        key, version = ApiKey.DESCRIBE_QUORUM, 2
        partitions = (make(key, version, "PartitionData", partition_index=0),)
        topic = make(key, version, "TopicData", topic_name="__cluster_metadata", partitions=partitions)
        answer = peer.ask(key, version, topics=(topic,))
    (found,) = answer.topics[0].partitions
    assert [one.replica_id for one in found.current_voters] == [1, 2, 3]
    assert [one.replica_id for one in found.observers] == [4]
    listeners = [(one.node_id, point.name, point.port) for one in answer.nodes for point in one.listeners]
    assert listeners == [(voter, "CONTROLLER", port) for voter, port in cluster.controllers.items()]
    replicas = (*found.current_voters, *found.observers)
    assert all(one.replica_directory_id is not None for one in replicas)
    assert found.leader_id in cluster.controllers and found.leader_epoch > 0
    return all(one.log_end_offset >= found.high_watermark > 0 for one in replicas)


def test_a_voter_whose_metadata_log_was_emptied_observes_under_another_directory_id(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster") as cluster:
        cluster.create_topic("t")
        cluster.stop(1)
        before = (cluster.brokers[1].data_dir / "meta.properties").read_text()
        shutil.rmtree(cluster.metadata_folder(1))
        cluster.start(1)
        assert (cluster.brokers[1].data_dir / "meta.properties").read_text() != before
        assert "takes part in a metadata quorum already" in cluster.brokers[1].output
        cluster.wait_full_isr("t", TIMEOUT_S)
        assert cluster.controller() in (2, 3)


def test_an_observer_of_the_only_voter_forms_no_quorum_without_its_metadata_log(
    tmp_path: Path,
) -> None:
    with QuorumBrokers(tmp_path / "cluster", 2, voters=1) as cluster:
        cluster.create_topic("t")
        cluster.stop(2)
        shutil.rmtree(cluster.metadata_folder(2))
        cluster.start(2)
        cluster.wait_full_isr("t", TIMEOUT_S)


def test_a_node_without_the_key_is_not_let_in(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 1, voters=1) as cluster:
        other = tmp_path / "other.key"
        other.touch(0o600)
        other.write_text("another key, which is as long as the others\n")
        settings = {
            "nilometer.coordination": "quorum",
            "process.roles": "broker",
            "controller.quorum.voters": f"1@{HOST}:{cluster.controllers[1]}",
            "controller.listener.names": "CONTROLLER",
            "nilometer.quorum.secret.file": str(other),
        }
        stranger = NilometerBroker(tmp_path / "stranger", settings, node_id=2)
        stranger.launch()
        try:
            eventually(lambda: "does not have the key" in stranger.output, "its own refusal", TIMEOUT_S)
            assert "Ready" not in stranger.output
        finally:
            stranger.kill()
        with socket.create_connection((HOST, cluster.controllers[1]), timeout=TIMEOUT_S) as connection:
            stranger_key = VoterKey(BrokerId(9), "AAAAAAAAAAAAAAAAAAAAAQ")
            none = LeaderEpoch(0)
            vote = VoteRequest(
                LeaderEpoch(1 << 20), stranger_key, stranger_key, none, Offset(0), pre_vote=False
            )
            connection.sendall(encode_request(1, "stranger", vote_request(vote, None)))
            assert connection.recv(1) == b""
        with socket.create_connection((HOST, cluster.controllers[1]), timeout=TIMEOUT_S) as connection:
            connection.sendall((4 * 1024 + 1).to_bytes(4, "big"))
            assert connection.recv(1) == b"", "before it is let in it may send little"
        attempts, before = 1_000, cluster.brokers[1].output.count("\n")
        began = time.monotonic()
        for _ in range(attempts):
            with socket.create_connection((HOST, cluster.controllers[1]), timeout=TIMEOUT_S) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert connection.recv(1) == b""
        seconds = int(time.monotonic() - began) + 2
        lines = cluster.brokers[1].output.count("\n") - before
        assert lines < min(attempts, LINES_PER_SECOND * seconds) + 20, "the lines about it are bounded"
        cluster.create_topic("t")


def test_a_folder_of_another_store_or_of_lost_metadata_is_refused(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 1, voters=1) as cluster:
        cluster.create_topic("t")
        broker = cluster.brokers[1]
        assert not cluster.metadata_folder(1).stat().st_mode & 0o077, "the cluster's secret is in it"
        cluster.stop(1)
        kept = tmp_path / "kept"
        cluster.metadata_folder(1).rename(kept)
        assert "a new metadata quorum would not know its topics" in refusal_of(broker)
        kept.rename(cluster.metadata_folder(1))
        cluster.start(1)
        assert "t" in cluster.topics(), "nothing was changed meanwhile"
        cluster.stop(1)
        (broker.data_dir / ".coordination").mkdir()
        assert "Set nilometer.coordination=local to go on with it" in refusal_of(broker)


def refusal_of(broker: NilometerBroker) -> str:
    before = len(broker.output)
    broker.launch()
    try:
        broker.wait_ready()
    except RuntimeError:
        return broker.output[before:]
    finally:
        broker.kill()
    raise AssertionError("it started")


def test_a_log_directory_says_which_node_it_is_of_and_nothing_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["storage", "info", str(tmp_path)]) == 1
    assert "has no metadata log of a quorum" in capsys.readouterr().err
    with QuorumBrokers(tmp_path / "cluster") as cluster:
        cluster.create_topic("t")
        cluster.kill(*cluster.brokers)
        folder = cluster.brokers[1].data_dir
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert run(["storage", "info", str(folder), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["node_id"], found["directory_id"]) == (1, cluster.directory_id(1))
        assert found["leader"] in cluster.controllers
        assert found["log_end_offset"] >= found["committed"] > 0
        ports = {one["id"]: one["endpoints"][0]["port"] for one in found["voters"]}
        assert ports == cluster.controllers
        assert [one["directory_id"] for one in found["voters"]] == [
            cluster.directory_id(one) for one in (1, 2, 3)
        ]
        assert run(["storage", "info", str(folder)]) == 0
        text = capsys.readouterr().out
        assert f"Directory id: {cluster.directory_id(1)}" in text
        assert f"Epoch {found['epoch']}: node {found['leader']} leads" in text
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_voter_goes_on_alone_after_the_majority_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with QuorumBrokers(tmp_path / "cluster", 4) as cluster:
        cluster.create_topic("t")
        cluster.wait_full_isr("t", TIMEOUT_S)
        folder, observer = str(cluster.brokers[1].data_dir), str(cluster.brokers[4].data_dir)
        assert run(["storage", "recover", folder, "--unsafe", "--yes"]) == 1
        assert "runs" in capsys.readouterr().err, "its broker may have the log open"
        cluster.kill(*cluster.brokers)
        before = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
        assert run(["storage", "recover", observer, "--unsafe", "--yes"]) == 1
        assert "is no voter" in capsys.readouterr().err
        assert run(["storage", "recover", folder, "--yes"]) == 2
        said = capsys.readouterr().err
        assert "What the voters 2, 3 have committed, and node 1 has not, will be lost" in said
        assert run(["storage", "recover", folder, "--unsafe"]) == 2
        assert "may go on as a second cluster" in capsys.readouterr().err
        marker = cluster.metadata_folder(1) / "nilometer.properties"
        ours = marker.read_text()
        for other in ("", ours.replace(cluster.directory_id(1), cluster.directory_id(2))):
            marker.write_text(other) if other else marker.unlink()  # of Apache Kafka; copied from node 2
            assert run(["storage", "recover", folder, "--unsafe", "--yes"]) == 1
            said = capsys.readouterr().err
            assert ("belongs to the directory" if other else "one of Apache Kafka") in said
        marker.write_text(ours)
        assert {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()} == before
        assert run(["storage", "recover", folder, "--unsafe", "--yes", "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        assert done["voter"] == {"id": 1, "directory_id": cluster.directory_id(1)}
        assert [one["id"] for one in done["removed"]] == [2, 3]
        assert run(["storage", "recover", folder, "--unsafe", "--yes"]) == 1
        assert "is the only voter already" in capsys.readouterr().err
        cluster.start(1)
        eventually(lambda: cluster.controller() == 1, "it leads alone", TIMEOUT_S)
        for lost in (2, 3):
            for path in cluster.metadata_folder(lost).iterdir():
                if path.name != "nilometer.properties":  # with its directory id their records count
                    path.unlink()
        cluster.start()
        cluster.wait_full_isr("t", TIMEOUT_S)
        cluster.operate(lambda admin: admin.create_topic(NewTopic("after", 1, 3)))
        with WirePeer(cluster.brokers[2].bootstrap) as peer:
            key, version = ApiKey.DESCRIBE_QUORUM, 2
            partitions = (make(key, version, "PartitionData", partition_index=0),)
            topic = make(key, version, "TopicData", topic_name="__cluster_metadata", partitions=partitions)
            (found,) = peer.ask(key, version, topics=(topic,)).topics[0].partitions
        assert [one.replica_id for one in found.current_voters] == [1]
        assert [one.replica_id for one in found.observers] == [2, 3, 4]
