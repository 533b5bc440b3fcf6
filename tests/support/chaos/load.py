"""Load on a cluster under faults: producers and consumers of two kinds, and a watcher of latest offsets.

librdkafka's clients and Nilometer's clients run in threads. All keep running through all faults, and record
what they did and read in one history. Time-outs are short, so that a client that hangs on a paused or cut-off
broker retries within a scenario.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka

from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError

from ..simulation.history import History, Outcome, Seen, Send
from ..wire.wire_peer import ConnectionEnded, WirePeer, make
from .crash_load import PADDING, RECONNECTING, Writer

PACE_S = 0.012
REQUEST_TIMEOUT_MS = 2_500
IMPATIENT: dict[str, Any] = {
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "request.timeout.ms": REQUEST_TIMEOUT_MS - 500,
    "socket.connection.setup.timeout.ms": 2_000,
}
LOG_LINES_MAX = 5_000
LATEST_PACE_S = 0.05
LATEST_TIMEOUT_S = 1.0
LATEST_SILENT_S_MAX = 30.0
LATEST_VERSION = 6
IMPATIENT_READER: dict[str, Any] = {
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "socket.connection.setup.timeout.ms": 2_000,
}
OWN_CLIENT: dict[str, int | str] = {
    "request.timeout.ms": REQUEST_TIMEOUT_MS,
    "socket.connection.setup.timeout.ms": 2_000,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
}
POLL_S = 0.1
NEVER_APPENDED = frozenset({ErrorCode.message_too_large, ErrorCode.invalid_required_acks})


class TailReader:
    """A librdkafka consumer that reads every partition from its start until stopped.

    If it loses its position, that is a finding.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        history: History,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.at: dict[int, int] = dict.fromkeys(range(partitions), -1)
        self.findings: list[str] = []
        self._topic = topic
        self._history = history
        self._stopping = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 50,
                **RECONNECTING,
                **IMPATIENT_READER,
                **(settings or {}),
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(partitions)]
        )
        history.moved(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            seen: list[Seen] = []
            for message in self._consumer.consume(1000, timeout=POLL_S):
                error = message.error()
                if error is None:
                    self.at[message.partition()] = message.offset()
                    place = f"{self._topic}-{message.partition()}"
                    seen.append(Seen(place, message.offset(), message.value().decode()))
                elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    self.findings.append(f"{self.name} lost its position: {error}")
            if seen:
                self._history.poll(self.name, seen)


class LatestWatcher:
    """Checks that the latest offset of a partition never decreases, within a leader epoch or in a later one.

    A thread per broker sends ListOffsets requests, without a client's cache or retries; only leaders respond
    with offsets. A response is compared with those that had arrived before it was requested. A leader that
    does not know yet that it was replaced may return an older offset, as in Apache Kafka: only responses of
    the newest epoch are checked.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.findings: list[str] = []
        self.answers = 0
        self._topic = topic
        self._seen: dict[int, tuple[int, int]] = dict.fromkeys(range(partitions), (-1, -1))
        """Partition to the newest leader epoch and the largest offset of all responses."""
        self._answered_at = dict.fromkeys(range(partitions), time.monotonic())
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(broker,), name=f"latest {broker}", daemon=True)
            for broker in bootstrap.split(",")
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; the cluster must be healthy: a partition without a recent response is a finding."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        for partition, answered_at in self._answered_at.items():
            silent_s = time.monotonic() - answered_at
            if silent_s > LATEST_SILENT_S_MAX:
                self.findings.append(
                    f"no broker answered the latest offset of {self._topic}-{partition} for {silent_s:.0f} s"
                )

    def _run(self, broker: str) -> None:
        while not self._stopping.wait(LATEST_PACE_S):
            try:
                with WirePeer(broker, "latest", timeout_s=LATEST_TIMEOUT_S) as peer:
                    while not self._stopping.wait(LATEST_PACE_S):
                        self._ask(broker, peer)
            except (OSError, ConnectionEnded):
                continue  # down, paused or cut off: retry on a new connection

    def _ask(self, broker: str, peer: WirePeer) -> None:
        with self._lock:
            before = dict(self._seen)
        key, version = ApiKey.LIST_OFFSETS, LATEST_VERSION
        asked = tuple(
            make(key, version, "ListOffsetsPartition", partition_index=partition, timestamp=-1)
            for partition in before
        )
        topic = make(key, version, "ListOffsetsTopic", name=self._topic, partitions=asked)
        answer = peer.ask(key, version, replica_id=-1, isolation_level=1, topics=(topic,))
        for part in answer.topics[0].partitions:
            if part.error_code == ErrorCode.none:
                self._judge(broker, part.partition_index, part.leader_epoch, part.offset, before)

    def _judge(
        self, broker: str, partition: int, epoch: int, offset: int, before: Mapping[int, tuple[int, int]]
    ) -> None:
        epoch_before, offset_before = before[partition]
        with self._lock:
            self.answers += 1
            self._answered_at[partition] = time.monotonic()
            if epoch >= epoch_before and offset < offset_before:
                self.findings.append(
                    f"latest of {self._topic}-{partition} went from {offset_before} in epoch {epoch_before} "
                    f"to {offset} in epoch {epoch}: {broker} at {time.strftime('%X')}"
                )
            newest, largest = self._seen[partition]
            self._seen[partition] = max(newest, epoch), max(largest, offset)


class OwnClients:
    """Nilometer's producer and consumer, each on an event loop in a thread."""

    name = "own"

    def __init__(self, bootstrap: str, topic: str, partitions: int, history: History) -> None:
        self.acknowledged_in: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self.at: dict[int, int] = dict.fromkeys(range(partitions), -1)
        self.findings: list[str] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._history = history
        self._writing = threading.Event()
        self._reading = threading.Event()
        self._writing.set()
        self._reading.set()
        self._writer = threading.Thread(target=self._run, args=(self._write,), name="own-writer", daemon=True)
        self._reader = threading.Thread(target=self._run, args=(self._read,), name="own-reader", daemon=True)

    def start(self) -> None:
        self._writer.start()
        self._reader.start()

    def stop_writing(self, timeout_s: float) -> None:
        self._writing.clear()
        self._writer.join(timeout_s)
        if self._writer.is_alive():
            raise TimeoutError("our own producer still waits for acknowledgements")

    def stop_reading(self) -> None:
        self._reading.clear()
        self._reader.join()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            asyncio.run(work())
        except Exception as error:
            self.findings.append(f"our own client ended: {error!r}")

    async def _write(self) -> None:
        config = {"bootstrap.servers": self._bootstrap, "linger.ms": 2, **OWN_CLIENT}
        number = 0
        async with Producer(Runtime.system(), config) as producer:
            while self._writing.is_set():
                partition = number % len(self.at)
                value = f"own-{number}{PADDING}"
                send = self._history.send("own", f"{self._topic}-{partition}", value)
                delivery = await producer.send(self._topic, value.encode(), partition=partition)
                delivery.add_done_callback(self._outcome_of(send))
                number += 1
                await asyncio.sleep(PACE_S)

    def _outcome_of(self, send: Send) -> Callable[[Delivery], None]:
        def reported(delivery: Delivery) -> None:
            try:
                metadata = delivery.result()
            except KafkaError as error:
                self.findings.append(f"{send.partition} {send.value[:20]}: {error}")
                if error.code in NEVER_APPENDED:
                    send.failed()
            else:
                send.outcome = Outcome.OK
                send.offset = metadata.offset if metadata.offset >= 0 else None
                self.acknowledged_in[metadata.partition] += 1

        return reported

    async def _read(self) -> None:
        config = {"bootstrap.servers": self._bootstrap, "auto.offset.reset": "none", **OWN_CLIENT}
        async with Consumer(Runtime.system(), config) as consumer:
            partitions = [TopicPartition(self._topic, number) for number in self.at]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, 0)
            self._history.moved("own-reader")
            while self._reading.is_set():
                try:
                    records = await consumer.poll(1000, timeout_ms=100)
                except KafkaError as error:
                    self.findings.append(f"our own reader: {error}")
                    await asyncio.sleep(POLL_S)
                    continue
                seen = [
                    Seen(f"{r.topic}-{r.partition}", r.offset, (r.value or b"").decode()) for r in records
                ]
                for record in records:
                    self.at[record.partition] = record.offset
                if seen:
                    self._history.poll("own-reader", seen)


