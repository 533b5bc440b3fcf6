"""Reads the high watermarks in brokers' checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..eventually import eventually

_WAIT_S = 60.0


def checkpointed(data_dir: Path, topic: str) -> dict[int, int]:
    """Return the checkpointed high watermark of each partition of a topic."""
    path = data_dir / "replication-offset-checkpoint"
    lines = [line.split() for line in path.read_text().splitlines()[2:]] if path.exists() else []
    return {int(partition): int(offset) for name, partition, offset in lines if name == topic}


def wait_for_checkpoint(data_dir: Path, topic: str, ends: Mapping[int, int]) -> None:
    eventually(lambda: checkpointed(data_dir, topic) == ends, f"a checkpoint of {topic} at {ends}", _WAIT_S)
