"""Checks the replicas of a partition: each one's segments together, and the replicas against each other.

A replica is a log without gaps, with its leader epochs and its bounds; the batches of replicas must be equal
at every offset that several must have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from nilometer.pipeline.audit.segment_check import Finding, Kind, SegmentResult
from nilometer.pipeline.source.log_folders.places import ReplicaFolder
from nilometer.storage import names
from nilometer.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# Checks the segments of one replica together: a log without gaps, its leader epochs, its bounds. Pure.
#
# Uses the results of the segments and the checkpoints; reads no file. Offsets may be missing only below the
# offset up to which the log was compacted, which is in the cleaner's checkpoint.


@dataclass(slots=True)
class ReplicaResult:
    """The result of the check of one replica."""

    replica: ReplicaFolder
    log_start: int
    high_watermark: int | None
    end_offset: int
    segments: int
    batches: int
    records: int
    bytes: int
    is_known: bool = True
    """False if the broker replaced all segments before one could be read."""
    findings: list[Finding] = field(default_factory=list[Finding])


def check_replica(
    replica: ReplicaFolder,
    segments: Sequence[SegmentResult],
    epochs: Sequence[tuple[int, int]] | None,
    listed_again: Sequence[int] = (),
) -> ReplicaResult:
    """Check one replica and return its findings and numbers.

    ``segments`` are all that were listed, in the order of offsets; those deleted before they could be read
    (``is_gone``) are ignored. ``epochs`` are the entries (epoch, start offset) of the leader epoch
    checkpoint, None if it is unreadable. ``listed_again`` are the base offsets of a second listing, made if
    no segment could be read: if it has others, the broker was faster than the audit, and nothing is known of
    the log.
    """
    return _ReplicaCheck(replica, segments, epochs, listed_again).result()


class _ReplicaCheck:
    def __init__(
        self,
        replica: ReplicaFolder,
        segments: Sequence[SegmentResult],
        epochs: Sequence[tuple[int, int]] | None,
        listed_again: Sequence[int],
    ) -> None:
        self._replica = replica
        self._segments = [one for one in segments if not one.is_gone]
        has_others = not {one.base_offset for one in segments}.issuperset(listed_again)
        self._is_known = bool(self._segments) or not has_others
        self._epochs = epochs
        self._found: list[Finding] = []
        self._first = self._segments[0].base_offset if self._segments else 0
        self._end = self._segments[-1].end_offset if self._segments else 0
        self._log_start = replica.log_start([self._first])

    def result(self) -> ReplicaResult:
        for one in self._segments:
            self._found += one.findings
        if self._segments:
            self._check_continuity()
            self._check_bounds()
            self._check_epochs()
        elif self._replica.high_watermark and self._is_known:
            what = f"there is no segment; the high watermark is {self._replica.high_watermark}"
            self._find(Kind.MISSING_RECORDS, self._replica.place, None, 0, what)
        segments = self._segments
        return ReplicaResult(
            self._replica,
            self._log_start,
            self._replica.high_watermark,
            self._end,
            len(segments),
            sum(one.batches for one in segments),
            sum(one.records for one in segments),
            sum(one.bytes for one in segments),
            self._is_known,
            self._found,
        )

    def _check_continuity(self) -> None:
        for number, segment in enumerate(self._segments):
            for start, end, position in segment.gaps:
                if end > max(self._replica.cleaned_up_to, self._log_start):
                    what = f"offsets {start} to {end - 1} are missing"
                    self._find(Kind.MISSING_RECORDS, self._path(segment.base_offset), position, start, what)
            if number == 0:
                continue
            end = self._segments[number - 1].end_offset
            if end > segment.base_offset:
                what = f"the previous segment extends to offset {end}"
                self._find(
                    Kind.OFFSET_ORDER, self._path(segment.base_offset), None, segment.base_offset, what
                )
            elif end < segment.base_offset and segment.base_offset > self._replica.cleaned_up_to:
                what = f"a segment with offsets {end} to {segment.base_offset - 1} is missing"
                self._find(Kind.MISSING_RECORDS, self._path(end), None, end, what)

    def _check_bounds(self) -> None:
        replica, end = self._replica, self._end
        directory, part = replica.directory, replica.part
        watermark = replica.high_watermark
        if watermark is None:
            self._note(
                "its log directory has no high watermark checkpoint: it is not compared with other replicas"
            )
        elif watermark > end:
            what = (
                f"the log ends at {end}, below its high watermark {watermark}: "
                "a segment is missing or truncated"
            )
            self._find(Kind.MISSING_RECORDS, self._path(self._segments[-1].base_offset), None, end, what)
        elif self._log_start > max(watermark, self._first):
            what = f"the log start {self._log_start} is above the high watermark {watermark}"
            self._find(Kind.CHECKPOINT, self._checkpoint(names.LOG_START_OFFSET_CHECKPOINT), None, end, what)
        recovered = directory.recovery_points.get(part, 0)
        if recovered > end and (watermark is None or watermark <= end):
            what = f"the recovery point {recovered} is above the end of the log, {end}"
            self._find(Kind.CHECKPOINT, self._checkpoint(names.RECOVERY_POINT_CHECKPOINT), None, end, what)

    def _check_epochs(self) -> None:
        path = f"{self._replica.place}/{names.LEADER_EPOCH_CHECKPOINT}"
        runs = [run for segment in self._segments for run in segment.epochs]
        written = [run for run in runs if run[0] >= 0]
        if self._epochs is None:
            self._find(Kind.EPOCH, path, None, None, "the checkpoint cannot be read")
            return
        chain = list(self._epochs)
        if not chain:
            if written:
                self._find(
                    Kind.EPOCH, path, None, written[0][1], "the checkpoint has no epoch, but the log has"
                )
            return
        self._check_chain(path, chain)
        for epoch, offset in written:
            known = _epoch_at(chain, offset)
            if known is not None and known != epoch:
                what = f"the checkpoint has epoch {known} at offset {offset}; the log has epoch {epoch}"
                self._find(Kind.EPOCH, path, None, offset, what)
        gaps = self._gaps()
        for epoch, start in chain:
            if not self._first <= start < self._end or _is_in(gaps, start):
                continue  # no batch covers this offset: the first records of the epoch were cleaned away
            if (found := _epoch_at(runs, start)) not in (None, epoch):
                what = f"the checkpoint starts epoch {epoch} at offset {start}; the log has epoch {found}"
                self._find(Kind.EPOCH, path, None, start, what)

    def _gaps(self) -> list[tuple[int, int]]:
        """Return the ranges of offsets that no batch covers, in order: within segments and between them."""
        inner = [(start, end) for segment in self._segments for start, end, _ in segment.gaps]
        between = [(one.end_offset, two.base_offset) for one, two in pairwise(self._segments)]
        return sorted([*inner, *(gap for gap in between if gap[0] < gap[1])])

    def _check_chain(self, path: str, chain: Sequence[tuple[int, int]]) -> None:
        for before, here in pairwise(chain):
            if here[0] <= before[0] or here[1] <= before[1]:
                what = (
                    f"the checkpoint has epoch {here[0]} from offset {here[1]} "
                    f"after epoch {before[0]} from offset {before[1]}"
                )
                self._find(Kind.EPOCH, path, None, here[1], what)
        if chain[-1][1] > self._end:
            epoch, start = chain[-1]
            what = f"epoch {epoch} begins at offset {start}, after the end of the log, {self._end}"
            self._find(Kind.EPOCH, path, None, start, what)
        start = max(chain[0][1], self._log_start_checkpoint)
        is_missing = start < self._first and self._first > self._replica.cleaned_up_to
        if is_missing and not self._replica.begins_in_tier:
            what = (
                f"a segment with offsets {start} to {self._first - 1} is missing: the log starts at {start}"
            )
            self._find(Kind.MISSING_RECORDS, self._path(start), None, start, what)

    @property
    def _log_start_checkpoint(self) -> int:
        return self._replica.directory.log_start_offsets.get(self._replica.part, 0)

    def _path(self, base_offset: int) -> str:
        return f"{self._replica.place}/{names.offset_name(base_offset, names.LOG_SUFFIX)}"

    def _checkpoint(self, name: str) -> str:
        return f"{self._replica.directory.place}/{name}"

    def _note(self, what: str) -> None:
        self._find(Kind.NOTE, self._replica.place, None, None, what)

    def _find(self, kind: Kind, path: str, position: int | None, offset: int | None, what: str) -> None:
        part = self._replica.part
        self._found.append(
            Finding(
                kind, part.topic, part.partition, self._replica.directory.name, path, position, offset, what
            )
        )


def _is_in(gaps: Sequence[tuple[int, int]], offset: int) -> bool:
    """Whether ``offset`` is in one of the ``gaps``, which are in order and do not overlap."""
    number = bisect_right(gaps, offset, key=lambda gap: gap[0]) - 1
    return number >= 0 and offset < gaps[number][1]


def _epoch_at(runs: Sequence[tuple[int, int]], offset: int) -> int | None:
    """Return the epoch at ``offset``; None before the first. ``runs`` are (epoch, first offset) in order."""
    found: int | None = None
    for epoch, start in runs:
        if start > offset:
            break
        found = epoch
    return found


# Compares the replicas of a partition: their batches must be equal at every offset that several must have.
#
# A batch's *outline* is its CRC, which has been verified, and the header fields that the CRC does not cover
# (offset, size, leader epoch). Batches with equal outlines are equal. A batch is compared between the
# replicas in whose range, from log start offset to high watermark, it lies.

Outline = tuple[int, int, int, int]
"""Next offset, epoch, CRC, size."""
OUTLINE = "place string, base_offset bigint, next_offset bigint, epoch int, crc bigint, size int"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets [start, end) in which a replica must have the same batches as the others."""

    place: str
    group: str
    """Names the replicas that are compared with each other: those of a partition with the same topic id."""
    start: int
    end: int


