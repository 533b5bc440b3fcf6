"""Brokers that change their version one at a time, while records are written: each must be there, once."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import confluent_kafka

from ..brokers.nilometer_cluster import NilometerCluster
from ..eventually import eventually
from .earlier_package import THIS_VERSION
from .filled_folder import read

WAIT_S = 60.0
TOPIC, PARTITIONS = "numbers", 2
PROGRESS = 50
"""How many records are acknowledged before and after each change of version."""


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


def upgrade_under_load(cluster: NilometerCluster, earlier: Sequence[str], *, and_back: bool = False) -> None:
    """The first broker also goes back once, and forth again: two versions work together in every mixture.

    ``and_back``: afterwards all go back, and forth again.
    """
    for broker in cluster.brokers.values():
        broker.program = earlier
    with cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        load = Load(cluster.bootstrap)
        load.start()
        load.wait_progress()
        forth = [(broker_id, THIS_VERSION) for broker_id in (1, 2, 3)]
        back = [(broker_id, earlier) for broker_id in (1, 2, 3)]
        for broker_id, version in (forth[0], back[0], *forth, *((*back, *forth) if and_back else ())):
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
