"""Load on a broker that is killed: idempotent producers that write all the time, and a reader.

A producer keeps running when the broker is killed: librdkafka sends unacknowledged records again, and the
restarted broker must recognise duplicates from its log. The outcome of records that it gives up is unknown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka

from ..simulation.history import History, Seen, Send

FAILED_FOR_CERTAIN = frozenset(
    {
        confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE,
        confluent_kafka.KafkaError.INVALID_REQUIRED_ACKS,
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
PADDING = "." * 400
RECONNECTING: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # Otherwise librdkafka drops all metadata with its last broker, and refreshes it a second too late.
    "metadata.recovery.strategy": "none",
    "topic.metadata.refresh.fast.interval.ms": 20,
    "log_level": 0,
}
READ_TIMEOUT_S = 30.0
GATHER_S = 0.03
"""How long `consume` waits for its batch to fill."""


class Writer:
    """A producer in a thread that writes to every partition in turn until stopped."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        history: History,
        pace_s: float = 0.004,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._topic = topic
        self._partitions = partitions
        self._history = history
        self._pace_s = pace_s
        self._stopping = threading.Event()
        self._sent = 0
        self._config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 2,
            "retry.backoff.ms": 20,
            "delivery.timeout.ms": 120_000,
            "socket.timeout.ms": 10_000,
            **RECONNECTING,
            **(settings or {}),
        }
        self._producer = confluent_kafka.Producer(self._config)
        self.fatal_errors: list[str] = []
        self.acknowledged = 0
        self.acknowledged_in: dict[int, int] = dict.fromkeys(range(partitions), 0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 60.0) -> None:
        """Stop sending, and wait for the outcome of every record. Raises TimeoutError."""
        self._stopping.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive() or self._producer.flush(timeout_s):
            raise TimeoutError(f"{self.name} still waits for acknowledgements")

    def _run(self) -> None:
        while not self._stopping.wait(self._pace_s):
            partition = self._sent % self._partitions
            value = f"{self.name}-{self._sent}{PADDING}"
            send = self._history.send(self.name, f"{self._topic}-{partition}", value)
            try:
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._outcome_of(send)
                )
            except BufferError:
                send.failed()  # it was never sent
            except confluent_kafka.KafkaException as refusal:
                send.failed()
                self._renew(str(refusal))
            self._sent += 1
            self._producer.poll(0)

    def _renew(self, reason: str) -> None:
        """Replace the producer after a fatal error, which an idempotent producer cannot recover from."""
        self.fatal_errors.append(reason)
        self._producer.flush(READ_TIMEOUT_S)
        self._producer = confluent_kafka.Producer(self._config)

    def _outcome_of(self, send: Send) -> Callable[[Any, Any], None]:
        def reported(error: Any, message: Any) -> None:
            if error is None:
                send.acknowledged(message.offset())
                self.acknowledged += 1
                self.acknowledged_in[message.partition()] += 1
            elif error.code() in FAILED_FOR_CERTAIN:
                send.failed()

        return reported


class Reader:
    """A consumer that keeps its position across the broker's restarts."""

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
        self._history = history
        self._topic = topic
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.wait.max.ms": 20,
                "fetch.error.backoff.ms": 20,
                **RECONNECTING,
                **(settings or {}),
            }
        )
        self._consumer.assign(
            [confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(partitions)]
        )
        history.moved(name)
        self.at: dict[int, int] = dict.fromkeys(range(partitions), -1)

    def read_past(self, offsets: dict[int, int]) -> list[Seen]:
        """Read until every partition was read up to and including its offset; return the records."""
        found: list[Seen] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while any(self.at[partition] < offset for partition, offset in offsets.items()):
            messages = self._consumer.consume(1000, timeout=GATHER_S)
            if not messages and time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is at {self.at} and waits for {offsets}")
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            seen = [self._seen(message) for message in messages if message.error() is None]
            self._history.poll(self.name, seen)
            found += seen
        return found

    def _seen(self, message: Any) -> Seen:
        self.at[message.partition()] = message.offset()
        return Seen(f"{self._topic}-{message.partition()}", message.offset(), message.value().decode())

    def ends(self) -> dict[int, int]:
        """Return the last readable offset of each partition."""
        return {
            partition: self._consumer.get_watermark_offsets(
                confluent_kafka.TopicPartition(self._topic, partition), timeout=READ_TIMEOUT_S
            )[1]
            - 1
            for partition in self.at
        }

    def close(self) -> None:
        self._consumer.close()
