"""Transactional producers of librdkafka that run in threads until they are stopped, while brokers die.

None of them sends offsets: up to 2.16, `send_offsets_to_transaction` of librdkafka waits for ever, whatever
its time-out, if the group's coordinator leaves the metadata meanwhile (its issues 5456 and 5511).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from nilometer.simulation.checkers.transactions import Fate, LoggedTransaction, Written

from ..chaos.crash_load import RECONNECTING
from .committed_history import CommittedHistory

CALL_S = 20.0
SURVIVING: dict[str, Any] = {
    **RECONNECTING,
    # A client that last heard of one live broker, which is then killed, has to ask the others again.
    "metadata.recovery.strategy": "rebootstrap",
}
STOP_S = 120.0
ABORTED, ABANDONED = 0.15, 0.05
"""The shares of transactions that are aborted, and that are left open by a producer that ends."""


class TransactionalWriter:
    """A thread that writes transactions and notes the fate of each.

    It replaces its producer after an error that the producer does not survive.
    """

    def __init__(
        self,
        name: str,
        settings: dict[str, Any],
        topic: str,
        partitions: int,
        run: CommittedHistory,
        chance: random.Random,
        pause_s: float,
    ) -> None:
        self.name = name
        self.progress = 0
        """The count of committed transactions."""
        self.failure: BaseException | None = None
        self.errors: list[str] = []
        """What its calls raised, with the time, for the analysis of a failure."""
        self._settings = {**SURVIVING, **settings, "transactional.id": name}
        self._topic = topic
        self._partitions = partitions
        self._history = run
        self._chance = chance
        self._pause_s = pause_s
        self._begun = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._producer: Producer | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait until its transaction has ended. Raises TimeoutError."""
        self._stopping.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.name} did not stop")

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failure = error

    def _opened(self) -> Producer:
        """The producer; a new one if there is none, for which it repeats ``init_transactions``."""
        while self._producer is None:
            made = Producer(self._settings)
            try:
                self._repeated(lambda made=made: made.init_transactions(CALL_S))
            except KafkaException:  # fatal: fenced by its own predecessor's request, which came later
                continue
            self._producer = made
        return self._producer

    def _abandon(self) -> None:
        """Leave the transaction open, if one is, as a process does that dies."""
        self._producer = None

    def _commit(self) -> None:
        producer = self._opened()
        self._repeated(lambda: producer.commit_transaction(CALL_S))

    def _abort(self) -> None:
        """Abort the transaction; if the producer cannot, the next one does so when it begins."""
        producer = self._producer
        if producer is not None:
            try:
                self._repeated(lambda: producer.abort_transaction(CALL_S))
            except KafkaException:
                self._abandon()

    def _repeated(self, call: Callable[[], None]) -> None:
        """Make a call of the transactional producer until it does not raise a retriable error."""
        while True:
            try:
                return call()
            except KafkaException as failed:
                self.note(failed)
                if not failed.args[0].retriable():
                    raise

    def note(self, failed: KafkaException) -> None:
        self.errors.append(f"{time.strftime('%X')} {self.name}: {failed!r}")

    def _work(self) -> None:
        while not self._stopping.wait(self._pause_s):
            self._opened()
            transaction = self._history.begin(self.name)
            try:
                self._transact(transaction)
            except KafkaException as failed:
                self.note(failed)
                self._abort()

    def _transact(self, transaction: LoggedTransaction) -> None:
        self._begun += 1
        producer = self._opened()
        producer.begin_transaction()
        refused = self._send(producer, transaction)
        end = self._chance.random()
        if end < ABANDONED:
            self._abandon()
        elif end > 1 - ABORTED or not self._delivered(producer, refused):
            self._abort()
        else:
            transaction.fate = Fate.UNKNOWN
            self._commit()
            transaction.fate = Fate.COMMITTED
            self.progress += 1

    @staticmethod
    def _delivered(producer: Producer, refused: list[KafkaError]) -> bool:
        """Wait until each record has an outcome: librdkafka limits the time that it takes."""
        while producer.flush(CALL_S):
            pass
        return not refused

    def _send(self, producer: Producer, transaction: LoggedTransaction) -> list[KafkaError]:
        """Send to two partitions or more; return a list to which refused deliveries will be appended."""
        refused: list[KafkaError] = []
        first = self._chance.randrange(self._partitions)
        for number in range(2 + self._chance.randrange(2 * self._partitions)):
            partition = (first + number) % self._partitions
            value = f"{self.name}-{self._begun}-{number}"
            written = transaction.write(f"{self._topic}-{partition}", value)
            producer.produce(
                self._topic, value.encode(), partition=partition, on_delivery=_outcome(written, refused)
            )
        return refused


def _outcome(written: Written, refused: list[KafkaError]) -> Callable[[KafkaError | None, Message], None]:
    def reported(error: KafkaError | None, message: Message) -> None:
        if error is None:
            written.offset = message.offset()
        else:
            refused.append(error)

    return reported
