"""The row of queues: jobs of share groups, at three brokers, with 1, 10 and 100 of Java's share consumers.

All workers are in one Java program (`QueueLoad.java`), which runs from before the warm-up on, so that it is
as warm as the system. They acknowledge explicitly, and wait for the answer after each batch; their other
settings are Kafka's defaults. A job is nothing but the time at which it was due. The workers of the system
that is not measured do not poll.

Jobs per second are those accepted while as many as possible are put, and 5,000 at most wait. The times from
put to start are taken at a constant rate, from when a job was due; and once more beside a *poison* job, which
is released again and again until it has been delivered five times: then the next one is put.
"""

from __future__ import annotations

import subprocess
from typing import Any

from tests.support.kafka.apache_kafka import java_command

from . import load, plays
from .client_watch import ClientWatch
from .java_clients import JVM_OF_TOOLS
from .rows import CLIENT, Column, Load, Numbers, Row
from .systems import System, cpu_seconds, delete_topic

WORKERS = (1, 10, 100)
POISONED = 10
"""The workers that have a poison job."""
PARTITIONS = 6
REPLICAS = 3
JOBS_PER_S = 500
DRAIN_SHARE, PACED_SHARE = 0.3, 0.5
"""Of the seconds of a play. It has seven parts, and takes 2.9 times as long."""
_queues: dict[str, Queues] = {}
"""By the address of a system."""


class Queues:
    """The program with all workers, and a topic for each number of them."""

    def __init__(self, system: System) -> None:
        self.topics = {
            count: plays.fresh_topic(system, f"queue-{count}", PARTITIONS, REPLICAS) for count in WORKERS
        }
        arguments = (f"{topic}={count}" for count, topic in self.topics.items())
        command = java_command(
            "nilometer.QueueLoad", system.bootstrap, *arguments, jvm=(*JVM_OF_TOOLS, "-Dlog.level=ERROR")
        )
        self._process: subprocess.Popen[str] = load.start_client(command)
        if self._line() != "ready":
            raise RuntimeError(f"the workers cannot begin: {self._process.communicate()[1].strip()[-2000:]}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def drain(self, workers: int, seconds: float) -> dict[str, Any]:
        return self._ask(f"drain {self.topics[workers]} {seconds}")

    def paced(self, workers: int, seconds: float, *, is_poisoned: bool = False) -> dict[str, Any]:
        poison = str(is_poisoned).lower()
        return self._ask(f"paced {self.topics[workers]} {seconds} {JOBS_PER_S} {poison}")

    def end(self) -> None:
        load.printed_by(self._process)  # it ends with its input

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._line()
        if not answer:
            raise RuntimeError(f"{command}: {self._process.communicate()[1].strip()[-2000:]}")
        return load.last_line(answer)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _begin(system: System) -> None:
    _queues[system.bootstrap] = Queues(system)


def _end(system: System) -> None:
    queues = _queues.pop(system.bootstrap)
    queues.end()
    for topic in queues.topics.values():
        delete_topic(system, topic)


def _play(system: System, seconds: float) -> Numbers:
    queues = _queues[system.bootstrap]
    numbers: dict[str, float] = {}
    parts: list[dict[str, Any]] = []
    with ClientWatch(queues.pid) as watch:
        for count in WORKERS:
            cpu = cpu_seconds(system)
            drained = queues.drain(count, seconds * DRAIN_SHARE)
            cpu = cpu_seconds(system) - cpu
            paced = queues.paced(count, seconds * PACED_SHARE)
            parts += (drained, paced)
            numbers[f"jobs_per_s_{count}"] = drained["jobs"] / drained["seconds"]
            numbers[f"cpu_s_per_million_{count}"] = cpu / max(drained["jobs"], 1) * 1e6
            numbers |= {f"{key}_{count}": paced[key] for key in ("p50_ms", "p99_ms")}
        poisoned = queues.paced(POISONED, seconds * PACED_SHARE, is_poisoned=True)
        parts.append(poisoned)
    return {
        **numbers,
        "p50_ms_poisoned": poisoned["p50_ms"],
        "p99_ms_poisoned": poisoned["p99_ms"],
        "poison_jobs": poisoned["poisoned"],
        "done_again": sum(part["again"] for part in parts),
        "failed_acknowledgements": sum(part["failed"] for part in parts),
        **load.client_numbers(watch.numbers()),
    }


def _columns(count: int) -> tuple[Column, ...]:
    workers = f"{count} worker{'s' if count > 1 else ''}"
    return (
        Column(f"jobs_per_s_{count}", f"{workers}: jobs/s", "jobs/s", more_is_better=True, digits=0),
        Column(f"p50_ms_{count}", f"{workers}: p50 from put to start", "ms", more_is_better=False, digits=2),
        Column(f"p99_ms_{count}", f"{workers}: p99 from put to start", "ms", more_is_better=False, digits=2),
    )


QUEUE_ROWS: tuple[Row, ...] = (
    Row(
        "queue",
        f"a queue with {PARTITIONS} partitions and share consumers of Java: as many jobs as can be done, "
        f"then {JOBS_PER_S} a second",
        (
            *(column for count in WORKERS for column in _columns(count)),
            *(
                Column(
                    f"{key}_ms_poisoned",
                    f"{POISONED} workers: {key} beside a job that is always released",
                    "ms",
                    more_is_better=False,
                    digits=2,
                )
                for key in ("p50", "p99")
            ),
            Column(
                f"cpu_s_per_million_{POISONED}",
                f"{POISONED} workers: broker CPU per million jobs",
                "s",
                more_is_better=False,
            ),
            *CLIENT,
        ),
        Load(_play, f"jobs_per_s_{POISONED}", prepare=_begin, clean=_end),
        brokers=REPLICAS,
    ),
)
