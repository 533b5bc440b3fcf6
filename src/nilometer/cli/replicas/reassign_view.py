"""Formats the progress of reassignments: table rows, JSON documents, progress bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from nilometer.cli.console import OutputConsole
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.replicas.reassignment_progress import MoveProgress, MoveState
from nilometer.client.replicas.replica_survey import Survey
from nilometer.cluster.reassignment_plan import PlannedMove

BARS_MAX = 20
"""The maximum number of partitions with a progress bar each; with more there is one bar for all."""


def progress_rows(progress: Sequence[MoveProgress]) -> list[tuple[object, ...]]:
    return [(str(one.partition), one.state.value, one.replicas, one.target, _copied(one)) for one in progress]


def progress_document(one: MoveProgress) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "state": one.state.value,
        "replicas": list(one.replicas),
        "target": list(one.target),
        "adding": list(one.adding),
        "copied_offsets": one.copied,
        "total_offsets": one.total,
    }


def moved_bytes(moves: Sequence[PlannedMove], seen: Survey) -> int:
    """Return the number of bytes that ``moves`` copy, by the present sizes of the leaders' logs."""
    sizes = {
        (row.topic, row.partition): row.state.size_bytes
        for row in seen.rows
        if row.state is not None and row.state.leader is not None
    }
    return sum(len(move.added) * sizes.get((move.topic, move.partition), 0) for move in moves)


def _copied(one: MoveProgress) -> str:
    if one.state is not MoveState.MOVING or not one.total:
        return ""
    return f"{one.copied} of {one.total} ({one.fraction:.0%})"


class MoveBars:
    """Progress bars on standard error, as a context manager. If ``shown`` is false, nothing is printed."""

    def __init__(self, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            console=OutputConsole(stderr=True),
            disable=not shown,
        )
        self._bars: dict[TopicPartition | None, TaskID] = {}

    def __enter__(self) -> MoveBars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, progress: Sequence[MoveProgress]) -> None:
        if len(progress) > BARS_MAX:
            done = sum(one.fraction for one in progress) / len(progress)
            self._draw(None, f"{len(progress)} partitions", done)
            return
        for one in progress:
            self._draw(one.partition, str(one.partition), one.fraction)

    def _draw(self, key: TopicPartition | None, name: str, fraction: float) -> None:
        if key not in self._bars:
            self._bars[key] = self._progress.add_task(name, total=1.0)
        self._progress.update(self._bars[key], completed=fraction)
