"""Runs an audit: lists the segments, checks them on Spark, checks and compares the replicas, repeats; and
formats its result.
"""

from __future__ import annotations

import html
import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.groups.records import OffsetCommitKey, OffsetCommitValue, decode_record
from nilometer.pipeline.audit.replica_check import OUTLINE, ReplicaResult, bounds_of, check_replica, compare
from nilometer.pipeline.audit.segment_check import Finding, Kind, SegmentCheck, SegmentResult, SegmentWork
from nilometer.pipeline.decode.batch_table import BatchTable
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.source.log_folders.log_plan import parse_log_options, plan
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.log_folders.places import ReplicaFolder, find_replicas
from nilometer.pipeline.source.log_folders.storages import open_folder
from nilometer.pipeline.source.positions import Bounds
from nilometer.storage import checkpoints, names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import TopicPartition
from nilometer.wire.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession


# Runs an audit: lists the segments, checks them on Spark, checks and compares the replicas, repeats.
#
# The order of reading makes it correct while brokers run: checkpoints and committed offsets first, then logs,
# which contain at least the offsets of these; leader epochs and log start offsets last, since a log may have
# changed meanwhile. A finding may still be a race with a truncation or a deletion. So a finding is reported
# only if two more rounds over its partition find it again at the same place.

# Checks the offsets that consumer groups have committed: none may be above the log end offset.
#
# An offset below the log start offset is no error but a note: retention deleted records before the group read
# them. The offsets are read before the logs, so a log contains all records that could be consumed.

OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    group: str
    part: TopicPartition
    offset: int
    place: str
    """The folder of the internal topic's partition that it was read from."""
    at: int
    """The offset of its record in the internal topic."""


def read_committed_offsets(replicas: Iterable[ReplicaFolder]) -> list[CommittedOffset]:
    """Return the last committed offset of each group and partition, from ``__consumer_offsets``.

    Partitions of that topic that cannot be read are skipped: the check of their segments reports them.
    """
    by_part: dict[TopicPartition, list[str]] = {}
    for one in replicas:
        if one.part.topic == OFFSETS_TOPIC and one.high_watermark is not None:
            by_part.setdefault(one.part, []).append(one.place)
    found: dict[tuple[str, TopicPartition], CommittedOffset] = {}
    for part, places in sorted(by_part.items()):
        try:
            _read_partition(part, places, found)
        except (PipelineError, KafkaError):
            continue  # the check of the internal topic's own segments reports the damage
    return [found[key] for key in sorted(found)]


def _read_partition(
    part: TopicPartition, places: Sequence[str], found: dict[tuple[str, TopicPartition], CommittedOffset]
) -> None:
    options = parse_log_options(
        {
            "logDirs": ",".join(places),
            "assign": f'{{"{part.topic}": [{part.partition}]}}',
            "isolation.level": "read_committed",
            "failOnDataLoss": "false",
        }
    )
    for one in plan(options, Bounds()):
        for batch in read_slice(options, ("key", "value", "offset"), one):
            for row in batch.to_pylist():
                _fold(row["key"], row["value"], one.place, row["offset"], found)


def _fold(
    key: bytes | None,
    value: bytes | None,
    place: str,
    at: int,
    found: dict[tuple[str, TopicPartition], CommittedOffset],
) -> None:
    record = decode_record(key, value) if key is not None else None
    if record is None or not isinstance(record.key, OffsetCommitKey):
        return
    group, part = record.key.group, TopicPartition(record.key.topic, record.key.partition)
    if isinstance(record.value, OffsetCommitValue):
        found[group, part] = CommittedOffset(group, part, record.value.offset, place, at)
    else:
        found.pop((group, part), None)


