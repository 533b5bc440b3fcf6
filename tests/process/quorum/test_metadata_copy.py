"""``nilometer metadata copy``: a cluster moves from a folder, or from ZooKeeper, to a quorum, and back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from nilometer.cli.main import run
from support.brokers.nilometer_broker import NilometerBroker
from support.command_line import Outcome
from support.coordination.zookeeper_server import is_installed, running_ensemble
from support.eventually import eventually
from support.ports import HOST, free_ports

TIMEOUT_S = 60.0
TOPIC, GROUP, USER, PASSWORD = "orders", "billing", "alice", "not a secret"


class MovingCluster:
    """Two brokers with SCRAM and ACLs, which are started with one store after another."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self._ports = free_ports(6)
        self.brokers: dict[int, NilometerBroker] = {}

    def log_dir(self, broker_id: int) -> Path:
        return self.folder / f"broker-{broker_id}"

    def configure(self, store: Mapping[str, str], *, has_controllers: bool = False) -> None:
        for broker_id in (1, 2):
            plain, sasl, controller = self._ports[3 * broker_id - 3 : 3 * broker_id]
            listeners = f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{sasl}"
            settings = {
                "listeners": listeners + (f",CONTROLLER://{HOST}:{controller}" if has_controllers else ""),
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "offsets.topic.replication.factor": "2",
                "offsets.topic.num.partitions": "1",
                **store,
            }
            self.brokers[broker_id] = NilometerBroker(self.log_dir(broker_id), settings, plain, broker_id)

    def quorum(self) -> dict[str, str]:
        """Return the settings of three-machines.md, for two brokers that join one after the other."""
        return {
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@{HOST}:{self._ports[2]},2@{HOST}:{self._ports[5]}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.auto.join.enable": "true",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }

    @contextmanager
    def running(self, *, killed: bool = False) -> Iterator[None]:
        """``killed``: at the end, so that sessions linger; else the brokers are stopped."""
        wanted = tuple(self.brokers)
        try:
            for broker_id in wanted:
                self.brokers[broker_id].launch()
            for broker_id in wanted:
                self.brokers[broker_id].wait_ready()
            yield
        finally:
            for broker_id in reversed(wanted):
                end = self.brokers[broker_id].kill if killed else self.brokers[broker_id].stop
                end()

    @property
    def plain(self) -> dict[str, str]:
        servers = ",".join(broker.bootstrap for broker in self.brokers.values())
        return {"bootstrap.servers": servers, "log_level": "2"}

    def alice(self, password: str = PASSWORD) -> dict[str, str]:
        login = {"sasl.username": USER, "sasl.password": password, "sasl.mechanism": "SCRAM-SHA-256"}
        port = self._ports[1]
        return {
            "bootstrap.servers": f"{HOST}:{port}",
            "security.protocol": "SASL_PLAINTEXT",
            "log_level": "0",
            **login,
        }

    def command(self, *words: str) -> Outcome:
        code = run([*words])
        printed = self._capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    def must(self, *words: str) -> str:
        outcome = self.command(*words)
        assert outcome.code == 0, (words, outcome.err)
        return outcome.out

    def fill(self) -> None:
        server = ("--bootstrap-server", self.brokers[1].bootstrap)
        self.must("topic", "create", TOPIC, "--partitions", "2", "--replication-factor", "2", *server)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o600)
        self.must("user", "add", USER, "--password-file", str(secret), *server)
        self.must(
            "acl",
            "add",
            "allow",
            "--principal",
            f"User:{USER}",
            "--operation",
            "read",
            "--topic",
            TOPIC,
            *server,
        )
        self.produce(0, 20)
        consumer = Consumer({**self.plain, "group.id": GROUP})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
        consumer.close()

    def produce(self, first: int, end: int) -> None:
        producer = Producer({**self.plain, "acks": "all"})
        errors: list[object] = []
        for number in range(first, end):
            producer.produce(
                TOPIC, b"%d" % number, partition=number % 2, on_delivery=lambda error, _: errors.append(error)
            )
        producer.flush(TIMEOUT_S)
        assert errors == [None] * (end - first)

    def check(self, count: int) -> None:
        """Everything is there: records, offsets, the user with the password, and the ACL of the topic."""
        consumer = Consumer({**self.alice(), "group.id": GROUP, "enable.auto.commit": "false"})
        consumer.assign([TopicPartition(TOPIC, 0, 0), TopicPartition(TOPIC, 1, 0)])
        found: set[int] = set()

        def poll() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.add(int(message.value() or b""))
            return len(found) >= count

        eventually(poll, f"{count} records as {USER}", TIMEOUT_S)
        consumer.close()
        assert found == set(range(count))
        plain = Consumer({**self.plain, "group.id": GROUP})
        (committed,) = plain.committed([TopicPartition(TOPIC, 0)], TIMEOUT_S)
        plain.close()
        assert committed.offset == 7
        with pytest.raises(KafkaException):
            AdminClient(self.alice("another")).list_topics(timeout=3)

    def image(self, setting: str) -> str:
        return self.must("metadata", "image", "--coordination", setting)

    def refusal(self, broker_id: int) -> str:
        """Start a broker that is to refuse; return what it says."""
        broker = self.brokers[broker_id]
        before = len(broker.output)
        with pytest.raises(RuntimeError, match="ended or is fenced"):
            broker.start()
        broker.kill()
        return broker.output[before:]


