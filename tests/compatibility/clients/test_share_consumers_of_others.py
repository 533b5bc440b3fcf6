"""Share consumers of franz-go and librdkafka as workers of a queue: what they get, and how often, follows
from how they end it. The tests are the same on Nilometer and on Apache Kafka.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nilometer
from nilometer.kafka.blocking import BlockingQueue
from nilometer.testing import Cluster
from support.eventually import eventually
from support.kafka import go_programs
from support.kafka.apache_kafka import ApacheKafka
from support.process_end import end_process

TESTS = Path(__file__).resolve().parents[2]
SETTINGS = {
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.session.timeout.ms": "15000",  # until it ends, a killed worker's partitions are no one's
    "group.share.min.session.timeout.ms": "15000",
}
NILOMETER, KAFKA = "nilometer", "apache-kafka"
FRANZ_GO, CONFLUENT = "franz-go", "confluent-kafka"
LIMIT = 3
PARTITIONS = 4
WAIT_S = 180.0
KINDS = {"good": 700, "flaky": 100, "bad": 100, "poison": 50, "long": 50}
DELIVERIES = {"good": [1], "flaky": [1, 2], "bad": [1], "poison": [1, 2, 3], "long": [1]}
"""What comes of a job of each kind, as the numbers of its deliveries."""


@pytest.fixture(scope="module", params=[NILOMETER, pytest.param(KAFKA, marks=pytest.mark.java)])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == NILOMETER:
        with Cluster(settings=SETTINGS) as cluster:
            yield cluster.bootstrap_servers
        return
    apache = ApacheKafka(tmp_path_factory.mktemp("kafka"), overrides=SETTINGS)
    try:
        apache.start()
        yield apache.bootstrap
    finally:
        apache.kill()  # its data is not used any more


@pytest.fixture(params=[FRANZ_GO, CONFLUENT])
def worker(request: pytest.FixtureRequest) -> list[str]:
    """The command of a worker, but for its arguments."""
    if request.param == CONFLUENT:
        return [sys.executable, "-m", "support.share.confluent_worker"]
    missing = go_programs.why_not()
    if missing is not None:
        pytest.skip(missing)
    return [str(go_programs.built("share_worker"))]


class Workers:
    """Processes that share a queue; what each prints is in a file of its own."""

    def __init__(self, servers: str, queue: str, command: list[str], folder: Path) -> None:
        self._servers, self._queue, self._command, self._folder = servers, queue, command, folder
        self._files: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, mode: str = "work") -> subprocess.Popen[bytes]:
        path = self._folder / f"worker-{len(self._files)}.txt"
        command = [*self._command, self._servers, self._queue, self._queue, mode]
        with path.open("wb") as printed, path.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(command, cwd=TESTS, stdout=printed, stderr=log)
        self._files.append(path)
        self._processes.append(process)
        return process

    def end(self, how: signal.Signals) -> None:
        for process in self._processes:
            end_process(process, how, WAIT_S, self.log)

    def log(self) -> str:
        return "\n".join(path.with_suffix(".log").read_text() for path in self._files)

    def lines(self, number: int | None = None) -> list[list[str]]:
        """The words of each complete line, of one worker or of all."""
        files = self._files if number is None else [self._files[number]]
        lines = (line for path in files for line in path.read_text().splitlines(keepends=True))
        return [line.split() for line in lines if line.endswith("\n")]

    def taken(self, number: int | None = None) -> dict[int, list[int]]:
        """The numbers of the deliveries of each job."""
        found = defaultdict[int, list[int]](list)
        for line in self.lines(number):
            if line[0] == "took":
                found[int(line[2])].append(int(line[3]))
        return found

    def failures(self) -> list[str]:
        return [" ".join(line) for line in self.lines() if line[0] != "took"]


@contextmanager
def workers_of(servers: str, queue: str, command: list[str], folder: Path) -> Iterator[Workers]:
    workers = Workers(servers, queue, command, folder)
    try:
        yield workers
    finally:
        workers.end(signal.SIGKILL)


@pytest.fixture
def queue(servers: str, worker: list[str], request: pytest.FixtureRequest) -> Iterator[BlockingQueue[Any]]:
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    with nilometer.connect(servers) as kafka:
        kafka.admin.create_queue(name, partitions=PARTITIONS, replication_factor=1, max_deliveries=LIMIT)
        yield kafka.queue(name)


def test_what_workers_say_of_jobs_decides_their_deliveries(
    servers: str, worker: list[str], queue: BlockingQueue[Any], tmp_path: Path
) -> None:
    with workers_of(servers, queue.name, worker, tmp_path) as workers:
        workers.start()
        workers.start()
        first = _put_until(queue, lambda: bool(workers.taken(0)) and bool(workers.taken(1)))
        kinds = [kind for kind, count in KINDS.items() for _ in range(count)]
        queue.put_many({"number": first + index, "kind": kind} for index, kind in enumerate(kinds))
        eventually(lambda: queue.stats().waiting == 0, "each job is accepted or archived", timeout_s=WAIT_S)
        dead = {first + index for index, kind in enumerate(kinds) if kind in ("bad", "poison")}
        eventually(lambda: len(queue.dead()) >= len(dead), "each dead job has a letter", timeout_s=WAIT_S)
        workers.end(signal.SIGTERM)
        assert workers.failures() == []
        taken = workers.taken()
        seen = {kind: Counter[str]() for kind in KINDS}
        for index, kind in enumerate(kinds):
            seen[kind][str(sorted(taken[first + index]))] += 1
        assert seen == {kind: {str(DELIVERIES[kind]): count} for kind, count in KINDS.items()}
        letters = queue.dead()
        assert sorted(json.loads(letter.record.value or b"")["number"] for letter in letters) == sorted(dead)


def test_what_a_killed_worker_had_in_hand_is_taken_over(
    servers: str, worker: list[str], queue: BlockingQueue[Any], tmp_path: Path
) -> None:
    queue.put_many({"number": number, "kind": "good"} for number in range(1_000))
    with workers_of(servers, queue.name, worker, tmp_path) as workers:
        held = workers.start("hold")
        eventually(lambda: bool(workers.taken(0)), "a worker has jobs in hand", timeout_s=WAIT_S)
        workers.start()
        held.kill()
        held.wait()
        eventually(lambda: queue.stats().waiting == 0, "each job is accepted", timeout_s=WAIT_S)
        workers.end(signal.SIGTERM)
        assert workers.failures() == []
        in_hand, done = workers.taken(0), workers.taken(1)
        assert in_hand and all(deliveries == [1] for deliveries in in_hand.values())
        assert done.keys() == set(range(1_000))
        assert all(done[number] == [2] for number in in_hand)
        assert all(deliveries in ([1], [2]) for deliveries in done.values())


def test_jobs_outlive_the_brokers(worker: list[str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each job is done, a flaky one after it was released; one may be done again if its broker was killed."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    with (
        Cluster(brokers=3, settings=SETTINGS) as cluster,
        nilometer.connect(cluster.bootstrap_servers) as kafka,
        workers_of(cluster.bootstrap_servers, name, worker, tmp_path) as workers,
    ):
        kafka.admin.create_queue(name, partitions=PARTITIONS, replication_factor=3, max_deliveries=10)
        queue = kafka.queue(name)
        workers.start()
        workers.start()
        put = 0
        for broker in (1, 2, 3):
            for is_down in (False, True):
                if is_down:
                    cluster.kill(broker)
                kinds = ["flaky" if number % 5 == 0 else "good" for number in range(put, put + 200)]
                queue.put_many({"number": put + index, "kind": kind} for index, kind in enumerate(kinds))
                put += len(kinds)
            cluster.restart(broker)
            eventually(
                lambda put=put: workers.taken().keys() == set(range(put)), "all have come", timeout_s=WAIT_S
            )
        eventually(lambda: queue.stats().waiting == 0, "each job is accepted", timeout_s=WAIT_S)
        workers.end(signal.SIGTERM)
        assert queue.dead() == []
        taken = workers.taken()
        assert [number for number in range(0, put, 5) if max(taken[number]) < 2] == []


def _put_until(queue: BlockingQueue[Any], condition: Callable[[], bool]) -> int:
    """Put good jobs until the condition holds; return how many."""
    count = 0

    def holds() -> bool:
        nonlocal count
        queue.put_many({"number": count + index, "kind": "good"} for index in range(20))
        count += 20
        return condition()

    eventually(holds, "both workers have come", timeout_s=WAIT_S)
    return count
