"""Exports topics from their segment files to a folder of Parquet files; a run writes what is new.

The driver plans slices as ``nilometer-log`` does, tasks write a file for each, and the driver commits the
files together with the offsets at which the next run begins. The range of a run is fixed by its plan, so a
record is in the folder once, whenever a run is killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nilometer.pipeline.decode.arrow_columns import HEADERS_COLUMN, KAFKA_COLUMNS, LOG_COLUMNS
from nilometer.pipeline.errors import OptionError, SourceError
from nilometer.pipeline.export.exported_folder import (
    ExportedFolder,
    Manifest,
    Position,
    check_columns,
    check_place,
)
from nilometer.pipeline.export.slice_files import Compression, SliceFile, SliceTask, write_slice
from nilometer.pipeline.source.log_folders.log_options import LogOptions, parse_log_options
from nilometer.pipeline.source.log_folders.log_parts import ReadableLog
from nilometer.pipeline.source.log_folders.log_plan import plan_from
from nilometer.pipeline.source.pushed_filters import Bounds
from nilometer.storage.names import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

COLUMNS = (*KAFKA_COLUMNS, HEADERS_COLUMN, *LOG_COLUMNS)
"""All columns of ``nilometer-log``."""
Logs = Mapping[TopicPartition, ReadableLog]
RunTasks = Callable[[Sequence[SliceTask]], list[SliceFile]]
"""Runs ``write_slice`` for each task; returns the files."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What one run has added."""

    rows: int
    files: int
    bytes: int
    """The size of the files."""
    ranges: Mapping[TopicPartition, tuple[int, int]]
    """The offsets [start, end) that the run has read, for each partition that was selected."""


def export_topics(
    spark: SparkSession,
    options: Mapping[str, str],
    folder: Path,
    *,
    columns: Sequence[str] = COLUMNS,
    compression: Compression = "zstd",
) -> Exported:
    """Write the records that ``folder`` does not have yet to Parquet files in it; Spark runs the tasks.

    ``options`` are those of the data source ``nilometer-log``; the ones that say where to start hold for the
    first run. The folder must be on this machine or shared by the executors. Raises PipelineError: an option
    or a column that is unknown, a folder of something else, records that cannot be read.
    """
    return export(partial(_on_spark, spark), options, folder, columns=columns, compression=compression)


def export(
    run_tasks: RunTasks,
    options: Mapping[str, str],
    folder: Path,
    *,
    columns: Sequence[str] = COLUMNS,
    compression: Compression = "zstd",
) -> Exported:
    """Do as :func:`export_topics`, with any way of running the tasks."""
    parsed = check_export(options, columns, folder)
    target = ExportedFolder(folder.absolute())
    with target.locked():
        last = target.last()
        check_columns(last, columns, folder)
        before = last.position if last is not None else None
        planned = plan_from(parsed, Bounds(), partial(_continued, before, folder))
        ends = {part: end for part, (_, end) in planned.ranges.items()}
        known = before or Position({}, {})
        position = Position({**known.offsets, **ends}, {**known.topic_ids, **planned.topic_ids})
        files: list[SliceFile] = []
        if planned.slices or position != before:
            number = last.number + 1 if last is not None else 1
            staged = str(target.stage(number))
            tasks = [SliceTask(parsed, tuple(columns), compression, staged, one) for one in planned.slices]
            files = run_tasks(tasks) if tasks else []
            target.commit(Manifest(number, tuple(columns), position, tuple(files)))
    size = sum(one.size for one in files)
    return Exported(sum(one.rows for one in files), len(files), size, planned.ranges)


def check_export(options: Mapping[str, str], columns: Sequence[str], folder: Path) -> LogOptions:
    """Return the parsed options. Raises PipelineError for an option or a column that is unknown, and for a
    folder that is none."""
    check_place(folder)
    if not columns or len(set(columns)) < len(columns) or not set(columns) <= set(COLUMNS):
        raise OptionError("columns", ",".join(columns), f"must be some of {', '.join(COLUMNS)}, each once")
    return parse_log_options(options)


def _continued(before: Position | None, folder: Path, logs: Logs) -> Mapping[TopicPartition, int] | None:
    """Return where the run before has ended; None if this is the first one. Raises SourceError.

    Partitions that are new begin at their start.
    """
    if before is None:
        return None
    for part, log in logs.items():
        topic_id = log.parts[-1].replica.topic_id
        known = before.topic_ids.get(part.topic, topic_id)
        if topic_id is not None and topic_id != known:
            raise SourceError(
                f"topic {part.topic} was deleted and created again since its export to {folder}: "
                "export it to another folder"
            )
        if before.offsets.get(part, 0) > log.end:
            raise SourceError(
                f"{part} is in {folder} up to offset {before.offsets[part]}, but here only up to {log.end}: "
                "read the replica that is ahead; if an unclean election has removed records, export to "
                "another folder"
            )
    return {part: before.offsets.get(part, log.start) for part, log in logs.items()}


# --- on Spark

_RESULT = "file string"


def _on_spark(spark: SparkSession, tasks: Sequence[SliceTask]) -> list[SliceFile]:
    count = len(tasks)
    frame = spark.range(0, count, 1, count).mapInArrow(partial(_run_numbered, tasks), _RESULT)
    return [SliceFile(**json.loads(row.file)) for row in frame.collect()]


def _run_numbered(
    tasks: Sequence[SliceTask], numbers: Iterable[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    """Run the tasks of these numbers, on an executor."""
    import pyarrow as pa

    for batch in numbers:
        wanted: list[int] = batch.column(0).to_pylist()
        written = [file for number in wanted if (file := write_slice(tasks[number])) is not None]
        found = [json.dumps(asdict(one)) for one in written]
        yield pa.RecordBatch.from_arrays([pa.array(found, pa.string())], ["file"])
