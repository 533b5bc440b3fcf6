"""The transactional clients of two families, librdkafka's and Kafka's own, behind one interface.

Each family has writers and a ``read_committed`` reader; Kafka's has a transformer, too, which reads the topic
and writes each record to another one, with its offset in the same transaction. All run until stopped.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from nilometer.simulation.checkers.transactions import Fate

from ..chaos.load import TailReader
from ..kafka.java_driver import JavaDriver
from ..simulation.history import Seen
from .clients import (
    ABANDONED,
    ABORTED,
    SURVIVING,
    TransactionalWriter,
)
from .committed_history import CommittedHistory

TOPIC = "inputs"
PARTITIONS = 3
PAUSE_S = 0.05
STOP_S = 120
COMMITTED_ONLY = {"isolation.level": "read_committed"}
GROUP_OFFSETS = {**COMMITTED_ONLY, "enable.auto.commit": "false", "auto.offset.reset": "earliest"}
TRANSACTION_TIMEOUT_MS = "60000"


class Family(Protocol):
    name: str
    output: str | None
    """The topic that its transformer writes, if it has one; the transformer's group has the same name."""

    def start(self) -> None: ...

    def progress(self) -> Mapping[str, int]:
        """Return the count of committed transactions of each writer and transformer.

        Raises AssertionError if a client has failed.
        """
        ...

    def errors(self) -> list[str]:
        """Return what the clients' calls raised, for the analysis of a failure."""
        ...

    def stop_writers(self) -> None: ...

    def stop_transformer(self) -> None: ...

    def stop_reader(self) -> list[str]:
        """Add its polls to the history, and return what went wrong with it."""
        ...


class LibrdkafkaFamily:
    name = "librdkafka"
    output: str | None = None

    def __init__(self, bootstrap: str, writers: int, run: CommittedHistory, chance: random.Random) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 2,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "retry.backoff.ms": 50,
        }
        self._writers = [
            TransactionalWriter(
                f"librdkafka-{number}",
                settings,
                TOPIC,
                PARTITIONS,
                run,
                random.Random(chance.random()),
                PAUSE_S,
            )
            for number in range(writers)
        ]
        self._reader = TailReader(
            f"tail-{self.name}", bootstrap, TOPIC, PARTITIONS, run.history, {**SURVIVING, **COMMITTED_ONLY}
        )

    def start(self) -> None:
        for each in (*self._writers, self._reader):
            each.start()

    def progress(self) -> Mapping[str, int]:
        for each in self._writers:
            assert each.failure is None, f"{each.name} failed: {each.failure!r}"
        return {each.name: each.progress for each in self._writers}

    def errors(self) -> list[str]:
        return [error for each in self._writers for error in each.errors]

    def stop_writers(self) -> None:
        for each in self._writers:
            each.stop()

    def stop_transformer(self) -> None:
        raise NotImplementedError("this family has none")

    def stop_reader(self) -> list[str]:
        self._reader.stop()
        return self._reader.findings


class JavaFamily:
    name = "java"
    output: str | None = "outputs-of-java"

    def __init__(
        self, java: JavaDriver, bootstrap: str, writers: int, run: CommittedHistory, chance: random.Random
    ) -> None:
        self._java = java
        self._run = run
        self._bootstrap = bootstrap
        self._writers = {f"java-{number}": chance.randrange(1 << 30) for number in range(writers)}
        self._transformer = f"transformer-{self.name}"
        self._reader = f"tail-{self.name}"

    def start(self) -> None:
        bootstrap = {"bootstrap.servers": self._bootstrap}
        config = {**bootstrap, "linger.ms": "2", "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        places = {"topic": TOPIC, "partitions": PARTITIONS}
        for name, seed in self._writers.items():
            how = {"pause_ms": int(PAUSE_S * 1000), "aborted": ABORTED, "abandoned": ABANDONED, "seed": seed}
            self._java.run("load_start", kind="writer", name=name, config=config, **places, **how)
        reading = {**bootstrap, "group.id": self.output, "session.timeout.ms": "10000", **GROUP_OFFSETS}
        self._java.run(
            "load_start",
            kind="transformer",
            name=self._transformer,
            config=config,
            reading={"config": reading},
            topic=TOPIC,
            output=self.output,
        )
        committed_only = {**bootstrap, **COMMITTED_ONLY, "auto.offset.reset": "none"}
        self._java.run("load_start", kind="reader", name=self._reader, config=committed_only, **places)

    def progress(self) -> Mapping[str, int]:
        found: dict[str, dict[str, Any]] = self._java.run("load_progress")
        for name, each in found.items():
            assert each["failure"] is None, f"{name} failed: {each['failure']}"
        return {name: each["progress"] for name, each in found.items() if name != self._reader}

    def errors(self) -> list[str]:
        return []  # the JVM prints them

    def stop_writers(self) -> None:
        for name in self._writers:
            for noted in self._stop(name):
                transaction = self._run.begin(name)
                transaction.fate = Fate[noted["fate"]]
                for written in noted["writes"]:
                    partition = f"{TOPIC}-{written['partition']}"
                    transaction.write(partition, written["value"]).offset = written.get("offset")

    def stop_transformer(self) -> None:
        self._stop(self._transformer)

    def stop_reader(self) -> list[str]:
        self._run.history.moved(self._reader)
        for poll in self._stop(self._reader):
            seen = [Seen(f"{TOPIC}-{partition}", offset, value) for partition, offset, value in poll]
            self._run.history.poll(self._reader, seen)
        return []

    def _stop(self, name: str) -> Any:
        stopped: dict[str, Any] = self._java.run("load_stop", name=name, timeout_s=STOP_S)
        assert stopped["failure"] is None, f"{name} failed: {stopped['failure']}"
        return stopped["result"]
