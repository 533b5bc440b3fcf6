"""Two clients that notice when a partition can be written again: librdkafka, and one that is only eager.

The first is what users have; much of its time may be its own. The second shows what the cluster needs: it
asks every broker who leads, and that one to take a record, again and again without a pause worth mentioning.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tests.support.wire.wire_peer import ConnectionEnded, WirePeer, make

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder

TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 2.0
EVERY_S = 0.005
RECORD = b"x" * 100
METADATA_VERSION, PRODUCE_VERSION = 9, 9


class Pulse:
    """librdkafka, at its defaults, sends a small record every few milliseconds while the block lasts."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._since = 0.0
        self._acknowledged_at: float | None = None
        """When the first record sent after ``_since`` was."""
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse")

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_acknowledged(self, since: float) -> float:
        """When the first record sent after ``since``, which is now or was a moment ago, was acknowledged."""
        with self._changed:
            self._since, self._acknowledged_at = since, None
            self._changed.wait_for(
                lambda: self._acknowledged_at is not None or self._error is not None, TIMEOUT_S
            )
            if self._error is not None or self._acknowledged_at is None:
                raise RuntimeError("librdkafka got no acknowledgement") from self._error
            return self._acknowledged_at

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                on_delivery = partial(self._on_delivery, sent_at=time.monotonic())
                self._producer.produce(self._topic, RECORD, on_delivery=on_delivery)
                self._producer.poll(EVERY_S)
            self._producer.flush(TIMEOUT_S)
        except (KafkaException, BufferError) as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _on_delivery(self, error: KafkaError | None, message: Message, sent_at: float) -> None:
        if error is not None:
            raise KafkaException(error)
        with self._changed:
            if sent_at > self._since and self._acknowledged_at is None:
                self._acknowledged_at = time.monotonic()
                self._changed.notify_all()


def acknowledged_at(bootstrap: str, topic: str, other_than: int) -> float:
    """When one record was acknowledged by the leader of partition 0, once that is another broker."""
    builder = BatchBuilder()
    builder.append(time.time_ns() // 1_000_000, None, RECORD, ())
    batch = builder.build()
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for address in bootstrap.split(","):
            try:
                leader = _leader(address, topic, other_than)
                if leader is not None and _takes(leader, topic, batch):
                    return time.monotonic()
            except (OSError, ConnectionEnded):
                pass  # it is the one that died, or about to learn of that
        time.sleep(EVERY_S)
    raise RuntimeError("no broker acknowledged a record")


def _leader(address: str, topic: str, other_than: int) -> str | None:
    """Where the broker at ``address`` says partition 0 is led, unless nowhere or by ``other_than``."""
    with WirePeer(address, timeout_s=ANSWER_TIMEOUT_S) as peer:
        named = make(ApiKey.METADATA, METADATA_VERSION, "MetadataRequestTopic", name=topic)
        answer = peer.ask(ApiKey.METADATA, METADATA_VERSION, topics=(named,), allow_auto_topic_creation=False)
    leader = answer.topics[0].partitions[0].leader_id if answer.topics[0].partitions else -1
    nodes = {node.node_id: f"{node.host}:{node.port}" for node in answer.brokers}
    return nodes.get(leader) if leader != other_than else None


def _takes(address: str, topic: str, batch: bytes) -> bool:
    key, version = ApiKey.PRODUCE, PRODUCE_VERSION
    partition = make(key, version, "PartitionProduceData", index=0, records=batch)
    data = make(key, version, "TopicProduceData", name=topic, partition_data=(partition,))
    with WirePeer(address, timeout_s=ANSWER_TIMEOUT_S) as peer:
        answer = peer.ask(key, version, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=(data,))
    return answer.responses[0].partition_responses[0].error_code is ErrorCode.none