@pytest.fixture
def cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[MovingCluster]:
    moving = MovingCluster(tmp_path, capsys)
    try:
        yield moving
    finally:
        for broker in moving.brokers.values():
            broker.kill()


def test_a_cluster_moves_from_a_folder_to_a_quorum_and_back(cluster: MovingCluster) -> None:
    folder, other = f"local:{cluster.folder / 'store'}", f"local:{cluster.folder / 'other'}"
    quorum = f"quorum:{cluster.log_dir(1)}"
    cluster.configure({"nilometer.coordination": folder})
    with cluster.running():
        cluster.fill()
        cluster.check(20)
        refused = cluster.command("metadata", "copy", "--from", folder, "--to", quorum)
        assert (refused.code, "in use by broker 1, broker 2" in refused.err) == (1, True), refused.err
    before = cluster.image(folder)
    copied = cluster.must("metadata", "copy", "--from", folder, "--to", quorum)
    assert f"to {quorum}, and read them there again;" in copied and f"{folder} is closed." in copied
    assert cluster.image(quorum) == before
    again = cluster.command("metadata", "copy", "--from", folder, "--to", quorum)
    assert (again.code, "has the metadata log of a quorum" in again.err) == (1, True), again.err
    refused_by_broker = cluster.refusal(2)
    assert f"its metadata was copied to {quorum}" in refused_by_broker

    cluster.configure(cluster.quorum(), has_controllers=True)
    with cluster.running(killed=True):
        cluster.check(20)
        cluster.produce(20, 30)
        cluster.check(30)
        server = ("--bootstrap-server", cluster.brokers[1].bootstrap)
        voters = ("cluster", "quorum", "describe", "--json", *server)
        eventually(
            lambda: [one["id"] for one in cluster.command(*voters).document["voters"]] == [1, 2],
            "the second broker joins the voters",
            TIMEOUT_S,
        )
        assert "stray" not in cluster.brokers[2].output
    refused = cluster.command("metadata", "copy", "--from", quorum, "--to", other)
    assert (refused.code, "remove the other voters (2)" in refused.err) == (1, True), refused.err

    joins_not = {**cluster.quorum(), "controller.quorum.auto.join.enable": "false"}
    cluster.configure(joins_not, has_controllers=True)
    with cluster.running():
        cluster.must(
            "cluster",
            "quorum",
            "remove",
            "2",
            "--yes",
            "--force",
            "--bootstrap-server",
            cluster.brokers[1].bootstrap,
        )
    copied = cluster.must("metadata", "copy", "--from", quorum, "--to", other)
    assert f"{quorum} is closed." in copied
    assert f"its metadata was copied to {other}" in cluster.refusal(1)
    cluster.configure({"nilometer.coordination": other})
    with cluster.running():
        cluster.check(30)
        cluster.produce(30, 40)
        cluster.check(40)


@pytest.mark.skipif(not is_installed(), reason="needs Debian's package libzookeeper-java")
def test_a_cluster_moves_from_zookeeper_to_a_quorum_and_back(cluster: MovingCluster) -> None:
    quorum = f"quorum:{cluster.log_dir(1)}"
    timeout = {"zookeeper.session.timeout.ms": "2000"}
    with running_ensemble() as ensemble:
        store, other = (f"zookeeper://{ensemble.hosts}/{chroot}" for chroot in ("nilometer", "other"))
        cluster.configure({"nilometer.coordination": store, **timeout})
        with cluster.running():
            cluster.fill()
            refused = cluster.command("metadata", "copy", "--from", store, "--to", quorum)
            assert (refused.code, "in use by broker 1, broker 2" in refused.err) == (1, True), refused.err
        before = cluster.image(store)
        cluster.must("metadata", "copy", "--from", store, "--to", quorum)
        assert cluster.image(quorum) == before
        assert f"its metadata was copied to {quorum}" in cluster.refusal(1)
        reopened = cluster.must("metadata", "reopen", store, "--yes")
        assert f"{store} is open again" in reopened
        shutil.rmtree(cluster.log_dir(1) / "__cluster_metadata-0")
        cluster.must("metadata", "copy", "--from", store, "--to", quorum)

        joins_not = {**cluster.quorum(), "controller.quorum.auto.join.enable": "false"}
        cluster.configure(joins_not, has_controllers=True)
        with cluster.running():
            cluster.check(20)
            cluster.produce(20, 30)
        before = cluster.image(quorum)
        taken = cluster.command("metadata", "copy", "--from", quorum, "--to", store)
        assert (taken.code, "name a chroot that does not exist yet" in taken.err) == (1, True), taken.err
        copied = cluster.must("metadata", "copy", "--from", quorum, "--to", other)
        assert f"{quorum} is closed." in copied
        assert cluster.image(other) == before
        assert f"its metadata was copied to {other}" in cluster.refusal(1)
        cluster.configure({"nilometer.coordination": other, **timeout})
        with cluster.running():
            cluster.check(30)
            cluster.produce(30, 40)
            cluster.check(40)
