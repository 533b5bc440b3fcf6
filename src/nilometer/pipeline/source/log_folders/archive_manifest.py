"""The manifest of an archived partition: its segments, their files, checksums and leader epochs. Pure.

An archive is a folder in any storage::

    <topic>/<topic id>/<partition>/manifest-0000000007-3f9c01aa.json
    <topic>/<topic id>/<partition>/00000000000000000100-5b1e22d0-77a01c4e.log    (.index, …)

A file is in the archive when a manifest names it. Each manifest names all segments that its writer knew; the
union of all manifests of a partition counts. So two writers lose nothing of each other, and a manifest may be
removed by the one who has written another with all its segments, or others in place of those whose files are
gone.

Invariant: a name never stands for other bytes: it contains the file's checksum and a random number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar, cast

from crc32c import crc32c

from nilometer.pipeline.errors import SourceError
from nilometer.storage import names
from nilometer.storage.names import TopicPartition

FORMAT = "nilometer-archive"
VERSION = 1

_MANIFEST_NAME = re.compile(r"manifest-([0-9]{10})-[0-9a-f]{8}\.json")

EpochRuns = Sequence[tuple[int, int]]
"""(leader epoch, first offset) of each run of batches, in the order of offsets."""


class Span(Protocol):
    """The offsets of a segment, in an archive or in remote storage."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]: ...


S = TypeVar("S", bound=Span)


@dataclass(frozen=True, slots=True)
class StoredFile:
    name: str
    bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    base_offset: int
    start_offset: int
    """The first offset that may be read: the log start offset, if that was inside the segment."""
    end_offset: int
    """The offset after the last one."""
    records: int
    max_timestamp: int
    """In milliseconds since 1970; -1 if no record has a timestamp."""
    epochs: tuple[tuple[int, int], ...]
    files: Mapping[str, StoredFile]
    """By suffix. The ``.snapshot`` has the producers at the end of the segment, not at its beginning."""

    @property
    def log(self) -> StoredFile:
        return self.files[names.LOG_SUFFIX]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    topic: str
    topic_id: str
    partition: int
    segments: tuple[ArchivedSegment, ...]

    @property
    def part(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def with_segments(self, added: Iterable[ArchivedSegment]) -> Manifest:
        """Return a manifest with these segments too. One with the same log replaces the former one."""
        by_log = {one.log.name: one for one in (*self.segments, *added)}
        ordered = sorted(by_log.values(), key=lambda one: (one.base_offset, one.end_offset, one.log.name))
        return Manifest(self.topic, self.topic_id, self.partition, tuple(ordered))

    def without(self, removed: Collection[ArchivedSegment]) -> Manifest:
        kept = tuple(one for one in self.segments if one not in removed)
        return Manifest(self.topic, self.topic_id, self.partition, kept)


# --- names


def manifest_name(sequence: int, token: int) -> str:
    """Return the name of a partition's manifest; ``token`` is random, so that two writers differ."""
    return f"manifest-{sequence:010d}-{token & 0xFFFFFFFF:08x}.json"


def sequence_of(name: str) -> int | None:
    """Return the number in a manifest's name; None for other names."""
    found = _MANIFEST_NAME.fullmatch(name)
    return int(found[1]) if found else None


def file_name(base_offset: int, checksum: int, token: int, suffix: str) -> str:
    """Return the name of a segment's file; ``token`` is random, so that no name is written twice."""
    return f"{base_offset:020d}-{checksum:08x}-{token & 0xFFFFFFFF:08x}{suffix}"


# --- text


def encode(manifest: Manifest) -> bytes:
    body = {
        "topic": manifest.topic,
        "topic_id": manifest.topic_id,
        "partition": manifest.partition,
        "segments": [_segment_json(one) for one in manifest.segments],
    }
    whole = {"format": FORMAT, "version": VERSION, "crc32c": f"{_checksum(body):08x}", "archive": body}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes, where: str) -> Manifest:
    """Parse a manifest; ``where`` names it in errors. Raises SourceError."""
    try:
        whole: Any = json.loads(data)
    except ValueError:
        raise SourceError(f"{where} is damaged: it is no JSON") from None
    if not isinstance(whole, dict) or cast(dict[str, Any], whole).get("format") != FORMAT:
        raise SourceError(f"{where} is not the manifest of an archive")
    document = cast(dict[str, Any], whole)
    if document.get("version") != VERSION:
        raise SourceError(
            f"{where} has version {document.get('version')}, and this Nilometer reads {VERSION}: "
            "use the version that wrote it, or a later one"
        )
    body: Any = document.get("archive")
    if document.get("crc32c") != f"{_checksum(body):08x}":
        raise SourceError(f"{where} is damaged: its checksum does not match")
    return Manifest(
        body["topic"],
        body["topic_id"],
        body["partition"],
        tuple(_segment_of(one) for one in body["segments"]),
    )


