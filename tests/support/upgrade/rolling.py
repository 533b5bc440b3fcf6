"""Brokers that change their version one at a time, while records are written: each must be there, once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka

from ..brokers.nilometer_cluster import NilometerCluster
from ..eventually import eventually
from ..logs.segments import segment_files
from .earlier_package import THIS_VERSION
from .filled_folder import read

WAIT_S = 60.0
TOPIC, PARTITIONS = "numbers", 2
TIERED = {
    "remote.storage.enable": "true",
    "segment.ms": "300",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
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


def in_remote_storage(folder: Path) -> dict[str, str]:
    """Return the settings of brokers that copy segments to ``folder``, which is made."""
    folder.mkdir()
    return {
        "remote.log.storage.system.enable": "true",
        "nilometer.tier.uri": folder.as_uri(),
        "nilometer.tier.grace.ms": "0",
        "remote.log.manager.task.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.segment.delete.delay.ms": "0",
    }


def upgrade_under_load(
    cluster: NilometerCluster, earlier: Sequence[str], *, and_back: bool = False, tier: Path | None = None
) -> None:
    """The first broker also goes back once, and forth again: two versions work together in every mixture.

    ``and_back``: afterwards all go back, and forth again. ``tier``: the remote storage of the brokers, where
    the records are then.
    """
    for broker in cluster.brokers.values():
        broker.program = earlier
    with cluster:
        cluster.create_topic(TOPIC, PARTITIONS, configs={} if tier is None else TIERED)
        load = Load(cluster.bootstrap)
        load.start()

        def wait_progress() -> None:
            load.wait_progress()
            if tier is not None:
                wait_copied(tier)

        wait_progress()
        forth = [(broker_id, THIS_VERSION) for broker_id in (1, 2, 3)]
        back = [(broker_id, earlier) for broker_id in (1, 2, 3)]
        for broker_id, version in (forth[0], back[0], *forth, *((*back, *forth) if and_back else ())):
            change_version(cluster, broker_id, version)
            wait_progress()
        load.end()
        assert load.failures == []
        if tier is not None:
            first = [segment_files(one.data_dir, TOPIC, 0)[0] for one in cluster.brokers.values()]
            assert all(int(path.stem) > 0 for path in first), "what is read is in remote storage only"
        numbers = [int(value) for value in read(cluster.bootstrap, TOPIC, PARTITIONS, len(load.acknowledged))]
        assert sorted(numbers) == sorted(load.acknowledged), "each acknowledged record is there, once"
        for partition in range(PARTITIONS):
            own = [number for number in numbers if number % PARTITIONS == partition]
            assert own == sorted(own)
        assert "Traceback" not in cluster.output()


def wait_copied(tier: Path) -> None:
    """Wait until a segment of each partition has been copied to remote storage that was not there before."""

    def copied() -> dict[Path, set[str]]:
        found: dict[Path, set[str]] = {}
        for path in tier.glob("*/*/*/*.log"):
            found.setdefault(path.parent, set()).add(path.name)
        return found

    before = copied()
    eventually(
        lambda: len(now := copied()) == PARTITIONS and all(now[one] - before.get(one, set()) for one in now),
        "segments of all partitions are copied to remote storage",
        WAIT_S,
    )


def change_version(cluster: NilometerCluster, broker_id: int, version: Sequence[str]) -> None:
    assert cluster.stop(broker_id) == 0
    cluster.brokers[broker_id].program = version
    cluster.start(broker_id)
    cluster.wait_full_isr(TOPIC, WAIT_S)
