"""Checks the offsets that consumer groups have committed: none may be above the log end offset.

An offset below the log start offset is no error but a note: retention deleted records before the group read
them. The offsets are read before the logs, so a log contains all records that could be consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nilometer.groups.record_format import decode_record
from nilometer.groups.records import OffsetCommitKey, OffsetCommitValue
from nilometer.pipeline.audit.findings import Finding, Kind
from nilometer.pipeline.audit.replica_check import ReplicaResult
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.source.log_folders.log_options import parse_log_options
from nilometer.pipeline.source.log_folders.log_plan import plan
from nilometer.pipeline.source.log_folders.log_source import read_slice
from nilometer.pipeline.source.log_folders.replica_folders import ReplicaFolder
from nilometer.pipeline.source.pushed_filters import Bounds
from nilometer.storage.names import TopicPartition
from nilometer.wire.errors import KafkaError

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


def committed_by_partition(committed: Iterable[CommittedOffset]) -> Mapping[TopicPartition, int]:
    """Return the number of groups that have a committed offset, per partition."""
    counts: dict[TopicPartition, int] = {}
    for one in committed:
        counts[one.part] = counts.get(one.part, 0) + 1
    return counts
