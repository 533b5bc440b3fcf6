"""Reads and writes reassignment files; reports an invalid file as a command-line error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.replicas.reassignment_file import (
    BadReassignment,
    Targets,
    format_reassignment,
    parse_reassignment,
)


def read_targets(file: Any) -> Targets:
    try:
        return parse_reassignment(file.read())
    except BadReassignment as error:
        raise click.ClickException(f"{file.name}: {error}") from None


def write_targets(path: Path, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
    path.write_text(format_reassignment(targets) + "\n", encoding="utf-8")


def write_rollback(path: Path, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
    """Write the way back. Raises ClickException if the file exists: earlier moves may need it."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(format_reassignment(targets) + "\n")
    except FileExistsError:
        raise click.ClickException(
            f"--rollback: {path} exists, and may be what undoes earlier moves: name another file. "
            "Nothing was moved."
        ) from None