def bounds_of(replicas: Sequence[ReplicaResult], log_starts: Mapping[str, int]) -> list[Bounds]:
    """Return the offsets in which each replica is compared.

    ``log_starts`` are the log start offsets by folder, read after everything else: records that retention
    deleted meanwhile are not compared. Offsets that any replica has compacted are not compared either, since
    each replica compacts independently.
    """
    groups: dict[tuple[TopicPartition, str | None], list[ReplicaResult]] = defaultdict(list)
    for one in replicas:
        if one.high_watermark is not None and one.replica.place in log_starts:
            groups[one.replica.part, one.replica.topic_id].append(one)
    found: list[Bounds] = []
    for (part, topic_id), members in sorted(groups.items(), key=str):
        cleaned = max(one.replica.cleaned_up_to for one in members)
        for one in members if len(members) > 1 else []:
            place = one.replica.place
            start = max(one.log_start, log_starts[place], cleaned)
            found.append(Bounds(place, f"{part}/{topic_id}", start, one.high_watermark or 0))
    return found


def compare(
    spark: SparkSession, outlines: DataFrame, bounds: Sequence[Bounds], replicas: Sequence[ReplicaResult]
) -> list[Finding]:
    """Return findings for the first difference of each partition.

    ``outlines`` has a row per batch and replica, with the columns of OUTLINE.
    """
    if not bounds:
        return []
    from pyspark.sql import functions as f

    groups: dict[str, list[Bounds]] = defaultdict(list)
    for one in bounds:
        groups[one.group].append(one)
    ranges = {name: [(one.start, one.end) for one in members] for name, members in groups.items()}
    known = spark.createDataFrame(
        [(one.place, one.group, one.start, one.end, ranges[one.group]) for one in bounds],
        "place string, `group` string, start bigint, `end` bigint, "
        "ranges array<struct<start: bigint, `end`: bigint>>",
    )
    having = "size(filter(ranges, r -> base_offset >= r.start and next_offset <= r.`end`))"
    held = (
        outlines.join(f.broadcast(known), "place")
        .where("base_offset >= start and next_offset <= `end`")
        .withColumn("expected", f.expr(having))
        .withColumn("outline", f.struct("next_offset", "epoch", "crc", "size"))
    )
    differing = (
        held.groupBy("group", "base_offset")
        .agg(
            f.max("expected").alias("expected"),
            f.min("outline").alias("low"),
            f.max("outline").alias("high"),
            f.collect_list(f.struct("place", "outline")).alias("copies"),
        )
        .where("size(copies) <> expected or low <> high")
    )
    first = differing.groupBy("group").agg(f.min(f.struct("base_offset", "copies")).alias("first"))
    by_place = {one.replica.place: one for one in replicas}
    return [
        finding
        for row in sorted(first.collect(), key=lambda row: row.group)
        for finding in _differences_at(
            row.first.base_offset,
            {one.place: tuple(one.outline) for one in row.first.copies},
            groups[row.group],
            by_place,
        )
    ]


