"""The rows of tiered topics: what copying costs a producer, and how fast older records come back.

The remote storage of both systems is a folder of the same file system, Apache Kafka's through
``nilometer.FolderStorage`` (tests/java).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

from tests.support.kafka.apache_kafka import FOLDER_STORAGE

from . import load, plays
from .rows import CLIENT, MB_PER_S, Column, Load, Numbers, Row
from .systems import Kafka, Nilometer, OneBroker, Settings, System, cpu_seconds, create_topic, delete_topic

SIZE, BATCH, RATE = 1_000, 16_384, 4_000
SEGMENT_BYTES = 4 << 20
"""A segment a second at this rate."""
TOPIC = "in-the-tier"
BYTES, QUICK_BYTES = 400_000_000, 20_000_000
SETTLED_S = 300.0
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


def _tiered_nilometer(folder: Path, settings: Settings | None) -> System:
    tier = folder / "tier"
    tier.mkdir(parents=True)
    return Nilometer(folder, {**_COMMON, **(settings or {}), "nilometer.tier.uri": tier.as_uri()})


def _tiered_kafka(folder: Path, settings: Settings | None) -> System:
    tier = folder / "tier"
    tier.mkdir(parents=True)
    return Kafka(folder, {**_COMMON, **(settings or {}), **FOLDER_STORAGE, "rsm.config.dir": str(tier)})


def _systems() -> Mapping[str, Callable[[Path, Settings | None], System]]:
    return {"nilometer": _tiered_nilometer, "kafka": _tiered_kafka}


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


def _read_load(total: int) -> Load:
    return Load(
        partial(_read, total=total),
        "mb_per_s",
        prepare=partial(_fill, total=total),
        clean=partial(delete_topic, name=TOPIC),
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
        (
            MB_PER_S,
            Column("cpu_s_per_gb", "broker CPU per GB read", "s", more_is_better=False, digits=2),
            *CLIENT,
        ),
        _read_load(BYTES),
        quick_load=_read_load(QUICK_BYTES),
        systems=_systems,
    ),
)