def check_committed(committed: Iterable[CommittedOffset], replicas: Sequence[ReplicaResult]) -> list[Finding]:
    ends: dict[TopicPartition, int] = {}
    starts: dict[TopicPartition, int] = {}
    for one in replicas:
        if not one.is_known:
            continue
        part = one.replica.part
        ends[part] = max(ends.get(part, 0), one.end_offset)
        starts[part] = min(starts.get(part, one.log_start), one.log_start)
    found: list[Finding] = []
    for one in committed:
        if one.part not in ends:
            continue  # its topic is not audited, or was deleted
        if one.offset > ends[one.part]:
            what = f"group {one.group} committed offset {one.offset}; the log ends at {ends[one.part]}"
            found.append(_finding(Kind.COMMITTED_OFFSET, one, what))
        elif one.offset < starts[one.part]:
            what = (
                f"group {one.group} committed offset {one.offset}, below the log start {starts[one.part]}: "
                "records were deleted before the group read them"
            )
            found.append(_finding(Kind.NOTE, one, what))
    return found


def _finding(kind: Kind, one: CommittedOffset, what: str) -> Finding:
    return Finding(
        kind, one.part.topic, one.part.partition, f"group {one.group}", one.place, None, one.at, what
    )


CONFIRMATIONS = 2
"""The number of further rounds that must repeat a finding."""
CONFIRM_WAIT_S = 1.0
"""The pause between rounds: enough for a running broker to complete a change."""
TASK_BYTES = 64 * 1024 * 1024
TASKS_PER_CORE = 8

_SCHEMA = f"result string, {OUTLINE}"


@dataclass(frozen=True, slots=True)
class AuditResult:
    places: tuple[str, ...]
    replicas: tuple[ReplicaResult, ...]
    findings: tuple[Finding, ...]
    """Errors and notes."""
    committed: tuple[CommittedOffset, ...]
    seconds: float

    @property
    def wrong(self) -> list[Finding]:
        return [one for one in self.findings if one.is_wrong]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.replicas)


def audit(
    spark: SparkSession,
    places: Sequence[str],
    *,
    topics: Collection[str] = (),
    on_round: Callable[[str], None] = lambda _: None,
) -> AuditResult:
    """Audit all replicas in the folders ``places``, or only those of ``topics``.

    ``on_round`` is called with a line of progress for each round. Raises PipelineError if a topic has no
    replica there, or a place contains no log.
    """
    began = time.monotonic()
    first = _round(spark, places, lambda part: not topics or part.topic in topics, on_round)
    if missing := sorted(set(topics) - {one.replica.part.topic for one in first.replicas}):
        raise PipelineError(f"topic {', '.join(missing)} has no replica in {', '.join(places)}")
    findings = first.findings
    for number in range(CONFIRMATIONS):
        wrong = {one.key for one in findings if one.is_wrong}
        if not wrong:
            break
        affected = {TopicPartition(one.topic, one.partition) for one in findings if one.is_wrong}
        on_round(f"{len(wrong)} findings: checking them again ({number + 1} of {CONFIRMATIONS})")
        time.sleep(CONFIRM_WAIT_S)
        again = _round(spark, places, affected.__contains__, lambda _: None)
        still = {one.key for one in again.findings}
        findings = [one for one in findings if not one.is_wrong or one.key in still]
    ordered = sorted(
        findings, key=lambda one: (not one.is_wrong, one.topic, one.partition, one.path, one.offset or 0)
    )
    return AuditResult(
        tuple(places), tuple(first.replicas), tuple(ordered), tuple(first.committed), time.monotonic() - began
    )


@dataclass(slots=True)
class _Round:
    replicas: list[ReplicaResult]
    findings: list[Finding]
    committed: list[CommittedOffset]


def _round(
    spark: SparkSession,
    places: Sequence[str],
    is_wanted: Callable[[TopicPartition], bool],
    on_progress: Callable[[str], None],
) -> _Round:
    everything = find_replicas(places)
    replicas = [one for one in everything if is_wanted(one.part)]
    committed = read_committed_offsets(everything)
    works = plan_segments(replicas)
    on_progress(
        f"{len(replicas)} replicas, {len(works)} segments, {sum(one.bytes for one in works) / 1e6:,.0f} MB"
    )
    checked = check_segments(spark, works)
    checked.persist()
    try:
        results = _segment_results(checked)
        replica_results = [check_listed(one, results[one.place]) for one in replicas]
        bounds = bounds_of(replica_results, _log_starts(replica_results))
        outlines = checked.where("result is null")
        findings = [found for one in replica_results for found in one.findings]
        findings += compare(spark, outlines, bounds, replica_results)
    finally:
        checked.unpersist()
    findings += check_committed(committed, replica_results)
    findings += _directory_findings(replicas)
    return _Round(replica_results, findings, committed)