def _differences_at(
    base_offset: int,
    copies: Mapping[str, Outline],
    members: Sequence[Bounds],
    by_place: Mapping[str, ReplicaResult],
) -> list[Finding]:
    """Return a finding for each replica that differs from the majority at ``base_offset``."""
    versions: dict[Outline, list[str]] = defaultdict(list)
    for place, outline in sorted(copies.items()):
        versions[outline].append(place)
    common = max(versions, key=lambda one: len(versions[one]))
    agreeing = ", ".join(by_place[place].replica.directory.name for place in versions[common])
    have = "have" if len(versions[common]) > 1 else "has"
    others = f"{agreeing} {have} {_described(base_offset, common)}"
    found: list[Finding] = []
    for outline, places in versions.items():
        for place in places if outline != common else []:
            what = f"the replica has {_described(base_offset, outline)}; {others}"
            found.append(_finding(by_place[place], base_offset, what))
    missing = f"the replica has no batch that starts at this offset; {others}"
    found += [
        _finding(by_place[one.place], base_offset, missing)
        for one in members
        if one.place not in copies and one.start <= base_offset and common[0] <= one.end
    ]
    return found


def _described(base_offset: int, outline: Outline) -> str:
    next_offset, epoch, crc, size = outline
    return f"offsets {base_offset} to {next_offset - 1} of epoch {epoch} in {size} bytes (CRC {crc:#010x})"


def _finding(one: ReplicaResult, offset: int, what: str) -> Finding:
    replica = one.replica
    part = replica.part
    return Finding(
        Kind.DIVERGENCE, part.topic, part.partition, replica.directory.name, replica.place, None, offset, what
    )
