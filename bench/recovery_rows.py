"""The row of a large log after kill -9: 10 GB, of which the last 50 MB are above the recovery point.

The log is written once, by Nilometer's storage, in the files of Kafka that both systems have; a broker gets a
copy in the folder of its own topic (sealed segments, which are never written to, are hard links). So both
start from the same bytes. A start is measured twice: with the newest segment and all indexes in the page
cache, as after the death of a process, and with none of the files, as after that of a machine.
"""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import cast

from tests.support.wire.wire_peer import WirePeer, make

from nilometer.runtime import Runtime
from nilometer.storage import checkpoints, names
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.records import BatchBuilder

from . import load
from .catch_up_rows import drop_from_cache
from .rows import Column, Numbers, Row
from .systems import OneBroker, System, create_topic

TOPIC = "recovered"
SEGMENT_BYTES = 1 << 30
BYTES = 10_000_000_000
TAIL_BYTES = 50_000_000
BATCH_BYTES = 16_384
RECORD_BYTES = 1_000
BATCHES_AT_ONCE = 64
WALL_MS = 1_700_000_000_000
REPETITIONS = 3
CREATED_TIMEOUT_S = 30.0
EARLIEST, LATEST = -2, -1
"""Timestamps of ListOffsets that mean the start and the end of the log."""
SOURCE = Path(".nilometer") / "bench-logs"
"""Kept until the row has ended for both systems and again for the next run: it takes longest to write."""


def _recover(
    system: System, total: int = BYTES, tail: int = TAIL_BYTES, repetitions: int = REPETITIONS
) -> Numbers:
    source = SOURCE / f"{total}-{tail}"
    if not (source / "written").exists():
        _write_log(source, total, tail)
    system.launch()
    system.wait_ready()
    create_topic(system, TOPIC)
    broker = cast(OneBroker, system)
    _wait_exists(broker.log_dir / f"{TOPIC}-0" / names.PARTITION_METADATA)
    found: dict[str, list[float]] = {"cached_s": [], "dropped_s": []}
    for key, seconds in found.items():
        for _ in range(repetitions):
            broker.kill()
            end_offset = _put_log(broker, source)
            (drop_from_cache if key == "dropped_s" else _read_into_cache)(broker.log_dir / f"{TOPIC}-0")
            seconds.append(_start(broker, end_offset))
    return dict(found)


def _wait_exists(path: Path) -> None:
    """Apache Kafka writes the topic's id some time after it has created the log."""
    deadline = time.monotonic() + CREATED_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{path} is not there after {CREATED_TIMEOUT_S:.0f} s")
        time.sleep(0.05)


def _write_log(folder: Path, total: int, tail: int) -> None:
    """Write ``total`` bytes of sealed segments and ``tail`` bytes behind them, as a broker would."""
    shutil.rmtree(folder, ignore_errors=True)
    partition = folder / f"{TOPIC}-0"
    partition.mkdir(parents=True)
    builder = BatchBuilder()
    for _ in range(BATCH_BYTES // RECORD_BYTES):
        builder.append(WALL_MS, None, b"x" * RECORD_BYTES, ())
    records = builder.build() * BATCHES_AT_ONCE
    files = SegmentFiles.on(Runtime.system().disk)
    log = Log.open(
        files,
        str(partition),
        TopicPartition(TOPIC, 0),
        LogConfig.parse({"segment.bytes": str(min(SEGMENT_BYTES, total))}),
        OpenOptions(clean=True, wall_ms=WALL_MS, is_new=True),
    )
    log.epochs.begin(0, 0)
    while log.segments.size < total:
        log.append_as_leader(records, leader_epoch=0, wall_ms=WALL_MS)
    log.roll_now(WALL_MS)
    recovery_point = log.log_end_offset
    while log.segments.size < total + tail:
        log.append_as_leader(records, leader_epoch=0, wall_ms=WALL_MS)
    (folder / "offsets").write_text(f"{recovery_point} {log.log_end_offset}\n")
    plan = log.flush_plan()
    plan.run()
    files.pool.close()
    (folder / "written").touch()


def _put_log(system: OneBroker, source: Path) -> int:
    """Give the broker, which is down, the log as a kill -9 would have left it; its end offset."""
    target = system.log_dir / f"{TOPIC}-0"
    topic_id = (target / names.PARTITION_METADATA).read_bytes()
    shutil.rmtree(target)
    target.mkdir()
    (target / names.PARTITION_METADATA).write_bytes(topic_id)
    files = [
        path for path in sorted((source / f"{TOPIC}-0").iterdir()) if path.name != names.PARTITION_METADATA
    ]
    active = max(path.stem for path in files if path.suffix == names.LOG_SUFFIX)
    for path in files:
        is_sealed = path.suffix == names.LOG_SUFFIX and path.stem != active
        (os.link if is_sealed else shutil.copyfile)(path, target / path.name)
    recovery_point, end_offset = map(int, (source / "offsets").read_text().split())
    disk, partition = Runtime.system().disk, TopicPartition(TOPIC, 0)
    for name in (names.RECOVERY_POINT_CHECKPOINT, names.REPLICATION_OFFSET_CHECKPOINT):
        checkpoints.write_offsets(disk, str(system.log_dir / name), {partition: recovery_point})
    return end_offset


def _read_into_cache(folder: Path) -> None:
    """All but the sealed segments, which no system reads when it starts."""
    for path in folder.iterdir():
        if path.stat().st_nlink > 1:
            continue
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def _start(system: OneBroker, end_offset: int) -> float:
    """The seconds from the start to the first acknowledged record, with all that was there below it."""
    began = time.monotonic()
    system.launch()
    waiting = load.start("first", system.bootstrap, TOPIC)
    seconds = load.finish(waiting)["acknowledged_at"] - began
    system.wait_ready()
    found = (_offset_at(system, EARLIEST), _offset_at(system, LATEST))
    if found != (0, end_offset + 1):
        raise RuntimeError(f"{system.name} has offsets {found}, not 0 to {end_offset + 1}")
    return seconds


def _offset_at(system: OneBroker, timestamp: int) -> int:
    """Asked without a client of a group, which would have the topic of groups created."""
    key, version = ApiKey.LIST_OFFSETS, 4
    partition = make(
        key,
        version,
        "ListOffsetsPartition",
        partition_index=0,
        current_leader_epoch=-1,
        timestamp=timestamp,
    )
    topic = make(key, version, "ListOffsetsTopic", name=TOPIC, partitions=(partition,))
    with WirePeer(system.bootstrap) as peer:
        answer = peer.ask(key, version, replica_id=-1, isolation_level=0, topics=(topic,))
    return answer.topics[0].partitions[0].offset


RECOVERY_ROWS: tuple[Row, ...] = (
    Row(
        "recovery",
        "start after kill -9 with a log of 10 GB and 50 MB of it not flushed",
        (
            Column("cached_s", "newest segment in the page cache", "s", more_is_better=False, digits=2),
            Column("dropped_s", "no file in the page cache", "s", more_is_better=False, digits=2),
        ),
        measure=_recover,
        once=True,
        quick=partial(_recover, total=200_000_000, tail=20_000_000, repetitions=1),
    ),
)
