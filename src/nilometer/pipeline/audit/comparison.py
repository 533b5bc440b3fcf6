"""Compares the replicas of a partition: their batches must be equal at every offset that several must have.

A batch's *outline* is its CRC, which has been verified, and the header fields that the CRC does not cover
(offset, size, leader epoch). Batches with equal outlines are equal. A batch is compared between the replicas
in whose range, from log start offset to high watermark, it lies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nilometer.pipeline.audit.findings import Finding, Kind
from nilometer.pipeline.audit.replica_check import ReplicaResult
from nilometer.storage.names import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
