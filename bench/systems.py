"""What is measured: one broker to be prepared, launched, asked for its CPU time and memory, and removed.

Several that form a cluster are in `clusters.py`.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.brokers.nilometer_broker import NilometerBroker
from tests.support.kafka.apache_kafka import JVM_AS_SHIPPED, ApacheKafka, kafka_version

import nilometer

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_RETENTION = {"retention.ms": "-1"}
CREATE_TIMEOUT_S = 120.0
GROUPS_AT_ONCE = {"group.initial.rebalance.delay.ms": "0"}
"""As in the file that Apache Kafka comes with, and as its broker here: a new group does not wait 3 s."""


class System(Protocol):
    """One broker on an empty folder."""

    name: str
    bootstrap: str

    def launch(self) -> None:
        """Start the process and return at once."""
        ...

    def wait_ready(self) -> None: ...

    def stop(self) -> None: ...

    def pids(self) -> list[int]: ...


class OneBroker(System, Protocol):
    """A `System` that rows stop, kill and start again, and whose files they look at."""

    log_dir: Path

    def kill(self) -> None:
        """kill -9; returns when it is dead."""
        ...


Settings = Mapping[str, str]


class Nilometer:
    name = "Nilometer"

    def __init__(self, folder: Path, settings: Settings | None = None, port: int = 0) -> None:
        self._broker = NilometerBroker(folder / "data", {**GROUPS_AT_ONCE, **(settings or {})}, port)
        self.log_dir = self._broker.data_dir
        self.bootstrap = self._broker.bootstrap

    @property
    def metrics_url(self) -> str:
        """The page of its metrics. Raises RuntimeError if it serves none."""
        if self._broker.metrics_url is None:
            raise RuntimeError("the broker serves no metrics: metrics.listener is not set")
        return self._broker.metrics_url

    @staticmethod
    def version() -> str:
        return importlib.metadata.version("nilometer")

    def launch(self) -> None:
        self._broker.launch()

    def wait_ready(self) -> None:
        self._broker.wait_ready()

    def stop(self) -> None:
        self._broker.stop()

    def kill(self) -> None:
        self._broker.kill()

    def pids(self) -> list[int]:
        return [self._broker.pid]


class Kafka:
    """Apache Kafka, one node that is broker and controller, with the JVM settings of its own start script."""

    name = "Apache Kafka"

    def __init__(
        self, folder: Path, settings: Settings | None = None, more_listeners: Sequence[str] = ()
    ) -> None:
        self._kafka = ApacheKafka(
            folder, overrides=settings, jvm=JVM_AS_SHIPPED, more_listeners=more_listeners
        )
        self._kafka.format()
        self.log_dir = self._kafka.data_dir
        self.bootstrap = self._kafka.bootstrap

    @staticmethod
    def version() -> str:
        return kafka_version()

    def launch(self) -> None:
        self._kafka.start(wait=False)

    def wait_ready(self) -> None:
        self._kafka.wait_ready()

    def stop(self) -> None:
        self._kafka.stop()

    def kill(self) -> None:
        self._kafka.kill()

    def pids(self) -> list[int]:
        return [self._kafka.pid]


def compile_nilometer() -> None:
    """As installing it does: where Python may keep no bytecode, a checkout is compiled at every start."""
    package = nilometer.__file__
    assert package is not None
    if not compileall.compile_dir(Path(package).parent, quiet=1):
        raise RuntimeError("Nilometer's sources cannot be compiled")


SYSTEMS: dict[str, type[Nilometer] | type[Kafka]] = {"nilometer": Nilometer, "kafka": Kafka}


def create_topic(
    system: System,
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    config: Settings = _RETENTION,
) -> str:
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 3})
    topic = NewTopic(name, partitions, replication_factor, config=dict(config))
    admin.create_topics([topic], request_timeout=CREATE_TIMEOUT_S)[name].result(CREATE_TIMEOUT_S)
    return name


def delete_topic(system: System, name: str) -> None:
    admin = AdminClient(
        {"bootstrap.servers": system.bootstrap, "log_level": 3}
    )  # named, since its end would end the request
    admin.delete_topics([name])[name].result(30)


def shut_down(system: System, timeout_s: float) -> float:
    """End one in order, however long its many files take; the seconds that it took."""
    began = time.monotonic()
    ending = system.pids()
    for pid in ending:
        os.kill(pid, signal.SIGTERM)
    while any(_is_running(pid) for pid in ending):
        if time.monotonic() > began + timeout_s:
            raise RuntimeError(f"{system.name} has not ended {timeout_s:.0f} s after SIGTERM")
        time.sleep(0.02)
    seconds = time.monotonic() - began
    system.stop()
    return seconds


def _is_running(pid: int) -> bool:
    """Whether the process is more than a line for its parent to read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def cpu_seconds(system: System) -> float:
    """User and system time of the broker's processes so far."""
    total = 0
    for pid in system.pids():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def memory_mb(system: System) -> dict[str, float]:
    """Resident memory, and the part of it that is not the page cache's mapped in."""
    total = {"VmRSS": 0, "RssAnon": 0}
    for pid in system.pids():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key in total:
                total[key] += int(value.split()[0])
    return {"rss_mb": total["VmRSS"] / 1024, "anonymous_mb": total["RssAnon"] / 1024}


def descriptors(system: System) -> list[int]:
    """How many each process has open."""
    return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in system.pids()]


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