class _KeptLines(logging.Handler):
    """Keeps the newest log lines, for the analysis of a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class ChaosLoad:
    """All clients of a chaos run together, with their history and findings."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        writers: int = 2,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.history = History()
        self.topic = topic
        self.partitions = partitions
        self.bootstrap = bootstrap
        self.log = _KeptLines()
        """The log of the idempotent producers about their producer ids and sequences."""
        logger = logging.Logger("librdkafka", logging.DEBUG)
        logger.addHandler(self.log)
        telling: dict[str, Any] = {"debug": "eos", "log_level": 7, "logger": logger}
        self.writers = [
            Writer(
                f"w{number}",
                bootstrap,
                topic,
                partitions,
                self.history,
                PACE_S,
                {**IMPATIENT, **telling, "client.id": f"w{number}", **(settings or {})},
            )
            for number in range(writers)
        ]
        self.reader = TailReader("tail", bootstrap, topic, partitions, self.history)
        self.latest = LatestWatcher(bootstrap, topic, partitions)
        self.own = OwnClients(bootstrap, topic, partitions, self.history)

    def start(self) -> None:
        for each in (*self.writers, self.reader, self.latest, self.own):
            each.start()

    @property
    def acknowledged(self) -> dict[tuple[str, int], int]:
        """The number of acknowledged records by producer and partition."""
        return {
            (each.name, partition): count
            for each in (*self.writers, self.own)
            for partition, count in each.acknowledged_in.items()
        }

    def stop_writing(self, timeout_s: float = 60.0) -> None:
        """Stop the producers, and wait for the outcome of every record."""
        for writer in self.writers:
            writer.stop(timeout_s)
        self.own.stop_writing(timeout_s)

    def stop_reading(self) -> None:
        self.reader.stop()
        self.latest.stop()
        self.own.stop_reading()

    @property
    def findings(self) -> list[str]:
        """Errors that no client may ever see, besides those that the history shows."""
        fatal = [f"{writer.name}: {error}" for writer in self.writers for error in writer.fatal_errors]
        return [*fatal, *self.reader.findings, *self.latest.findings, *self.own.findings]
