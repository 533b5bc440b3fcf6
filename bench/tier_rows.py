"""The rows of tiered topics: what copying costs a producer, and how fast older records come back.

The remote storage of both systems is a folder of the same file system, Apache Kafka's through
``nilometer.FolderStorage`` (tests/java). The rows with ``s3`` hold the folder against a server of that
protocol, which keeps its objects in such a folder. It is optional:
``go install github.com/versity/versitygw/cmd/versitygw@v1.8.0``.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from tests.support.kafka.apache_kafka import FOLDER_STORAGE
from tests.support.ports import HOST, free_ports

from . import load, plays
from .broker_rows import launch
from .rows import CLIENT, MB_PER_S, Column, Load, Numbers, Row
from .systems import Kafka, Nilometer, OneBroker, Settings, System, cpu_seconds, create_topic, delete_topic

SIZE, BATCH, RATE = 1_000, 16_384, 4_000
SEGMENT_BYTES = 4 << 20
"""A segment a second at this rate."""
TOPIC, RESTORED = "in-the-tier", "restored"
BYTES, QUICK_BYTES = 400_000_000, 20_000_000
SETTLED_S = 300.0
BUCKET, KEY, SECRET = "bucket", "writer", "writers-secret"
S3_SERVER = "versitygw"
SERVER_START_S = 30.0
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_BYTES),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
_COMMON = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
}


class OnFolder(Nilometer):
    """A broker whose remote storage is at ``uri``."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.tier = folder / "tier"
        self.tier.mkdir(parents=True)
        self.uri = self._uri()
        super().__init__(folder, {**_COMMON, **(settings or {}), "nilometer.tier.uri": self.uri})

    def _uri(self) -> str:
        return self.tier.as_uri()


class OnS3(OnFolder):
    """The same, of which the folder is behind a server of S3's protocol."""

    name = "the S3 protocol"

    def _uri(self) -> str:
        (self.tier / BUCKET).mkdir()
        self._port = free_ports(1)[0]
        options = f"endpoint_override={HOST}:{self._port}&scheme=http&region=us-east-1"
        return f"s3://{KEY}:{SECRET}@{BUCKET}/tier?{options}"

    def launch(self) -> None:
        environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        command = [S3_SERVER, "--port", f"{HOST}:{self._port}", "--quiet", "posix", str(self.tier)]
        self._server = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + SERVER_START_S
        while socket.socket().connect_ex((HOST, self._port)) != 0:
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{S3_SERVER} does not serve")
            time.sleep(0.05)
        super().launch()

    def stop(self) -> None:
        super().stop()
        self._server.terminate()
        self._server.wait()


def _tiered_kafka(folder: Path, settings: Settings | None) -> System:
    tier = folder / "tier"
    tier.mkdir(parents=True)
    return Kafka(folder, {**_COMMON, **(settings or {}), **FOLDER_STORAGE, "rsm.config.dir": str(tier)})


def _systems() -> Mapping[str, Callable[[Path, Settings | None], System]]:
    return {"nilometer": OnFolder, "kafka": _tiered_kafka}


def _stores() -> Mapping[str, Callable[[Path, Settings | None], System]]:
    """In the place of the systems that other rows compare: the same broker with another remote storage."""
    found: dict[str, Callable[[Path, Settings | None], System]] = {"nilometer": OnFolder}
    return {**found, "kafka": OnS3} if shutil.which(S3_SERVER) is not None else found


def _write(system: System, seconds: float) -> Numbers:
    """At a constant rate, to a topic that is not tiered, and then to one that is."""
    found = dict[str, float]()
    for kind, config in (("plain", {"segment.bytes": str(SEGMENT_BYTES)}), ("tiered", TIERED)):
        topic = plays.fresh_topic(system, kind, 1, 1, **config)
        cpu = cpu_seconds(system)
        done = load.run("latency", system.bootstrap, topic, RATE, seconds / 2, SIZE, plays.ACKS)
        found[f"{kind}_cpu_percent"] = 100 * (cpu_seconds(system) - cpu) / (seconds / 2)
        found |= {f"{kind}_{key}_ms": done[key] for key in ("p50", "p99")}
        delete_topic(system, topic)
    return found | load.client_numbers(done)


