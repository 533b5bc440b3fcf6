"""The rows of compaction: how fast a log is compacted, and how long others wait for the broker meanwhile.

A topic is filled and may not be compacted yet (`min.compaction.lag.ms`); the clock runs from the change of
that setting to the line of the cleaner's checkpoint. The active segment is never compacted, so what counts
are the bytes of the others. Meanwhile `native/probe.c` asks the broker for its API versions every
millisecond: the request needs no partition, so it waits only for what all requests wait for.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from pathlib import Path
from typing import cast

from tests.support.wire.wire_peer import WirePeer, make

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from . import load
from .rows import Column, Load, Numbers, Row
from .systems import OneBroker, System, cpu_seconds, create_topic, delete_topic

SETTINGS = {
    "log.cleaner.backoff.ms": "100",  # how soon the cleaner sees that it may begin
    "log.flush.offset.checkpoint.interval.ms": "1000",  # Nilometer compacts only what is flushed
}
NOT_YET_MS, AT_ONCE_MS = "864000000", "0"
SEGMENTS = 10
BYTES_PER_S = 50_000_000
"""So much is compacted for each second that a round shall take."""
BASELINE_S = 1.0
TIMEOUT_S = 300.0
OVERHEAD_BYTES = 24
"""Of a record: its key of 16 B, and lengths, offset and time."""
CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_names = itertools.count()


def _compact(system: System, seconds: float, *, size: int, key_share: float) -> Numbers:
    """Fill a topic and compact it; ``key_share`` is the number of its keys per record."""
    broker = cast(OneBroker, system)
    host, port = system.bootstrap.rsplit(":", 1)
    quiet = load.start(host, port, program="probe")
    time.sleep(BASELINE_S)
    before = load.finish(quiet)
    found = _round(broker, size, key_share, int(seconds * BYTES_PER_S))
    return {"quiet_p999_ms": before["p999"], "quiet_max_ms": before["max"], **found}


def _round(system: OneBroker, size: int, key_share: float, total: int) -> dict[str, float]:
    count = total // (size + OVERHEAD_BYTES)
    config = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": NOT_YET_MS,
        "segment.bytes": str(total // SEGMENTS),
    }
    topic = create_topic(system, f"compacted-{next(_names)}", config=config)
    load.run("keyed", system.bootstrap, topic, count, size, int(count * key_share))
    folder = system.log_dir / f"{topic}-0"
    *sealed, active = sorted(int(path.stem) for path in folder.glob("*.log"))
    before = sum((folder / f"{base:020}.log").stat().st_size for base in sealed)
    _wait_checkpoint(system.log_dir / RECOVERY_POINTS, topic, active)
    host, port = system.bootstrap.rsplit(":", 1)
    probe = load.start(host, port, program="probe")
    cpu, began = cpu_seconds(system), time.monotonic()
    _compact_from_now(system, topic)
    _wait_checkpoint(system.log_dir / CHECKPOINT, topic, active)
    seconds, cpu = time.monotonic() - began, cpu_seconds(system) - cpu
    answered = load.finish(probe)
    after = sum(path.stat().st_size for path in folder.glob("*.log") if int(path.stem) < active)
    found = {
        "mb_per_s": before / seconds / 1e6,
        "cpu_s_per_gb": cpu / before * 1e9,
        **{f"{key}_ms": answered[key] for key in ("p99", "p999", "max")},
        "kept_share": after / before,
    }
    delete_topic(system, topic)
    return found


def _compact_from_now(system: OneBroker, topic: str) -> None:
    key, version = ApiKey.INCREMENTAL_ALTER_CONFIGS, 1
    entry = make(
        key, version, "AlterableConfig", name="min.compaction.lag.ms", config_operation=0, value=AT_ONCE_MS
    )
    resource = make(
        key, version, "AlterConfigsResource", resource_type=2, resource_name=topic, configs=(entry,)
    )
    with WirePeer(system.bootstrap) as peer:
        answer = peer.ask(key, version, resources=(resource,), validate_only=False)
    if (error := answer.responses[0].error_code) is not ErrorCode.none:
        raise RuntimeError(f"{system.name}: IncrementalAlterConfigs: {error.name}")


def _wait_checkpoint(path: Path, topic: str, offset: int) -> None:
    """Until the line of the topic's partition 0 is at ``offset`` or above."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        lines = path.read_text().splitlines() if path.exists() else []
        if any(line.startswith(f"{topic} 0 ") and int(line.split()[2]) >= offset for line in lines):
            return
        time.sleep(0.01)
    raise RuntimeError(f"{path.name} has not reached offset {offset} of {topic} in {TIMEOUT_S:.0f} s")


_COLUMNS = (
    Column("mb_per_s", "MB/s", "MB/s", more_is_better=True),
    Column("cpu_s_per_gb", "broker CPU per GB", "s", more_is_better=False),
    Column("max_ms", "longest wait of another request meanwhile", "ms", more_is_better=False),
    Column("p999_ms", "p99.9 of these waits", "ms", more_is_better=False),
)


def _row(size: int, key_share: float, keys: str) -> Row:
    return Row(
        f"compaction-{size}",
        f"compaction of {size:,} B records, {keys}",
        _COLUMNS,
        Load(partial(_compact, size=size, key_share=key_share), "mb_per_s"),
        settings=SETTINGS,
    )


CLEANING_ROWS: tuple[Row, ...] = (
    _row(100, 0.125, "8 values of each key"),
    _row(1000, 0.9, "a tenth of them of a key that was there before"),
)
