"""What the flight recorder costs: a broker with it beside one without, in two shapes of load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from . import client_rows, plays
from .rows import THROUGHPUT, Load, Row
from .systems import Nilometer, Settings, System

BYTES_MAX = 40 * 1024**3
"""Beyond what a row writes: a recording that has ended costs less."""


class Recorded(Nilometer):
    name = "recorded"

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        recorder = {"nilometer.recorder": "on", "nilometer.recorder.max.bytes": str(BYTES_MAX)}
        super().__init__(folder, {**(settings or {}), **recorder})


def _systems() -> Mapping[str, Callable[[Path, Settings | None], System]]:
    return {"nilometer": Nilometer, "kafka": Recorded}


RECORDER_ROWS: tuple[Row, ...] = (
    Row(
        "recorder-connections-10",
        f"10 connections, batches of {client_rows.SMALL_BATCH} records of {client_rows.SIZE} B, without and "
        "with the flight recorder",
        client_rows.REQUESTS_COLUMNS,
        Load(partial(client_rows.small_batches, connections=10), "requests_per_s"),
        systems=_systems,
        beside=Recorded.name,
    ),
    Row(
        "recorder-produce-100-16384",
        "produce 100 B records, batches of 16 kB, acks=all, without and with the flight recorder",
        THROUGHPUT,
        Load(partial(plays.produce, size=100, settings=["batch.size=16384"]), "records_per_s"),
        systems=_systems,
        beside=Recorded.name,
    ),
)
