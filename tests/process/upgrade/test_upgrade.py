"""Two versions of the package side by side: the data folder of the earlier one, brokers upgraded in turn."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka
import pytest

from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.quorum_brokers import QuorumBrokers
from support.eventually import eventually
from support.unpacking import unpack
from support.upgrade.earlier_package import DATA_FOLDER, PACKAGE, THIS_VERSION, WITH_QUORUM, program
from support.upgrade.filled_folder import SETTINGS, check, read, write

WAIT_S = 60.0
TOPIC, PARTITIONS = "numbers", 2
PROGRESS = 50
"""How many records are acknowledged before and after each change of version."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """Python's arguments that start a broker of the earlier version."""
    return program(unpack(PACKAGE, tmp_path_factory.mktemp("earlier-version")))


def test_the_data_folder_of_the_earlier_version_is_served_and_added_to(tmp_path: Path) -> None:
    broker = NilometerBroker(unpack(DATA_FOLDER, tmp_path / "data"), SETTINGS)
    with broker:
        check(broker.bootstrap)
        write(broker.bootstrap)
    with broker:
        check(broker.bootstrap, times_written=2)
    assert "Traceback" not in broker.output


def test_the_earlier_version_goes_on_with_what_this_one_wrote(tmp_path: Path, earlier: Sequence[str]) -> None:
    """No level of a feature was raised, so the way back is open."""
    broker = NilometerBroker(unpack(DATA_FOLDER, tmp_path / "data"), SETTINGS)
    with broker:
        write(broker.bootstrap)
    broker.program = earlier
    with broker:
        check(broker.bootstrap, times_written=2)
    assert "Traceback" not in broker.output


class Load(threading.Thread):
    """Writes numbers to the partitions in turn, each once, and keeps which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._ends = threading.Event()
        self.acknowledged: list[int] = []
        self.failures: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._ends.is_set():
            self._producer.produce(
                TOPIC, f"{number}".encode(), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            number += 1
            self._producer.poll(0.01)
        if self._producer.flush(WAIT_S):
            self.failures.append("some records were not acknowledged")

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(int(message.value() or b""))
        else:
            self.failures.append(str(error))

    def wait_progress(self) -> None:
        goal = len(self.acknowledged) + PROGRESS
        eventually(lambda: len(self.acknowledged) >= goal, "records are acknowledged", WAIT_S)

    def end(self) -> None:
        self._ends.set()
        self.join()


def test_three_brokers_are_upgraded_one_at_a_time_under_load(tmp_path: Path, earlier: Sequence[str]) -> None:
    upgrade_under_load(NilometerCluster(tmp_path, 3, SETTINGS), earlier)


def test_the_three_voters_of_a_quorum_are_upgraded_one_at_a_time_under_load(tmp_path: Path) -> None:
    earlier = program(unpack(WITH_QUORUM, tmp_path / "earlier-version"))
    upgrade_under_load(QuorumBrokers(tmp_path / "cluster", 3, SETTINGS), earlier)


def upgrade_under_load(cluster: NilometerCluster, earlier: Sequence[str]) -> None:
    """The first broker also goes back once, and forth again: two versions work together in every mixture."""
    for broker in cluster.brokers.values():
        broker.program = earlier
    with cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        load = Load(cluster.bootstrap)
        load.start()
        load.wait_progress()
        forth = [(broker_id, THIS_VERSION) for broker_id in (1, 2, 3)]
        for broker_id, version in (forth[0], (1, earlier), *forth):
            change_version(cluster, broker_id, version)
            load.wait_progress()
        load.end()
        assert load.failures == []
        numbers = [int(value) for value in read(cluster.bootstrap, TOPIC, PARTITIONS, len(load.acknowledged))]
        assert sorted(numbers) == sorted(load.acknowledged), "each acknowledged record is there, once"
        for partition in range(PARTITIONS):
            own = [number for number in numbers if number % PARTITIONS == partition]
            assert own == sorted(own)
        assert "Traceback" not in cluster.output()


def change_version(cluster: NilometerCluster, broker_id: int, version: Sequence[str]) -> None:
    assert cluster.stop(broker_id) == 0
    cluster.brokers[broker_id].program = version
    cluster.start(broker_id)
    cluster.wait_full_isr(TOPIC, WAIT_S)
