"""Java's share consumers, unmodified, as workers of a queue, while brokers are killed.

A console share consumer accepts what it prints. What must hold: each job is printed, and none is left; a job
may be printed twice only if a broker was killed meanwhile.

A verifiable share consumer does with a job what its offset says, and writes what it got and what the broker
has confirmed as events.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.kafka.apache_kafka import java_command, run_tool
from support.process_end import end_process

pytestmark = pytest.mark.java

CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VERIFIABLE = "org.apache.kafka.tools.VerifiableShareConsumer"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
PARTITIONS = 4
PATTERN = ("accept", "release", "reject", "renew")
"""What a verifiable share consumer does with a job: the element at its offset modulo 4. What was released
comes again, and is released again. What was renewed comes again at once, and the next element is done."""
LIMIT = 5  # of deliveries, by default
WAIT_S = 180.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    overrides = {
        "offsets.topic.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        "group.share.heartbeat.interval.ms": "1000",
        "group.share.min.heartbeat.interval.ms": "1000",
        "group.share.record.lock.duration.ms": "60000",  # on a busy machine a worker may take long
    }
    with NilometerCluster(tmp_path_factory.mktemp("share"), overrides=overrides) as cluster:
        yield cluster
        assert "Traceback" not in cluster.output()


class Jobs:
    """A topic of numbered jobs, and the group of its workers."""

    def __init__(self, cluster: NilometerCluster, name: str) -> None:
        self.cluster, self.topic, self.group = cluster, name, f"workers-of-{name}"
        self.put_so_far = 0
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 3)]).values():
            created.result(60)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._tool(
            CONFIGS,
            *("--alter", "--entity-type", "groups", "--entity-name", self.group),
            *("--add-config", "share.auto.offset.reset=earliest"),
        )

    def put(self, count: int) -> None:
        for number in range(self.put_so_far, self.put_so_far + count):
            # To each: a partition that has had no record has no start offset yet, and so no lag.
            self._producer.produce(self.topic, b"job %d" % number, partition=number % PARTITIONS)
        assert self._producer.flush(WAIT_S) == 0
        self.put_so_far += count

    def lag(self) -> int | None:
        """How many jobs are neither accepted nor archived, as Kafka's tool says; None: it is not known."""
        shown = self._tool(GROUPS, "--describe", "--group", self.group)
        rows = [line.split() for line in shown.splitlines() if line.startswith(self.group)]
        if len(rows) < PARTITIONS or any(row[-1] == "-" for row in rows):
            return None
        return sum(int(row[-1]) for row in rows)

    def _tool(self, name: str, *arguments: str) -> str:
        return run_tool(name, "--bootstrap-server", self.cluster.bootstrap, *arguments)

    def workers(self, count: int, folder: Path) -> AbstractContextManager[list[Path]]:
        return self._workers(CONSUMER, count, folder, "--group", self.group)

    def verifiable_workers(
        self, count: int, folder: Path, *options: str
    ) -> AbstractContextManager[list[Path]]:
        return self._workers(VERIFIABLE, count, folder, "--group-id", self.group, "--verbose", *options)

    @contextmanager
    def _workers(self, tool: str, count: int, folder: Path, *options: str) -> Iterator[list[Path]]:
        """Yield the files of what the workers print."""
        printed = [folder / f"{self.topic}-{number}.txt" for number in range(count)]
        servers = self.cluster.bootstrap
        command = java_command(tool, "--bootstrap-server", servers, "--topic", self.topic, *options)
        processes = [
            subprocess.Popen(command, stdout=path.open("wb"), stderr=subprocess.DEVNULL) for path in printed
        ]
        try:
            yield printed
        finally:
            for process in processes:
                end_process(process, signal.SIGTERM, WAIT_S, lambda: tool)


def printed_jobs(files: list[Path]) -> Counter[str]:
    lines = (line for path in files for line in path.read_text().splitlines())
    return Counter(line for line in lines if line.startswith("job "))


def test_two_workers_share_a_queue(cluster: NilometerCluster, tmp_path: Path) -> None:
    jobs = Jobs(cluster, "shared")
    jobs.put(500)
    with jobs.workers(2, tmp_path) as files:
        eventually(lambda: len(printed_jobs(files)) == 500, "each job is printed", timeout_s=WAIT_S)

        def both_have_worked() -> bool:
            jobs.put(PARTITIONS)
            return all(path.stat().st_size for path in files)

        eventually(both_have_worked, "both workers have come", timeout_s=WAIT_S)
        wanted = jobs.put_so_far
        eventually(lambda: len(printed_jobs(files)) == wanted, "each new job is printed", timeout_s=WAIT_S)
        eventually(lambda: jobs.lag() == 0, "all jobs are accepted", timeout_s=WAIT_S)
    assert sorted(printed_jobs(files).values())[-1] == 1, "none was printed twice"