def _checksum(body: Any) -> int:
    return crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _segment_json(one: ArchivedSegment) -> dict[str, Any]:
    return {
        "base_offset": one.base_offset,
        "start_offset": one.start_offset,
        "end_offset": one.end_offset,
        "records": one.records,
        "max_timestamp": one.max_timestamp,
        "leader_epochs": [list(run) for run in one.epochs],
        "files": {
            suffix: {"name": file.name, "bytes": file.bytes, "crc32c": f"{file.crc32c:08x}"}
            for suffix, file in one.files.items()
        },
    }


def _segment_of(value: Mapping[str, Any]) -> ArchivedSegment:
    return ArchivedSegment(
        value["base_offset"],
        value["start_offset"],
        value["end_offset"],
        value["records"],
        value["max_timestamp"],
        tuple((epoch, offset) for epoch, offset in value["leader_epochs"]),
        {
            suffix: StoredFile(file["name"], file["bytes"], int(file["crc32c"], 16))
            for suffix, file in value["files"].items()
        },
    )


# --- ranges of offsets


def chain(segments: Iterable[ArchivedSegment]) -> list[ArchivedSegment]:
    """Return the segments that a reader uses: as few as contain all offsets, in the order of offsets.

    Segments of two replicas may overlap: then each begins inside the one before it. No two of a chain have
    the same base offset.
    """
    pending = sorted(segments, key=lambda one: (one.base_offset, one.end_offset))
    found: list[ArchivedSegment] = []
    end, at = -1, 0
    while at < len(pending):
        furthest = pending[at]
        limit = max(end, furthest.base_offset)
        while at < len(pending) and pending[at].base_offset <= limit:
            if pending[at].end_offset > furthest.end_offset:
                furthest = pending[at]
            at += 1
        if furthest.end_offset > end:
            found.append(furthest)
            end = furthest.end_offset
    return found


def runs(linked: Sequence[S]) -> list[list[S]]:
    """Divide a chain at its gaps."""
    found: list[list[S]] = []
    for one in linked:
        if found and one.base_offset <= found[-1][-1].end_offset:
            found[-1].append(one)
        else:
            found.append([one])
    return found


def gaps(linked: Sequence[ArchivedSegment]) -> list[tuple[int, int]]:
    """Return the ranges [start, end) that are missing in a chain."""
    return [
        (before.end_offset, here.base_offset)
        for before, here in pairwise(linked)
        if here.base_offset > before.end_offset
    ]


# --- leader epochs


def epochs_of(linked: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the runs of leader epochs of a chain."""
    found: list[tuple[int, int]] = []
    end = -1
    for one in linked:
        for number, (epoch, start) in enumerate(one.epochs):
            following = one.epochs[number + 1][1] if number + 1 < len(one.epochs) else one.end_offset
            if following > end and (not found or found[-1][0] != epoch):
                found.append((epoch, max(start, end)))
        end = one.end_offset
    return found


def chain_divergence(linked: Sequence[Span], theirs: EpochRuns, their_end: int) -> int | None:
    """Return the first offset at which a log has another leader epoch than the archive, or None."""
    for run in runs(linked):
        offset = divergence(epochs_of(run), run[-1].end_offset, theirs, their_end)
        if offset is not None:
            return offset
    return None


def divergence(mine: EpochRuns, my_end: int, theirs: EpochRuns, their_end: int) -> int | None:
    """Return the first offset at which two logs of one partition have different leader epochs, or None.

    Only offsets that both have are compared; a negative epoch is unknown. A log that begins where the other
    one ends, or later, may not begin with an older epoch.
    """
    if not mine or not theirs:
        return None
    low, high = max(mine[0][1], theirs[0][1]), min(my_end, their_end)
    if low >= high:
        is_first = my_end <= theirs[0][1]
        last_epoch = _epoch_at(mine, my_end - 1) if is_first else _epoch_at(theirs, their_end - 1)
        epoch, start = (theirs if is_first else mine)[0]
        return start if 0 <= epoch < last_epoch else None
    for offset in sorted({low, *(start for _, start in (*mine, *theirs) if low <= start < high)}):
        one, other = _epoch_at(mine, offset), _epoch_at(theirs, offset)
        if one != other and min(one, other) >= 0:
            return offset
    return None


def _epoch_at(epoch_runs: EpochRuns, offset: int) -> int:
    found = -1
    for epoch, start in epoch_runs:
        if start > offset:
            break
        found = epoch
    return found
