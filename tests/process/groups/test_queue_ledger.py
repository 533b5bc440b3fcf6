"""An account of a queue's jobs from outside, while brokers and workers are killed, and workers stopped.

Each job whose put was acknowledged ends in the ledger of a worker that has done it, or in the dead-letter
topic; a job that always fails ends there.

`QUEUE_LEDGER=7 pytest -m soak tests/process/groups/test_queue_ledger.py` is the run of one seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nilometer
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.share.ledger_worker import FLAKY, GOOD, POISON, start

SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.session.timeout.ms": "15000",
    "group.share.min.session.timeout.ms": "15000",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
}
QUEUE = "ledger"
DELIVERIES_MAX = 10
LOCK_S = 5
PARTITIONS = 6
PROCESSES = 10
WORKERS_EACH = 5
KILLS = 20
JOBS_AT_ONCE = 20
SEED = os.environ.get("QUEUE_LEDGER", "1")
WAIT_S = 600.0


class Putter:
    """Puts jobs until it is stopped; knows those whose put was acknowledged."""

    def __init__(self, servers: str, chance: random.Random) -> None:
        self._servers, self._chance = servers, chance
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="putter")
        self.kinds: dict[int, str] = {}
        """By the number of each job that was acknowledged."""
        self.unknown: set[int] = set()
        """The jobs whose put ended with an error: they may be there."""
        self.failure: BaseException | None = None

    def _run(self) -> None:
        number = 0
        try:
            with nilometer.connect(self._servers) as kafka:
                queue = kafka.queue(QUEUE)
                while not self._is_stopped.wait(0.1):
                    kinds = self._chance.choices((GOOD, FLAKY, POISON), weights=(90, 8, 2), k=JOBS_AT_ONCE)
                    batch = dict(enumerate(kinds, start=number))
                    number += len(batch)
                    try:
                        queue.put_many({"number": one, "kind": kind} for one, kind in batch.items())
                    except nilometer.KafkaError:
                        self.unknown.update(batch)
                    else:
                        self.kinds.update(batch)
        except BaseException as error:
            self.failure = error
            raise

    def __enter__(self) -> Putter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()


class Workers:
    """Processes of workers, each with a ledger of its own, which a killed one leaves to the account."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers, self._folder = servers, folder
        self._ledgers: list[Path] = []
        self.running: list[subprocess.Popen[bytes]] = []

    def start_one(self) -> None:
        path = self._folder / f"worker-{len(self._ledgers)}.txt"
        path.touch()
        self._ledgers.append(path)
        self.running.append(start(self._servers, QUEUE, path, WORKERS_EACH))

    def kill_one(self, chance: random.Random) -> None:
        victim = self.running.pop(chance.randrange(len(self.running)))
        victim.kill()
        victim.wait()
        self.start_one()

    def done(self) -> Counter[int]:
        """How often each job was done."""
        # The last line of a killed worker may be cut: such a job was not accepted.
        texts = (path.read_text() for path in self._ledgers)
        return Counter(
            int(line) for text in texts for line in text.splitlines(keepends=True) if line[-1] == "\n"
        )

    def check(self) -> None:
        """None has ended by itself."""
        ended = [process for process in self.running if process.poll() is not None]
        logs = [path.with_suffix(".log").read_text()[-2_000:] for path in self._ledgers]
        assert not ended, "\n".join(logs)


@contextmanager
def workers_of(servers: str, folder: Path) -> Iterator[Workers]:
    workers = Workers(servers, folder)
    try:
        for _ in range(PROCESSES):
            workers.start_one()
        yield workers
    finally:
        for process in workers.running:
            process.kill()
            process.wait()


@pytest.mark.soak
def test_each_job_is_done_or_in_the_dead_letter_topic(tmp_path: Path) -> None:
    print(f"QUEUE_LEDGER={SEED} pytest -m soak tests/process/groups/test_queue_ledger.py")
    chance = random.Random(SEED)
    with NilometerCluster(tmp_path / "cluster", overrides=SETTINGS) as cluster:
        with nilometer.connect(cluster.bootstrap) as kafka:
            kafka.admin.create_queue(
                QUEUE,
                partitions=PARTITIONS,
                replication_factor=3,
                max_deliveries=DELIVERIES_MAX,
                lock=f"{LOCK_S}s",
            )
        with workers_of(cluster.bootstrap, tmp_path) as workers:
            with Putter(cluster.bootstrap, random.Random(chance.random())) as putter:
                eventually(lambda: len(workers.done()) > 100, "jobs are done", timeout_s=WAIT_S)
                for _ in range(KILLS):
                    _play_round(cluster, workers, chance)
                    _grows(workers)
            assert putter.failure is None
            _settle(cluster, putter, workers)
        assert "Traceback" not in cluster.output()


def _play_round(cluster: NilometerCluster, workers: Workers, chance: random.Random) -> None:
    """Kill a broker, and perhaps a process of workers, or stop one for longer than a lock."""
    broker_id = chance.choice(sorted(cluster.brokers))
    stopped = chance.choice(workers.running) if chance.random() < 0.3 else None
    if stopped is not None:
        stopped.send_signal(signal.SIGSTOP)
    cluster.kill(broker_id)
    time.sleep(chance.uniform(0, 3))
    if chance.random() < 0.5:
        workers.kill_one(chance)
    cluster.start(broker_id)
    if stopped is not None:
        if stopped in workers.running:
            time.sleep(LOCK_S * 1.5)
        stopped.send_signal(signal.SIGCONT)


def _grows(workers: Workers) -> None:
    before = workers.done().total()
    eventually(
        lambda: workers.done().total() > before + JOBS_AT_ONCE, "jobs are done again", timeout_s=WAIT_S
    )
    workers.check()


def _settle(cluster: NilometerCluster, putter: Putter, workers: Workers) -> None:
    with nilometer.connect(cluster.bootstrap) as kafka:
        queue = kafka.queue(QUEUE)
        eventually(lambda: queue.stats().waiting == 0, "no job waits", timeout_s=WAIT_S)
        poison = {number for number, kind in putter.kinds.items() if kind == POISON}

        def missing() -> set[int]:
            dead = {json.loads(letter.record.value)["number"] for letter in queue.dead()}
            return putter.kinds.keys() - workers.done().keys() - dead | poison - dead

        eventually(lambda: not missing(), "each job is accounted for", timeout_s=WAIT_S)
        letters = queue.dead()
    done = workers.done()
    assert not poison & done.keys()
    assert done.keys() <= putter.kinds.keys() | putter.unknown
    too_early = [one for one in letters if one.deliveries < DELIVERIES_MAX]
    assert not too_early, too_early
    twice = sum(count - 1 for count in done.values())
    print(
        f"{len(putter.kinds)} jobs, {len(letters)} letters, {twice} done again, {len(putter.unknown)} unsure"
    )