# --- segments


def plan_segments(replicas: Iterable[ReplicaFolder]) -> list[SegmentWork]:
    """Return the work for every segment of every replica. A segment deleted meanwhile has a size of 0."""
    works: list[SegmentWork] = []
    copies: dict[TopicPartition, int] = defaultdict(int)
    listed = list(replicas)
    for one in listed:
        copies[one.part] += 1
    for one in listed:
        disk, folder = open_folder(one.place)
        try:
            bases = one.segments()
        except FileNotFoundError:
            continue
        for base in bases:
            try:
                size = disk.file_size(f"{folder}/{names.offset_name(base, names.LOG_SUFFIX)}")
            except FileNotFoundError:
                size = 0
            works.append(
                SegmentWork(
                    one.part.topic,
                    one.part.partition,
                    one.directory.name,
                    one.place,
                    base,
                    base != bases[-1],
                    size,
                    one.cleaned_up_to,
                    copies[one.part] > 1,
                )
            )
    return works


def check_segments(spark: SparkSession, works: Sequence[SegmentWork]) -> DataFrame:
    """Check segments on Spark; return a row per segment, and a row per batch that is to be compared.

    In a segment's row ``result`` is JSON; in a batch's row it is null and the other columns are the outline.
    """
    cores = spark.sparkContext.defaultParallelism
    total = sum(one.bytes for one in works)
    count = max(1, min(len(works), max(cores, min(cores * TASKS_PER_CORE, total // TASK_BYTES))))
    bins: list[list[SegmentWork]] = [[] for _ in range(count)]
    loads = [0] * count
    for one in sorted(works, key=lambda work: -work.bytes):
        lightest = loads.index(min(loads))
        bins[lightest].append(one)
        loads[lightest] += one.bytes + 1
    return spark.range(0, count, 1, count).mapInArrow(partial(_check_bins, bins), _SCHEMA)


def _check_bins(
    bins: Sequence[Sequence[SegmentWork]], numbers: Iterable[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    """Check the segments of some bins; runs on an executor. ``numbers`` are the bins' indexes."""
    for batch in numbers:
        numbers_of_batch: list[int] = batch.column(0).to_pylist()
        for number in numbers_of_batch:
            for work in bins[number]:
                yield from _check_segment(work)


def _check_segment(work: SegmentWork) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa

    check = SegmentCheck(work)
    for table in check.run():
        if work.with_outlines:
            yield _outlines(work.place, table)
    value = asdict(check.result)
    columns: list[Any] = [pa.array([json.dumps(value)], pa.string())]
    columns += [pa.nulls(1, field.type) for field in _arrow_schema()][1:]
    yield pa.RecordBatch.from_arrays(columns, schema=_arrow_schema())


def _outlines(place: str, table: BatchTable) -> pyarrow.RecordBatch:
    import numpy as np
    import pyarrow as pa

    from nilometer.pipeline.decode import batch_kernels as fields

    rows = table.rows
    columns = [
        pa.nulls(len(rows), pa.string()),
        pa.repeat(pa.scalar(place, pa.string()), len(rows)),
        pa.array(rows[:, fields.BASE_OFFSET]),
        pa.array(table.next_offsets),
        pa.array(rows[:, fields.LEADER_EPOCH].astype(np.int32)),
        pa.array(rows[:, fields.CRC]),
        pa.array(rows[:, fields.SIZE].astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_arrow_schema())


def _arrow_schema() -> pyarrow.Schema:
    import pyarrow as pa

    names_and_types = (
        ("result", pa.string()),
        ("place", pa.string()),
        ("base_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("epoch", pa.int32()),
        ("crc", pa.int64()),
        ("size", pa.int32()),
    )
    return pa.schema([pa.field(name, kind) for name, kind in names_and_types])


def _segment_results(checked: DataFrame) -> dict[str, list[SegmentResult]]:
    """Return the segments' results by the replica's folder, in the order of offsets."""
    found: dict[str, list[SegmentResult]] = defaultdict(list)
    for row in checked.where("result is not null").select("result").collect():
        value = json.loads(row.result)
        value["findings"] = [Finding.from_json(one) for one in value["findings"]]
        for name in ("epochs", "gaps"):
            value[name] = [tuple(one) for one in value[name]]
        one = SegmentResult(**value)
        found[one.place].append(one)
    for results in found.values():
        results.sort(key=lambda one: one.base_offset)
    return found


# --- read after the segments were checked


def check_listed(replica: ReplicaFolder, results: Sequence[SegmentResult]) -> ReplicaResult:
    """Check a replica by the results of all segments that were listed, and by what its folder has now."""
    listed_again: Sequence[int] = ()
    if all(one.is_gone for one in results):
        try:
            listed_again = replica.segments()
        except FileNotFoundError:
            listed_again = ()  # the replica was deleted: the next round does not find it
    return check_replica(replica, results, read_epochs(replica), listed_again)


def read_epochs(replica: ReplicaFolder) -> list[tuple[int, int]] | None:
    disk, folder = open_folder(replica.place)
    try:
        return checkpoints.read_epochs(disk, f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}")
    except CorruptCheckpoint:
        return None


def _log_starts(replica_results: Sequence[ReplicaResult]) -> dict[str, int]:
    """Return the present log start offset of each replica by its folder; without deleted replicas."""
    starts: dict[str, int] = {}
    fresh = (
        {
            one.place: one
            for one in find_replicas(sorted({one.replica.directory.place for one in replica_results}))
        }
        if replica_results
        else {}
    )
    for one in replica_results:
        now = fresh.get(one.replica.place)
        if now is None:
            continue
        try:
            starts[now.place] = now.log_start(now.segments())
        except FileNotFoundError:
            continue
    return starts


def _directory_findings(replicas: Sequence[ReplicaFolder]) -> list[Finding]:
    """Report unreadable checkpoint files, for the directory's first replica, and ambiguous topic names.

    A topic name is ambiguous if replicas of its partition have different topic ids.
    """
    found: list[Finding] = []
    noted: set[str] = set()
    topic_ids: dict[TopicPartition, dict[str, str]] = defaultdict(dict)
    for one in replicas:
        directory, part = one.directory, one.part
        if one.topic_id is not None:
            topic_ids[part].setdefault(one.topic_id, one.place)
        if directory.place not in noted:
            noted.add(directory.place)
            found += [
                Finding(
                    Kind.CHECKPOINT,
                    part.topic,
                    part.partition,
                    directory.name,
                    directory.place,
                    None,
                    None,
                    what,
                )
                for what in directory.errors
            ]
    for part, ids in sorted(topic_ids.items()):
        if len(ids) > 1:
            place = sorted(ids.values())[-1]
            what = f"its replicas have {len(ids)} topic ids: {', '.join(sorted(ids))}"
            found.append(Finding(Kind.NOTE, part.topic, part.partition, "", place, None, None, what))
    return found


# Formats an audit's result: rows for a table on the screen, JSON for programs, an HTML page.

PARTITION_COLUMNS = (
    "partition",
    "replicas",
    "segments",
    "batches",
    "records",
    "bytes",
    "start",
    "high watermark",
    "end",
    "wrong",
)
_PARTITION, _BATCHES, _BYTES, _WRONG = (
    PARTITION_COLUMNS.index(name) for name in ("partition", "batches", "bytes", "wrong")
)
FINDING_COLUMNS = ("kind", "partition", "replica", "where", "offset", "what")


def partition_rows(result: AuditResult) -> list[tuple[Any, ...]]:
    """Return one row per partition, in the order of PARTITION_COLUMNS; counts are sums of its replicas."""
    groups: dict[TopicPartition, list[Any]] = defaultdict(list)
    for one in result.replicas:
        groups[one.replica.part].append(one)
    wrong: dict[TopicPartition, int] = defaultdict(int)
    for one in result.wrong:
        wrong[TopicPartition(one.topic, one.partition)] += 1
    rows: list[tuple[Any, ...]] = []
    for part, members in sorted(groups.items()):
        watermarks = [one.high_watermark for one in members if one.high_watermark is not None]
        rows.append(
            (
                str(part),
                len(members),
                sum(one.segments for one in members),
                sum(one.batches for one in members),
                sum(one.records for one in members),
                sum(one.bytes for one in members),
                _span(one.log_start for one in members),
                _span(watermarks),
                _span(one.end_offset for one in members),
                wrong[part],
            )
        )
    return rows


def folded_rows(result: AuditResult) -> list[tuple[Any, ...]]:
    """Return ``partition_rows`` with one row for all empty partitions of each internal topic.

    A topic such as ``__consumer_offsets`` has fifty partitions, most of them empty.
    """
    rows: list[tuple[Any, ...]] = []
    empty: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in partition_rows(result):
        topic = row[_PARTITION].rpartition("-")[0]
        if topic in INTERNAL_TOPICS and row[_BATCHES] == 0 and row[_WRONG] == 0:
            empty[topic].append(row)
        else:
            rows.append(row)
    return [*rows, *(_folded(topic, some) for topic, some in sorted(empty.items()))]


def _folded(topic: str, rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    if len(rows) == 1:
        return rows[0]
    sums = (sum(row[column] for row in rows) for column in range(_PARTITION + 1, _BYTES + 1))
    return (f"{topic}: {len(rows)} empty", *sums, "", "", "", 0)


def finding_rows(findings: Iterable[Finding]) -> list[tuple[Any, ...]]:
    return [
        (
            str(one.kind),
            f"{one.topic}-{one.partition}",
            one.replica,
            one.place,
            "" if one.offset is None else one.offset,
            one.what,
        )
        for one in findings
    ]


def summary(result: AuditResult) -> str:
    wrong = len(result.wrong)
    outcome = "no errors found" if not wrong else f"{wrong} error{'s' if wrong > 1 else ''} found"
    return (
        f"{len(result.replicas)} replicas, {result.bytes / 1e6:,.1f} MB in {result.seconds:.1f} s "
        f"({result.bytes / 1e9 / max(result.seconds, 1e-9):.2f} GB/s), "
        f"{len(result.committed)} committed offsets: {outcome}"
    )


def write_report(result: AuditResult, path: Path) -> None:
    """Write the report to ``path``: as JSON if its suffix is ``.json``, else as HTML."""
    text = to_json(result) if path.suffix == ".json" else to_html(result)
    path.write_text(text, encoding="utf-8")


def to_json(result: AuditResult) -> str:
    value = {
        "places": list(result.places),
        "summary": summary(result),
        "wrong": len(result.wrong),
        "findings": [one.to_json() for one in result.findings],
        "partitions": [dict(zip(PARTITION_COLUMNS, row, strict=True)) for row in partition_rows(result)],
    }
    return json.dumps(value, indent=1) + "\n"


def to_html(result: AuditResult) -> str:
    return "\n".join(
        [
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Nilometer audit</title>",
            f"<style>{_STYLE}</style>",
            "<h1>Audit</h1>",
            f"<p class='{'wrong' if result.wrong else 'right'}'>{html.escape(summary(result))}</p>",
            f"<p>{html.escape(', '.join(result.places))}</p>",
            "<h2>Found</h2>" if result.findings else "",
            _table(FINDING_COLUMNS, finding_rows(result.findings)) if result.findings else "",
            "<h2>Partitions</h2>",
            _table(PARTITION_COLUMNS, partition_rows(result)),
            "</html>",
            "",
        ]
    )


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;color:#222}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd;vertical-align:top;"
    "overflow-wrap:anywhere}td.n{text-align:right;white-space:nowrap}"
    ".wrong{color:#b00020;font-weight:600}.right{color:#0a6b2d;font-weight:600}"
)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return (
        f"<td class='n'>{value:,}</td>" if isinstance(value, int) else f"<td>{html.escape(str(value))}</td>"
    )


def _span(values: Iterable[int]) -> str:
    """Return one number if all values are equal, else the lowest and the highest."""
    known = sorted(set(values))
    if not known:
        return "unknown"
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} … {known[-1]:,}"
