"""The row of a consumer that catches up from the disk while a producer writes.

The log that is read is in no page cache when a round begins; the producer writes 1,000 B records at a
constant rate to another topic. What counts is how fast the one reads and how little the other notices.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, cast

from . import load, plays
from .rows import CLIENT, MB_PER_S, Column, Load, Numbers, Row
from .systems import OneBroker, System, cpu_seconds, create_topic, delete_topic

TOPIC = "caught-up"
SIZE, BATCH = 1_000, 16_384
BYTES = 1_200_000_000
"""Of a pass."""
QUICK_BYTES = 20_000_000
MARGIN_BYTES = 150_000_000
"""Behind them, at most as much again: more than a consumer reads ahead."""
RATE = 2_000


def _fill(system: System, total: int) -> None:
    create_topic(system, TOPIC)
    records = (total + min(total, MARGIN_BYTES)) // SIZE
    load.run("fill", system.bootstrap, TOPIC, records, SIZE, f"batch.size={BATCH}")


def _load(total: int) -> Load:
    return Load(
        partial(_catch_up, total=total),
        "mb_per_s",
        prepare=partial(_fill, total=total),
        clean=partial(delete_topic, name=TOPIC),
    )


def _catch_up(system: System, seconds: float, *, total: int) -> Numbers:
    """Passes from the disk until the producer, which writes for so long, has ended."""
    folder = cast(OneBroker, system).log_dir / f"{TOPIC}-0"
    topic = plays.fresh_topic(system, "written", 1, 1)
    passes: list[dict[str, Any]] = []
    cpu = cpu_seconds(system)
    writer = load.start("latency", system.bootstrap, topic, RATE, seconds, SIZE, plays.ACKS)
    while not passes or writer.poll() is None:
        drop_from_cache(folder)
        passes.append(load.run("consume", system.bootstrap, TOPIC, total // SIZE, 1, 0))
    written = load.finish(writer)
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    read = sum(done["bytes"] for done in passes)
    return {
        "mb_per_s": read / sum(done["seconds"] for done in passes) / 1e6,
        "cpu_s_per_gb": cpu / read * 1e9,
        **{f"{key}_ms": written[key] for key in ("p50", "p99", "p999")},
        **load.client_numbers(passes[-1]),
    }


def drop_from_cache(folder: Path) -> None:
    """Write what is dirty to the disk, and let go of all pages."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


CATCH_UP_ROWS: tuple[Row, ...] = (
    Row(
        "catch-up",
        f"consume {SIZE:,} B records that are in no page cache, while {RATE:,} records/s of this size are "
        "written to another topic",
        (
            MB_PER_S,
            Column("cpu_s_per_gb", "broker CPU per GB read", "s", more_is_better=False, digits=2),
            Column("p50_ms", "p50 of the producer", "ms", more_is_better=False, digits=2),
            Column("p99_ms", "p99 of the producer", "ms", more_is_better=False, digits=2),
            Column("p999_ms", "p99.9 of the producer", "ms", more_is_better=False, digits=2),
            *CLIENT,
        ),
        _load(BYTES),
        quick_load=_load(QUICK_BYTES),
    ),
)
