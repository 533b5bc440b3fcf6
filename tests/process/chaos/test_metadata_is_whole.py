"""SPARK-41375: one transiently empty answer makes a streaming reader take all partitions for new ones."""

from __future__ import annotations

import threading
from pathlib import Path

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_cluster import NilometerCluster
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

TOPIC = "whole"
PARTITIONS = 4
KEY, VERSION = ApiKey.METADATA, 9


class _Asker:
    """Asks one broker about the topic all the time; notes each answer that is not whole."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_answer(self) -> None:
        """One that was asked for after this call."""
        self._answered.clear()
        assert self._answered.wait(30), f"{self._bootstrap} does not answer"
        self._answered.clear()
        assert self._answered.wait(30), f"{self._bootstrap} does not answer"

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with WirePeer(self._bootstrap) as peer:
                    while not self._stopping.wait(0.001):
                        self._ask(peer)
            except (OSError, ConnectionEnded):
                self._stopping.wait(0.005)  # it is down

    def _ask(self, peer: WirePeer) -> None:
        asked = (make(KEY, VERSION, "MetadataRequestTopic", name=TOPIC),)
        (topic,) = peer.ask(KEY, VERSION, topics=asked, allow_auto_topic_creation=False).topics
        error, found = ErrorCode(topic.error_code), len(topic.partitions)
        if error is not ErrorCode.none or found != PARTITIONS:
            self.wrong.append(f"{error.name}, {found} partitions")
        self._answered.set()


def test_spark_41375_a_topic_that_exists_has_all_its_partitions(tmp_path: Path) -> None:
    """From the first answer of a broker that starts to the last of one that stops, whichever others are
    down."""
    with NilometerCluster(tmp_path, 2) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        askers = {one: _Asker(broker.bootstrap) for one, broker in cluster.brokers.items()}
        for broker_id, other in ((2, 1), (1, 2)):
            cluster.kill(broker_id)
            # The controller may not know yet that the broker is dead: it could place a replica there.
            cluster.create_topic(f"beside-{broker_id}", assignments={0: (other,)})
            cluster.start(broker_id)
            askers[broker_id].wait_answer()
            assert cluster.stop(broker_id) == 0
            cluster.start(broker_id)
        cluster.kill(1, 2)
        cluster.start()
        for asker in askers.values():
            asker.wait_answer()
            asker.stop()
            assert asker.wrong == []
