"""Exports topics from their segment files to a folder of Parquet files; a run writes what is new.

The driver plans slices as ``nilometer-log`` does, tasks write a file for each, and the driver commits the
files together with the offsets at which the next run begins. The range of a run is fixed by its plan, so a
record is in the folder once, whenever a run is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from nilometer.pipeline.decode.column_decoder import HEADERS_COLUMN, KAFKA_COLUMNS, LOG_COLUMNS, arrow_schema
from nilometer.pipeline.errors import OptionError, PipelineError, SourceError
from nilometer.pipeline.source.log_folders.log_plan import LogOptions, parse_log_options, plan_from
from nilometer.pipeline.source.log_folders.log_slices import LogSlice, ReadableLog
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.positions import Bounds
from nilometer.pipeline.tables.staged_files import flush_folder, write_whole
from nilometer.storage.names import TopicPartition

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


# Writes slices of logs to Parquet files, in Spark's Python workers.
#
# The records go from the segment to the file as columns: no row is made, and none goes to Spark's process.
# They are the rows that the data source ``nilometer-log`` returns for the same slice, with the same types.

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


# The folder of an export: which files belong to it, and up to which offsets topics are in it.
#
# A run is committed by its manifest, ``_commits/0000000012.json``, which names its files and the offsets that
# the next run begins at. Then the folder of its files is renamed from ``_staged`` to ``data``: a reader of
# all files below ``data`` sees each run whole or not at all, and never twice. What a killed run has left is
# completed or removed by the next one.
#
# Invariant: one run at a time. A second one finds the lock, which the system releases when a process ends.

COMMITS: Final = "_commits"
DATA: Final = "data"
STAGED: Final = "_staged"
_LOCK: Final = ".lock"
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How an address begins, once it is a path: ``//`` is ``/`` then."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where the next run begins."""

    offsets: Mapping[TopicPartition, int]
    """Of each partition that was ever selected."""
    topic_ids: Mapping[str, str]
    """By the topic's name; a topic that is deleted and created again gets another id."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One committed run."""

    number: int
    columns: tuple[str, ...]
    position: Position
    files: tuple[SliceFile, ...]

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files)


class ExportedFolder:
    """An export in a folder of this machine. Methods that write are called within ``locked``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other runs out. Raises PipelineError if one is under way, or if the folder cannot be used."""
        try:
            lock = self._opened_lock()
        except OSError as error:
            raise PipelineError(f"{self.folder} cannot be used: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"another export to {self.folder} is under way") from None
            (self.folder / DATA).mkdir(exist_ok=True)
            yield

    def _opened_lock(self) -> IO[str]:
        existing = sorted(one.name for one in self.folder.iterdir()) if self.folder.is_dir() else []
        if existing and COMMITS not in existing:
            raise PipelineError(
                f"{self.folder} has other files, such as {existing[0]}: give a folder of its own"
            )
        (self.folder / COMMITS).mkdir(parents=True, exist_ok=True)
        return (self.folder / _LOCK).open("w")

    def manifests(self) -> list[Manifest]:
        """Return the committed runs, oldest first."""
        return [_manifest(path) for path in self._paths()]

    def last(self) -> Manifest | None:
        """Return the last committed run, whose files are then all in ``data``; remove what others left."""
        paths = self._paths()
        last = _manifest(paths[-1]) if paths else None
        if last is not None:
            self._publish(last.number)
        shutil.rmtree(self.folder / STAGED, ignore_errors=True)
        return last

    def stage(self, number: int) -> Path:
        """Return a new folder for the files of a run."""
        staged = self._staged(number)
        staged.mkdir(parents=True)
        return staged

    def commit(self, manifest: Manifest) -> None:
        """Add a run whose files are complete: if this process is killed meanwhile, all of them or none."""
        staged = self._staged(manifest.number)
        kept = {one.name for one in manifest.files}
        if not kept:
            shutil.rmtree(staged, ignore_errors=True)
        else:
            for path in staged.iterdir():
                if path.name not in kept:
                    path.unlink()  # of an attempt of a task that does not count
            for folder in (staged, staged.parent, self.folder):
                flush_folder(folder)
        said = {
            "number": manifest.number,
            "at": datetime.now(UTC).isoformat(),
            "columns": manifest.columns,
            "offsets": [
                [part.topic, part.partition, at] for part, at in sorted(manifest.position.offsets.items())
            ],
            "topic_ids": dict(manifest.position.topic_ids),
            "files": [asdict(one) for one in manifest.files],
        }
        write_whole(self.folder / COMMITS / f"{manifest.number:010d}.json", said)
        self._publish(manifest.number)

    def _paths(self) -> list[Path]:
        return sorted((self.folder / COMMITS).glob("[0-9]*.json"))

    def _staged(self, number: int) -> Path:
        return self.folder / STAGED / f"{number:010d}"

    def _publish(self, number: int) -> None:
        staged = self._staged(number)
        if staged.exists():
            staged.rename(self.folder / DATA / staged.name)
            flush_folder(self.folder / DATA)


def check_place(folder: Path) -> None:
    """Raise PipelineError for an address such as ``s3://bucket``, which would be made as a folder here."""
    if _ADDRESS.match(str(folder)):
        raise PipelineError(
            f"{folder} is no folder of this machine: export to one, or to one that is mounted on it"
        )


def check_columns(last: Manifest | None, columns: Sequence[str], folder: Path) -> None:
    """Raise PipelineError if the folder has files of other columns."""
    if last is not None and last.columns != tuple(columns):
        raise PipelineError(
            f"{folder} has the columns {', '.join(last.columns)}: give the same ones, or another folder"
        )


def _manifest(path: Path) -> Manifest:
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Manifest(
        said["number"],
        tuple(said["columns"]),
        Position(
            {TopicPartition(topic, number): at for topic, number, at in said["offsets"]}, said["topic_ids"]
        ),
        tuple(SliceFile(**one) for one in said["files"]),
    )


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
