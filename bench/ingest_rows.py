"""The row of `nilometer ingest` beside rsyslog (imfile, omkafka): a large file to a topic of three replicas.

Both send with acks=all to three brokers of Nilometer, each to a cluster of its own. The time runs from the
start of the program until the topic has every line. rsyslog is optional: `apt-get install rsyslog
rsyslog-kafka`.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from . import plays
from .broker_rows import launch
from .clusters import NilometerThree
from .ingest_rotations import ingest_command, rsyslog_command
from .rows import MB_PER_S, Column, Numbers, Row
from .systems import Settings, System, cpu_seconds

PARTITIONS = 6
LINES, QUICK_LINES = 1_000_000, 20_000
LINE_BYTES = 100
"""With the newline."""
LIMIT_S = 900.0
POLL_S = 0.05
PERSIST_EVERY = 10_000
"""Lines after which rsyslog writes its state: at each line, as in `ingest_rotations`, it would be slower."""
RSYSLOG = "rsyslog"


class IngestOnThree(NilometerThree):
    """Three brokers, to which `nilometer ingest` sends."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        super().__init__(folder / "cluster", settings)
        self.folder = folder

    def command(self, files: list[Path], topic: str) -> list[str]:
        return ingest_command(self.folder, files, self.bootstrap, topic)


class RsyslogOnThree(IngestOnThree):
    """The same brokers, to which rsyslog sends."""

    name = RSYSLOG

    def command(self, files: list[Path], topic: str) -> list[str]:
        return rsyslog_command(self.folder, files, self.bootstrap, topic, "inotify", PERSIST_EVERY)


def programs() -> dict[str, Callable[[Path, Settings | None], System]]:
    """What is installed, in the place of the systems that other rows compare."""
    found: dict[str, Callable[[Path, Settings | None], System]] = {"nilometer": IngestOnThree}
    if shutil.which("rsyslogd") is not None:
        found["kafka"] = RsyslogOnThree
    return found


def write_lines(path: Path, count: int) -> None:
    """Lines of equal length that all differ, as of a program's log."""
    chance = random.Random(count)
    with path.open("w") as file:
        for number in range(count):
            took = chance.randrange(10**6)
            text = f"2026-01-31T12:00:00.000Z INFO worker-{number % 16} request {number:010} took {took} us "
            file.write(text.ljust(LINE_BYTES - 1, "x") + "\n")


def _ship(system: System, lines: int = LINES) -> Numbers:
    launch(system)
    shipping = cast(IngestOnThree, system)
    topic = plays.fresh_topic(system, "lines", PARTITIONS, 3)
    path = shipping.folder / "app.log"
    write_lines(path, lines)
    broker_cpu, began = cpu_seconds(system), time.monotonic()
    with (shipping.folder / "output").open("wb") as output:
        process = subprocess.Popen(shipping.command([path], topic), stdout=output, stderr=output)
    try:
        _wait_for(shipping.bootstrap, topic, lines, process)
        seconds = time.monotonic() - began
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        cpu = _ended(process)
    return {
        "lines_per_s": lines / seconds,
        "mb_per_s": lines * LINE_BYTES / seconds / 1e6,
        "program_cpu_s_per_million": cpu / lines * 1e6,
        "broker_cpu_s_per_million": (cpu_seconds(system) - broker_cpu) / lines * 1e6,
    }


def _wait_for(bootstrap: str, topic: str, lines: int, process: subprocess.Popen[bytes]) -> None:
    """Until the topic has so many records. Raises RuntimeError if the program ends before or is late."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    latest: Any = OffsetSpec.latest()
    wanted: dict[TopicPartition, OffsetSpec] = {
        TopicPartition(topic, number): latest for number in range(PARTITIONS)
    }
    deadline = time.monotonic() + LIMIT_S
    while True:
        has_ended = process.poll() is not None
        ends = [one.result(30).offset for one in admin.list_offsets(wanted).values()]
        if sum(ends) >= lines:
            return
        if has_ended or time.monotonic() > deadline:
            raise RuntimeError(f"{topic} has {sum(ends)} of {lines} lines")
        time.sleep(POLL_S)


def _ended(process: subprocess.Popen[bytes]) -> float:
    """The CPU time of the program, when it has ended."""
    if process.returncode is not None:
        return 0.0
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


INGEST_ROWS: tuple[Row, ...] = (
    Row(
        "ingest",
        f"{LINES:,} lines of {LINE_BYTES} B into {PARTITIONS} partitions with three replicas, acks=all",
        (
            Column("lines_per_s", "lines/s", "lines/s", more_is_better=True, digits=0),
            MB_PER_S,
            Column(
                "program_cpu_s_per_million",
                "CPU of the program per million lines",
                "s",
                more_is_better=False,
                digits=2,
            ),
            Column(
                "broker_cpu_s_per_million",
                "CPU of the brokers per million lines",
                "s",
                more_is_better=False,
                digits=2,
            ),
        ),
        measure=_ship,
        quick=partial(_ship, lines=QUICK_LINES),
        brokers=3,
        systems=programs,
        beside=RSYSLOG,
    ),
)