def _fill(system: System, total: int) -> None:
    create_topic(system, TOPIC, config=TIERED)
    load.run("fill", system.bootstrap, TOPIC, total // SIZE, SIZE, f"batch.size={BATCH}")
    folder = cast(OneBroker, system).log_dir / f"{TOPIC}-0"
    deadline = time.monotonic() + SETTLED_S
    while len(list(folder.glob("*.log"))) > 1:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{system.name} has not moved {TOPIC} to its remote storage")
        time.sleep(0.5)


def _read(system: System, seconds: float, *, total: int) -> Numbers:
    """From the first record on, again and again for so long."""
    began, cpu = time.monotonic(), cpu_seconds(system)
    passes = list[dict[str, float]]()
    while not passes or time.monotonic() < began + seconds:
        passes.append(load.run("consume", system.bootstrap, TOPIC, total // SIZE, 1, 0))
    cpu = cpu_seconds(system) - cpu
    read = sum(done["bytes"] for done in passes)
    return {
        "mb_per_s": read / sum(done["seconds"] for done in passes) / 1e6,
        "cpu_s_per_gb": cpu / read * 1e9,
        **load.client_numbers(passes[-1]),
    }


def _restore(system: System, total: int = BYTES) -> Numbers:
    """``nilometer tier restore`` of a topic under another name, with the time that the command takes."""
    launch(system)
    _fill(system, total)
    create_topic(system, RESTORED, config=TIERED)
    tiered = cast(OnFolder, system)
    Nilometer.stop(tiered)  # the store stays
    command = [sys.executable, "-m", "nilometer.cli", "tier", "restore", "--from", tiered.uri, "--json"]
    command += ["--topic", TOPIC, "--as", RESTORED, "--log-dirs", str(tiered.log_dir)]
    began = time.monotonic()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"tier restore: exit {done.returncode}\n{done.stderr}")
    (part,) = json.loads(done.stdout)["partitions"]
    return {"gb_per_min": part["bytes"] / 1e9 / seconds * 60}


def _read_load(total: int) -> Load:
    return Load(
        partial(_read, total=total),
        "mb_per_s",
        prepare=partial(_fill, total=total),
        clean=partial(delete_topic, name=TOPIC),
    )


_READ_COLUMNS = (
    MB_PER_S,
    Column("cpu_s_per_gb", "broker CPU per GB read", "s", more_is_better=False, digits=2),
    *CLIENT,
)

TIER_ROWS: tuple[Row, ...] = (
    Row(
        "tier-write",
        f"produce {SIZE:,} B records, {RATE:,}/s, acks=all, to a topic without remote storage and one with "
        "it, of which a segment is copied each second",
        tuple(
            column
            for kind in ("plain", "tiered")
            for column in (
                Column(f"{kind}_p50_ms", f"p50, {kind}", "ms", more_is_better=False, digits=2),
                Column(f"{kind}_p99_ms", f"p99, {kind}", "ms", more_is_better=False, digits=2),
                Column(f"{kind}_cpu_percent", f"broker CPU, {kind}", "%", more_is_better=False),
            )
        )
        + CLIENT,
        Load(_write, "tiered_p50_ms"),
        systems=_systems,
    ),
    Row(
        "tier-read",
        f"consume {SIZE:,} B records, stored in batches of {BATCH // 1000} kB, which are in remote storage "
        "only",
        _READ_COLUMNS,
        _read_load(BYTES),
        quick_load=_read_load(QUICK_BYTES),
        systems=_systems,
    ),
    Row(
        "tier-read-s3",
        f"consume {SIZE:,} B records, stored in batches of {BATCH // 1000} kB, which are in remote storage "
        "only",
        _READ_COLUMNS,
        _read_load(BYTES),
        quick_load=_read_load(QUICK_BYTES),
        systems=_stores,
        beside=OnS3.name,
    ),
    Row(
        "tier-restore-s3",
        f"`nilometer tier restore` of {BYTES // 10**6} MB",
        (Column("gb_per_min", "GB/min", "GB/min", more_is_better=True),),
        measure=_restore,
        quick=partial(_restore, total=QUICK_BYTES),
        systems=_stores,
        beside=OnS3.name,
    ),
)
