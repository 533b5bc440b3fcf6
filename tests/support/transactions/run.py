"""Transactional clients on a cluster of three brokers that are killed; at the end everything is judged.

    with TransactionalRun("kills", folder, seed=7, families=[…]) as run:
        run.play(kills=50)

Leaving the block ends the faults, stops the clients and checks: every committed record is read once and in
the order of its writer, no record of an aborted transaction is read, no transaction is read in part, each
committed record was transformed once, no partition is held back by a transaction that never ends.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as Place

from nilometer.client.admin.admin import Admin
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.simulation.checkers.transactions import Fate, Visible, not_consumed
from nilometer.wire.errors import KafkaError

from ..applications.committed_reader import CommittedReader
from ..brokers.nilometer_cluster import NilometerCluster
from ..chaos.run import KEPT, OVERRIDES
from ..eventually import eventually
from ..evidence import record as evidence
from ..evidence.jepsen_history import Fault
from ..simulation.history import History, Seen, Send
from .committed_history import LAST, CommittedHistory
from .families import PARTITIONS, TOPIC, Family

WAIT_S = 120.0
SETTINGS = {
    **OVERRIDES,
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}
LATEST = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
KILLED = {
    "transactions": "kill a coordinator of transactions",
    "group": "kill a coordinator of groups",
    "leader": "kill a leader",
    "controller": "kill the controller",
    "two": "kill two brokers at once",
}
LED = {"transactions": "__transaction_state", "group": "__consumer_offsets", "leader": TOPIC}
"""The topic whose leader is killed, by the kind of the kill."""
PLACES = [f"{TOPIC}-{partition}" for partition in range(PARTITIONS)]


class TransactionalRun:
    def __init__(
        self,
        name: str,
        folder: Path,
        seed: int,
        open_families: Callable[[str, CommittedHistory, random.Random], list[Family]],
        **cluster_options: Any,
    ) -> None:
        self._name = name
        self._folder = folder
        self._seed = seed
        self._chance = random.Random(seed)
        self._open_families = open_families
        self._families: list[Family] = []
        self._run = CommittedHistory()
        self._timeline: list[str] = []
        self._faulty: list[Fault] = []
        self._found: list[str] = []
        self._began = time.monotonic()
        self.cluster = NilometerCluster(folder, 3, SETTINGS, **cluster_options)
        self.kills = 0
        self._faults = Counter[str]()

    def __enter__(self) -> TransactionalRun:
        try:
            self.cluster.start()
            self.cluster.create_topic(TOPIC, PARTITIONS)
            self._families = self._open_families(self.cluster.bootstrap, self._run, self._chance)
            for family in self._families:
                if family.output is not None:
                    self.cluster.create_topic(family.output)
                family.start()
            self.wait_progress()
        except BaseException:
            self._keep()
            self.cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._judge()
        except BaseException as wrong:
            self._keep()
            self._keep_evidence(self._found or [str(wrong)])
            raise
        else:
            if kind is not None:
                self._keep()
            self._keep_evidence([] if kind is None else [f"{kind.__name__}: {error}"])
        finally:
            self.cluster.close()

    # --- faults

    def play(self, kills: int) -> None:
        """Kill brokers ``kills`` times: coordinators, leaders, the controller, and sometimes two at once."""
        while self.kills < kills:
            kinds = ["transactions", "leader", "group", "controller", "two"]
            self._chance.shuffle(kinds)
            for kind in kinds:
                if self.kills < kills:
                    self._kill(kind, kills - self.kills)

    def _kill(self, kind: str, left: int) -> None:
        victims = self._victims(kind)[:left]
        self._note(f"kills {victims}: {kind}")
        self._faults[KILLED[kind]] += 1
        self.cluster.kill(*victims)
        self.kills += len(victims)
        if len(victims) == 1 and self._chance.random() < 0.7:
            self.wait_progress()  # the others do without it
        self.cluster.start(*victims)
        self.wait_progress()
        for topic in LED.values():
            self.cluster.wait_full_isr(topic, WAIT_S)

    def _victims(self, kind: str) -> list[int]:
        if kind == "two":
            return self._chance.sample(sorted(self.cluster.brokers), 2)
        if kind == "controller":
            found: list[int | None] = []
            eventually(lambda: found.append(self.cluster.controller()) or found[-1] is not None, kind, WAIT_S)
            return [one for one in found[-1:] if one is not None]
        partition = self._chance.randrange(PARTITIONS)
        return [self.cluster.wait_leader(LED[kind], partition, timeout_s=WAIT_S)]

    def wait_progress(self) -> None:
        """Wait until every writer and transformer has committed one more transaction."""
        before = self._progress()
        now = dict(before)

        def has_grown() -> bool:
            now.update(self._progress())
            return all(count > before[name] for name, count in now.items())

        try:
            eventually(has_grown, "each client commits a transaction", WAIT_S)
        except AssertionError as missed:
            raise AssertionError(f"{missed}: from {before} to {now}") from None

    def _progress(self) -> dict[str, int]:
        return {name: count for family in self._families for name, count in family.progress().items()}

    # --- the judgement

    def _judge(self) -> None:
        for family in self._families:
            family.stop_writers()
        self._note("the writers have stopped")
        self._wait_decided(TOPIC, PARTITIONS)
        _read_all(self.cluster.bootstrap, TOPIC, PARTITIONS, self._run.history)
        wrong = [problem for family in self._families for problem in family.stop_reader()]
        for family in self._families:
            if family.output is not None:
                wrong += self._judge_transformer(family, family.output)
        wrong += self._run.anomalies(PLACES)
        wrong += [line for line in self.cluster.output().splitlines() if "Traceback" in line]
        fates = self._run.fates()
        counts = ", ".join(f"{fates[fate]} {fate.value}" for fate in Fate)
        self._note(f"transactions: {counts}; {self.kills} kills")
        print(f"{self._name}, seed {self._seed}: {self._timeline[-1]}")
        self._found = wrong
        assert not wrong, f"{len(wrong)} findings:\n" + "\n".join(wrong[:30])
        assert fates[Fate.COMMITTED] and fates[Fate.OPEN], "who did nothing proves nothing"

    def _judge_transformer(self, family: Family, output: str) -> Iterator[str]:
        """Once it has transformed everything."""
        visible = Visible.by(self._run.history, LAST)
        committed: dict[str, int] = {}

        def is_done() -> bool:
            family.progress()  # raises if it has failed
            committed.update(_committed_offsets(self.cluster.bootstrap, output))
            return not not_consumed(visible, PLACES, committed)

        eventually(is_done, f"the transformer of {family.name} has transformed everything", WAIT_S)
        family.stop_transformer()
        self._wait_decided(output, 1)
        _read_all(self.cluster.bootstrap, output, 1, self._run.outputs)
        yield from self._run.wrong_outputs(family.name, f"{output}-0", committed)

    def _wait_decided(self, topic: str, partitions: int) -> None:
        """Wait until no transaction is open: each partition's last stable offset is its high watermark."""
        asked = {TopicPartition(topic, partition): LATEST for partition in range(partitions)}

        async def ends(admin: Admin, isolation_level: int) -> list[int]:
            found = await admin.list_offsets(asked, isolation_level=isolation_level)
            return [found[one].offset for one in asked]

        def is_decided() -> bool:
            try:
                stable = self.cluster.operate(lambda admin: ends(admin, READ_COMMITTED))
                return stable == self.cluster.operate(lambda admin: ends(admin, READ_UNCOMMITTED))
            except KafkaError:
                return False

        eventually(is_decided, f"no transaction in {topic} is open", WAIT_S)

    # --- evidence

    def _keep_evidence(self, wrong: Sequence[str]) -> None:
        if not evidence.is_wanted():
            return
        ledger, history = self._run.ledger, self._run.history
        committed = self._run.fates()[Fate.COMMITTED]
        counts = Counter[str]({"transactions committed": committed})
        counts["transactions given up"] = len(ledger.transactions) - committed
        counts["records sent"] = sum(len(one.writes) for one in ledger.transactions)
        counts["records read"] = sum(len(poll.records) for poll in history.polls)
        counts["records transformed"] = sum(len(poll.records) for poll in self._run.outputs.polls)
        reads = History([one for one in history.operations if not isinstance(one, Send)])
        evidence.keep(
            evidence.lines(reads, ledger, self._faulty),
            seed=self._seed,
            seconds=time.monotonic() - self._began,
            counts=counts,
            faults=self._faults,
            wrong=wrong,
        )

    def _note(self, what: str) -> None:
        self._faulty.append((len(self._run.history.operations), what))
        self._timeline.append(f"{time.strftime('%X')} {time.monotonic() - self._began:7.2f} s  {what}")

    def _keep(self) -> None:
        target = KEPT / f"{self._name}-seed-{self._seed}-{os.getpid()}"
        shutil.rmtree(target, ignore_errors=True)
        self.cluster.kill(*self.cluster.running)  # no file changes while they are copied
        shutil.copytree(self._folder, target, ignore_dangling_symlinks=True, dirs_exist_ok=True)
        (target / "timeline.txt").write_text("\n".join(self._timeline) + "\n")
        self._run.history.save(target / "history.jsonl")
        self._run.outputs.save(target / "outputs.jsonl")
        with (target / "transactions.txt").open("w") as file:
            file.writelines(f"{one}: {one.writes}\n" for one in self._run.ledger.transactions)
        errors = sorted(error for family in self._families for error in family.errors())
        (target / "errors.txt").write_text("\n".join(errors) + "\n")
        print("\n".join(self._timeline))
        print(f"kept: {target}")
        again = f"NILOMETER_CHAOS_SEED={self._seed} .venv/bin/pytest tests/process/chaos -m ''"
        print(f"again: {again} -k {self._name}")


def _read_all(bootstrap: str, topic: str, partitions: int, history: History) -> None:
    with CommittedReader(bootstrap, topic, partitions) as reader:
        eventually(lambda: reader.look() is not None and reader.was_at_ends(), f"{topic} is read", WAIT_S)
        records = reader.look()
    seen = [
        Seen(f"{topic}-{one.partition()}", one.offset() or 0, (one.value() or b"").decode())
        for one in records
    ]
    history.poll(LAST, seen)
    history.read_to_end(LAST)


def _committed_offsets(bootstrap: str, group: str) -> dict[str, int]:
    """The group's offsets in the inputs; none while its coordinator is away."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        found = consumer.committed([Place(TOPIC, partition) for partition in range(PARTITIONS)], WAIT_S)
    except KafkaException:
        return {}
    finally:
        consumer.close()
    return {f"{TOPIC}-{one.partition}": max(one.offset, 0) for one in found}
