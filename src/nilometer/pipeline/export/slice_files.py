"""Writes slices of logs to Parquet files, in Spark's Python workers.

The records go from the segment to the file as columns: no row is made, and none goes to Spark's process. They
are the rows that the data source ``nilometer-log`` returns for the same slice, with the same types.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from nilometer.pipeline.decode.arrow_columns import HEADERS_COLUMN, arrow_schema
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.source.log_folders.log_options import LogOptions
from nilometer.pipeline.source.log_folders.log_slices import LogSlice
from nilometer.pipeline.source.log_folders.log_source import read_slice

if TYPE_CHECKING:
    import pyarrow

Compression = Literal["zstd", "snappy", "lz4", "none"]

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Bytes of Arrow's columns at which a row group is complete: few in a file, and little memory in a task."""
TOPIC_IN_NAME_MAX: Final = 200
"""Characters of a topic's name in a file's name, which has at most 255."""
_INCREASING: Final = ("offset", "timestamp")
"""Columns whose values are stored as differences."""
_PLAIN: Final = ("value", HEADERS_COLUMN, *_INCREASING)
"""Columns that seldom repeat a value: a dictionary of them would be made in vain."""


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A complete file, which belongs to the export once its run is committed."""

    name: str
    rows: int
    size: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class SliceTask:
    """What a task needs to know."""

    options: LogOptions
    columns: tuple[str, ...]
    compression: Compression
    folder: str
    """An existing folder of this machine, or one that the executors share."""
    wanted: LogSlice


def write_slice(task: SliceTask) -> SliceFile | None:
    """Write the records of a slice to a new file; None if there are none. Raises PipelineError.

    A task that is run again writes another file: the run knows which one counts.
    """
    one = task.wanted
    name = _file_name(one)
    groups = _row_groups(read_slice(task.options, task.columns, one))
    first = next(groups, None)
    if first is None:
        return None
    try:
        return _write(task, name, chain((first,), groups))
    except OSError as error:
        why = error.strerror or error
        raise PipelineError(
            f"{one.topic}-{one.partition} cannot be written to {task.folder}: {why}"
        ) from error


def _write(task: SliceTask, name: str, groups: Iterable[pyarrow.Table]) -> SliceFile:
    with Path(task.folder, name).open("xb") as file, _writer(file, task) as writer:
        rows = 0
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)
            rows += group.num_rows
        writer.close()
        file.flush()
        os.fsync(file.fileno())
        return SliceFile(name, rows, file.tell())


def _file_name(one: LogSlice) -> str:
    """Return a new name. Spark and Arrow skip files that begin with ``_`` or ``.``, as a topic's name may."""
    topic = one.topic[:TOPIC_IN_NAME_MAX]
    return f"topic-{topic}-{one.partition}-{one.start:020d}-{uuid.uuid4().hex[:8]}.parquet"


def _row_groups(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.Table]:
    import pyarrow as pa

    waiting: list[pyarrow.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _writer(file: Any, task: SliceTask) -> Any:
    columns: Sequence[str] = task.columns
    return import_module("pyarrow.parquet").ParquetWriter(
        file,
        arrow_schema(columns=columns),
        compression=task.compression,
        use_dictionary=[name for name in columns if name not in _PLAIN],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in columns if name in _INCREASING},
        write_statistics=[name for name in columns if name not in ("value", HEADERS_COLUMN)],
    )
