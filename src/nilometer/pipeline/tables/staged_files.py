"""Writes rows to Parquet files of a batch, which belong to the table once they are committed.

The files of a batch are in a folder of its own below the table, so that those of an attempt that was killed
can be found and removed. A file is flushed to the disk before its name is returned.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.values import DAY

OPEN_FILES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete file of rows that are not yet in the table."""

    path: str
    """Relative to the table's folder."""
    rows: int
    size: int
    """In bytes."""
    day: str | None = None
    """The day of its records, as 2024-05-01; None if the table is not partitioned."""


def remove_staged(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove a batch's files whose names are not in ``keep``, such as those of an attempt that was killed."""
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.rglob("*.parquet"):
        if path.name not in keep:
            path.unlink(missing_ok=True)


def require_seen(table: Path, files: Iterable[StagedFile]) -> None:
    """Check that the files which executors have written are here. Raises PipelineError."""
    for one in files:
        path = table / one.path
        if not path.exists() or path.stat().st_size != one.size:
            raise PipelineError(
                f"an executor has written {path}, but this machine does not see it: the folder must be of a "
                "file system that the driver and all executors share"
            )


class StagingWriter:
    """Writes the rows of one task. Use as a context manager; ``finish`` returns the files."""

    def __init__(self, table: Path, folder: str, schema: pa.Schema) -> None:
        self._table = table
        self._folder = folder
        self._schema = schema
        self._parquet: Any = import_module("pyarrow.parquet")
        self._open: OrderedDict[date | None, _OpenFile] = OrderedDict()
        self._files: list[StagedFile] = []

    def __enter__(self) -> StagingWriter:
        (self._table / self._folder).mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open.values():
            one.file.close()

    def add(self, rows: Sequence[dict[str, Any]], day: date | None) -> None:
        """Write rows of one day. Raises pyarrow's errors if a row does not fit the schema."""
        batch = pa.RecordBatch.from_pylist(rows, schema=self._schema)
        one = self._open.get(day)
        if one is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(*self._open.popitem(last=False))
            one = self._open[day] = self._created(day)
        self._open.move_to_end(day)
        one.writer.write_batch(batch)
        one.rows += batch.num_rows

    def finish(self) -> list[StagedFile]:
        """Complete all files, and return them."""
        while self._open:
            self._close(*self._open.popitem(last=False))
        folders = {Path(file.path).parent for file in self._files} | {Path(self._folder)}
        for folder in folders | set(Path(self._folder).parents):
            flush_folder(self._table / folder)
        return self._files

    def _created(self, day: date | None) -> _OpenFile:
        # A Delta Lake writer names folders so too, and polars reads tables only if all paths do.
        folder = f"{self._folder}/{DAY}={day.isoformat()}" if day else self._folder
        (self._table / folder).mkdir(exist_ok=True)
        path = f"{folder}/{uuid.uuid4().hex}.parquet"
        file = (self._table / path).open("xb")
        return _OpenFile(path, file, self._parquet.ParquetWriter(file, self._schema, compression="zstd"))

    def _close(self, day: date | None, one: _OpenFile) -> None:
        one.writer.close()
        one.file.flush()
        os.fsync(one.file.fileno())
        size = one.file.tell()
        one.file.close()
        self._files.append(StagedFile(one.path, one.rows, size, day.isoformat() if day else None))


@dataclass(slots=True)
class _OpenFile:
    path: str
    file: Any
    writer: Any
    rows: int = 0


def write_whole(path: Path, said: dict[str, Any]) -> None:
    """Replace a file by one with ``said`` as JSON: after a crash it is the old or the new one."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(said, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
