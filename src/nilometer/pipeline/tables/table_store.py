"""What a kind of table must do for ``table_writer``: tell its last batch, and commit another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.evolution import Change
from nilometer.pipeline.tables.staged_files import StagedFile
from nilometer.pipeline.tables.value_types import ValueType

APPLICATION, BATCH, ROWS = "nilometer.application", "nilometer.batch", "nilometer.rows"
"""The properties of a table, and of its commits, that tell what has been written to it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one micro-batch, complete in staged files."""

    application: str
    """The id of the query's checkpoint: batch ids count only within it."""
    batch_id: int
    files: tuple[StagedFile, ...]
    change: Change
    """How the table's columns change with this batch."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table, from its own history."""

    batch_id: int
    rows: int
    """The rows that the batch had: with upsert, the table grows by fewer."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Totals:
    rows: int
    files: int
    size: int
    """In bytes."""
    version: str


class TableStore(Protocol):
    """One table in a folder. Batches are committed by one process at a time."""

    def folder_of(self, batch_id: int) -> str:
        """Return the folder for a batch's staged files, relative to the table's."""
        ...

    def exists(self) -> bool: ...

    def columns(self) -> ValueType:
        """Return the columns of the table, which exists."""
        ...

    def application(self) -> str | None:
        """Return the application that created the table; None if another program did."""
        ...

    def create(self, application: str, columns: ValueType) -> None: ...

    def last_batch(self, application: str) -> int | None:
        """Return the last batch that is committed; None if there is none."""
        ...

    def commit(self, batch: Batch) -> None:
        """Commit rows, columns and batch id at once. All or nothing, also if the process is killed."""
        ...

    def compact(self) -> None:
        """Replace small files by larger ones. Raises PipelineError if the kind of table cannot."""
        ...

    def commits(self) -> Sequence[Commit]: ...

    def totals(self) -> Totals: ...


def needed(module: str) -> Any:
    """Import a module of the extra ``tables``. Raises PipelineError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PipelineError(
            f"{module.partition('.')[0]} is not installed: pip install 'nilometer[tables]' ({error})"
        ) from None


def file_names(files: Sequence[StagedFile]) -> set[str]:
    return {Path(file.path).name for file in files}