def test_jobs_outlive_the_brokers_that_know_of_them(cluster: NilometerCluster, tmp_path: Path) -> None:
    jobs = Jobs(cluster, "killed")
    jobs.put(300)
    with jobs.workers(2, tmp_path) as files:
        eventually(lambda: len(printed_jobs(files)) == 300, "each job is printed", timeout_s=WAIT_S)
        for broker in cluster.brokers.values():
            jobs.put(200)
            broker.kill()
            time.sleep(1)
            jobs.put(200)
            broker.start()
            wanted = jobs.put_so_far
            eventually(
                lambda wanted=wanted: len(printed_jobs(files)) == wanted, "no job is lost", timeout_s=WAIT_S
            )
        eventually(lambda: jobs.lag() == 0, "all jobs are accepted", timeout_s=WAIT_S)


class Account:
    """What verifiable share consumers have written. A job is its partition and offset."""

    def __init__(self, files: list[Path]) -> None:
        self.delivered = Counter[tuple[int, int]]()
        """How often each job came to a consumer."""
        self.ended = Counter[tuple[int, int]]()
        """How often an end of each job was confirmed, a release and a renewal included."""
        self.unsure = Counter[tuple[int, int]]()
        """How often an end of each job got an error: it may have been written."""
        for event in (event for path in files for event in _events(path)):
            match event["name"]:
                case "record_data":
                    self.delivered[event["partition"], event["offset"]] += 1
                case "offsets_acknowledged":
                    (self.ended if event["success"] else self.unsure).update(
                        (one["partition"], offset) for one in event["partitions"] for offset in one["offsets"]
                    )
                case _:
                    pass

    def times(self, element: str) -> list[int]:
        """How often the jobs came with which consumers begin with this element of the pattern."""
        wanted = PATTERN.index(element)
        return [count for (_, offset), count in self.delivered.items() if offset % len(PATTERN) == wanted]


def _events(path: Path) -> list[Any]:
    """Return the complete lines: the process may be writing."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


OPTIONS = ("--ack-pattern", ",".join(PATTERN), "--offset-reset-strategy", "earliest")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_verifiable_consumer_gets_what_its_acknowledgements_leave(
    cluster: NilometerCluster, tmp_path: Path, mode: str
) -> None:
    jobs = Jobs(cluster, f"verified-{mode}")
    jobs.put(400)
    with jobs.verifiable_workers(1, tmp_path, *OPTIONS, "--acknowledgement-mode", mode) as files:
        eventually(lambda: jobs.lag() == 0, "each job is accepted or archived", timeout_s=WAIT_S)
        wanted = 100 + LIMIT * 100 + 100 + 2 * 100
        eventually(lambda: Account(files).ended.total() == wanted, "all is confirmed", timeout_s=WAIT_S)
    account = Account(files)
    assert not account.unsure
    assert account.delivered == account.ended
    expected = {"accept": [1] * 100, "release": [LIMIT] * 100, "reject": [1] * 100, "renew": [2] * 100}
    assert {element: account.times(element) for element in PATTERN} == expected


def test_verifiable_consumers_outlive_a_killed_broker(cluster: NilometerCluster, tmp_path: Path) -> None:
    """Without renewals: Kafka's consumer (4.4.0) may wait for good for one that was on its way to the broker.

    It polls in a circle then, fetches nothing, and keeps its partitions, though each of its acknowledgements
    has been answered.
    """
    jobs = Jobs(cluster, "verified-killed")
    jobs.put(400)
    options = ("--ack-pattern", "accept,release,reject,accept", "--offset-reset-strategy", "earliest")
    with jobs.verifiable_workers(2, tmp_path, *options, "--acknowledgement-mode", "sync") as files:
        eventually(lambda: len(Account(files).ended) >= 100, "jobs are done", timeout_s=WAIT_S)
        broker = cluster.brokers[1]
        broker.kill()
        jobs.put(400)
        eventually(lambda: len(Account(files).ended) >= 500, "jobs are done without it", timeout_s=WAIT_S)
        broker.start()
        jobs.put(400)
        eventually(lambda: jobs.lag() == 0, "each job is accepted or archived", timeout_s=WAIT_S)
    account = Account(files)
    every_job = {(partition, offset) for partition in range(PARTITIONS) for offset in range(300)}
    assert account.delivered.keys() == every_job
    assert every_job <= account.ended.keys() | account.unsure.keys()
    assert max(account.times("release")) >= LIMIT
    # Not in each case LIMIT: a delivery counts that did not reach its consumer before the broker was killed.
    assert min(account.times("release")) > 1
