"""Archives of folders, and what is read from them, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from nilometer.pipeline.archive.archiver import PartitionResult, archive
from nilometer.pipeline.archive.stored import check, explained, find_stored, open_stored
from nilometer.pipeline.source.log_folders.log_plan import parse_log_options, plan
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.positions import Bounds
from nilometer.runtime.object_store import ListedStore
from nilometer.tier.catalogue import StoredPartition
from nilometer.wire.compression import Codec

from ..logs.folder_logs import FolderLog

COLUMNS = ("key", "value", "partition", "offset", "timestamp", "leader_epoch")
DIVISIONS = ({}, {"bytesPerPartition": 1}, {"bytesPerPartition": 700}, {"minPartitions": 7})
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def numbered(start: int, count: int) -> list[tuple[int, bytes, bytes]]:
    return [(1_000 + n, b"k%d" % n, b"v%d" % n) for n in range(start, start + count)]


def append(log: FolderLog, batches: int, *, roll_every: int = 10, epoch: int = 0) -> None:
    """Append batches of ten records, and begin a segment before every so many of them."""
    for _ in range(batches):
        if log.next_offset and log.next_offset % (10 * roll_every) == 0:
            log.roll()
        number = log.next_offset // 10
        log.append(numbered(log.next_offset, 10), epoch=epoch, codec=Codec(number % 5))


def delete_segments(log: FolderLog, *bases: int) -> None:
    """As retention does it."""
    for base in bases:
        for suffix in SUFFIXES:
            log.path(suffix, base).unlink(missing_ok=True)


def events_log(folder: Path) -> FolderLog:
    """400 records in 40 batches, 4 segments and 2 leader epochs."""
    log = FolderLog(folder, "events")
    append(log, 16)
    append(log, 24, epoch=1)
    log.checkpoint()
    set_topic_id(log.folder, "a")
    return log


def set_topic_id(folder: Path, letter: str) -> str:
    """Give a partition's folder the topic id that consists of this letter; return the id."""
    topic_id = letter * 21 + "A"
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    return topic_id


def archive_topic(place: Path | str, target: Path | str, topic: str = "events", **given) -> PartitionResult:
    """Archive a topic with one partition; return the result of it."""
    (result,) = archive_topics([place], [topic], target, **given)
    return result


def archive_topics(
    places: Sequence[Path | str], topics: Sequence[str], target: Path | str | ListedStore, **given
) -> list[PartitionResult]:
    store = open_stored(str(target), creates=True) if isinstance(target, (Path, str)) else target
    return asyncio.run(archive([str(place) for place in places], topics, store, **given))


def stored_in(target: Path | str) -> list[StoredPartition]:
    """Return what an archive has, by topic, topic id and partition."""
    return asyncio.run(explained(find_stored(open_stored(str(target)), ())))


def problem_of(place: Path | str, target: Path | str, **given) -> str:
    """Archive the topic; return why that could not be done completely."""
    problem = archive_topic(place, target, **given).problem
    assert problem is not None
    return problem


def problems_in(target: Path | str) -> list[str]:
    return asyncio.run(check(open_stored(str(target)), stored_in(target))).problems


def rows_of(bounds: Bounds | None = None, columns: Sequence[str] = COLUMNS, **given) -> list[dict]:
    """Return what the options of ``nilometer-log`` read, in the order of partitions and offsets."""
    options = parse_log_options({key: str(value) for key, value in given.items()})
    return [
        row
        for one in plan(options, bounds or Bounds())
        for batch in read_slice(options, columns, one)
        for row in batch.to_pylist()
    ]


def offsets_of(bounds: Bounds | None = None, **given) -> list[int]:
    return [row["offset"] for row in rows_of(bounds, ("offset",), **given)]
