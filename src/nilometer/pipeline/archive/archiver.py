"""Archives topics: which sealed segments of each partition an archive does not have yet, and how they are
copied.

A run reads the last manifest of each partition, decides from its replicas what can be copied, copies it, and
writes the next manifest. Whatever ends a run between, the next one goes on from the last manifest. An archive
is remote storage without brokers (:mod:`nilometer.tier.format`): of runs at once each manifest has one
writer, and the others decide again from what it says.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from msgspec import structs

from nilometer.identifiers import uuid_to_text
from nilometer.pipeline.archive.stored import explained, find_orphans
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders import places as log_places
from nilometer.pipeline.source.log_folders.places import (
    ReplicaFolder,
    find_replicas,
    in_tier,
    replicas_in,
    shown,
    view_directory,
)
from nilometer.pipeline.source.log_folders.tiers import UNKNOWN_CLUSTER
from nilometer.runtime import Disk, Runtime
from nilometer.runtime.object_store import ListedStore, ObjectStore
from nilometer.storage import checkpoints, names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import TopicPartition
from nilometer.tier.catalogue import read_partition
from nilometer.tier.chain import Chain, Deposed
from nilometer.tier.earlier_archives import has_earlier
from nilometer.tier.format import (
    DamagedObject,
    Dropped,
    IndexSections,
    Manifest,
    RemoteSegment,
    TopicFacts,
    encode_index,
    encode_manifest,
    parse_indexes,
    partition_folder,
)
from nilometer.tier.plan import first_manifest
from nilometer.tier.segment_ranges import EpochRuns, chain, chain_divergence, divergence, epochs_of, gaps
from nilometer.tier.transfer import LogSummary, pieces_of
from nilometer.wire.record_batch import BatchHeader

# Decides which segments of a partition's replicas are copied. Pure.
#
# A segment is copied if it is sealed (another one follows it), complete below the high watermark, and has an
# offset that no archived segment has. The replica with the newest leader epoch below its high watermark comes
# first; replicas that diverge from it are not used.


@dataclass(frozen=True, slots=True)
class SourceLog:
    """What is known of one replica before any of its segments is read."""

    name: str
    bases: tuple[int, ...]
    """The base offsets of its segments; the last one is active."""
    log_start: int
    high_watermark: int
    epochs: EpochRuns
    """Its leader epoch checkpoint."""
    ends: tuple[int, ...] = ()
    """The ends of the segments, if all of them are sealed: of an archive."""

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record below the high watermark; -1 if unknown."""
        return max((epoch for epoch, start in self.epochs if start < self.high_watermark), default=-1)


@dataclass(frozen=True, slots=True)
class Copy:
    """One segment to copy: the number of the replica in the plan, and the segment's offsets [base, end)."""

    source: int
    base_offset: int
    end_offset: int
    start_offset: int
    """Its first offset that may be read."""


@dataclass(frozen=True, slots=True)
class Diverging:
    """A replica that is not used, because its log is another one from ``offset`` on."""

    name: str
    offset: int


def in_order(sources: Sequence[SourceLog]) -> list[int]:
    """Return the numbers of the replicas in the order in which they are used."""

    def rank(number: int) -> tuple[int, int, int]:
        one = sources[number]
        return -one.last_epoch, -one.high_watermark, one.log_start

    return sorted(range(len(sources)), key=rank)


def diverging(sources: Sequence[SourceLog]) -> dict[int, Diverging]:
    """Return the replicas whose log differs from that of the first one in order, by number."""
    order = in_order(sources)
    if not order:
        return {}
    first = sources[order[0]]
    found: dict[int, Diverging] = {}
    for number in order[1:]:
        one = sources[number]
        offset = divergence(first.epochs, first.high_watermark, one.epochs, one.high_watermark)
        if offset is not None:
            found[number] = Diverging(one.name, offset)
    return found


def decide_copies(sources: Sequence[SourceLog], archived: Iterable[tuple[int, int]]) -> list[Copy]:
    """Return the segments to copy, in the order of offsets; ``archived`` are ranges [start, end)."""
    unusable = diverging(sources)
    covered = list(archived)
    copies: list[Copy] = []
    for number in in_order(sources):
        if number in unusable:
            continue
        for base, end in sealed(sources[number]):
            start = max(base, sources[number].log_start)
            if not covers(covered, start, end):
                copies.append(Copy(number, base, end, start))
                covered.append((base, end))
    return sorted(copies, key=lambda one: (one.base_offset, one.end_offset))


def sealed(source: SourceLog) -> list[tuple[int, int]]:
    """Return base and end offset of the segments that are sealed, committed and not below the log start."""
    ranges = zip(source.bases, source.ends or source.bases[1:], strict=False)
    return [(base, end) for base, end in ranges if source.log_start < end <= source.high_watermark]


def why_none(sources: Sequence[SourceLog]) -> str | None:
    """Return why the log has no segment to copy; None if it has some."""
    order = in_order(sources)
    if not order:
        return "no replica of it is there"
    first = sources[order[0]]
    if len(first.bases) < 2:
        return (
            "its only segment is the active one, which is not copied: segment.bytes and segment.ms of the "
            "topic say when it is sealed"
        )
    if not sealed(first):
        return (
            f"its sealed segments are not known to be committed: {first.name} has a high watermark of "
            f"{first.high_watermark}, which its broker writes down when it stops, and every "
            "replica.high.watermark.checkpoint.interval.ms while it runs. Run this command again then"
        )
    return None


def covers(ranges: Iterable[tuple[int, int]], start: int, end: int) -> bool:
    """Whether the ranges together contain all of [start, end)."""
    for low, high in sorted(ranges):
        if low > start:
            break
        start = max(start, high)
    return start >= end


def fits(one: RemoteSegment, linked: Iterable[RemoteSegment]) -> bool:
    """Whether the order of a manifest has a place for a segment: none contains it, and it contains none."""
    return all(
        (one.base_offset - other.base_offset) * (one.end_offset - other.end_offset) > 0 for other in linked
    )


def lost(archived_end: int | None, sources: Sequence[SourceLog], end: int) -> list[tuple[int, int]]:
    """Return the range that no replica has any more and that the archive has not: deleted too early.

    ``archived_end`` is where the archive ended before, None if it was empty; ``end`` is its present end. What
    is missing between archived segments shows in the archive itself.
    """
    if archived_end is None or not sources:
        return []
    start = min(one.log_start for one in sources)
    return [(archived_end, start)] if start > archived_end and end <= archived_end else []


# Reads one sealed segment, checks every batch of it, and copies it with its indexes.
#
# The other files are read before the log is opened: a broker renames the log first when it deletes a segment,
# so that those of a log that is still there are complete.


class SegmentChanged(Exception):
    """The segment was deleted, or replaced by another one, since it was listed: the message says which."""


async def copy_segment(
    disk: Disk, source: str, copy: Copy, store: ObjectStore, folder: str, attempt: str
) -> RemoteSegment:
    """Copy a segment of the folder ``source`` to ``folder``, under names with ``attempt``.

    Raises SegmentChanged, SourceError and DamagedObject for a damaged segment, ObjectStoreError.
    """
    base = copy.base_offset
    path = posixpath.join(source, names.offset_name(base, names.LOG_SUFFIX))
    sections = _sections(disk, source, copy)
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError as error:
        _require_unnamed(disk, path, error)
        raise SegmentChanged(f"{path} was listed and then deleted") from error
    log = LogSummary(base)

    async def read(position: int, length: int) -> bytes:
        return file.read_at(position, length)

    async def parts() -> AsyncIterator[bytes]:
        async for piece in pieces_of(read, path, file.size(), base):
            _require_order(path, log, piece.batches)
            log.add(piece)
            yield bytes(piece.records)

    entry = RemoteSegment(base, copy.end_offset - 1, -1, 0, 0, bool(sections.aborted), attempt, ())
    try:
        await store.upload(folder + entry.log_name, parts())
    finally:
        file.close()
    try:
        if log.end_offset != copy.end_offset:
            raise SegmentChanged(
                f"{path} ends at offset {log.end_offset}, but the next segment begins at {copy.end_offset}: "
                "records are missing between them"
            )
        for one in parse_indexes(sections, base, path).aborted:
            if (one.producer_id, one.last_offset) not in log.aborts:
                raise SourceError(
                    f"the transaction index of {path} does not match it: producer {one.producer_id} has no "
                    f"abort marker at offset {one.last_offset}"
                )
    except (SegmentChanged, SourceError, DamagedObject):
        await store.remove(folder + entry.log_name)
        raise
    index = encode_index(sections)
    await store.put(folder + entry.index_name, index)
    return structs.replace(
        entry,
        max_timestamp=log.max_timestamp,
        log_bytes=log.bytes,
        index_bytes=len(index),
        epochs=tuple(log.epochs),
        log_crc=log.crc,
        records=log.records,
    )


def _require_order(path: str, log: LogSummary, found: Iterable[tuple[int, BatchHeader]]) -> None:
    """Raise SourceError if offsets are missing between batches, or leader epochs go back."""
    end, epoch = log.end_offset, log.epochs[-1][0] if log.epochs else -1
    for _, header in found:
        if header.base_offset != end:
            raise SourceError(
                f"{path}: a batch has the base offset {header.base_offset}, but the one before it ends at "
                f"{end}"
            )
        if header.partition_leader_epoch < epoch:
            raise SourceError(
                f"{path}: leader epoch {header.partition_leader_epoch} at offset {header.base_offset} comes "
                f"after epoch {epoch}"
            )
        end, epoch = header.next_offset, header.partition_leader_epoch


def _sections(disk: Disk, folder: str, copy: Copy) -> IndexSections:
    """Read the indexes and the producer snapshot at the end of the segment, those that exist."""

    def content(suffix: str, offset: int) -> bytes:
        path = posixpath.join(folder, names.offset_name(offset, suffix))
        try:
            return disk.read_file(path)
        except FileNotFoundError as error:
            _require_unnamed(disk, path, error)
            return b""

    return IndexSections(
        content(names.INDEX_SUFFIX, copy.base_offset),
        content(names.TIME_INDEX_SUFFIX, copy.base_offset),
        content(names.TXN_INDEX_SUFFIX, copy.base_offset),
        content(names.SNAPSHOT_SUFFIX, copy.end_offset),
    )


def _require_unnamed(disk: Disk, path: str, error: FileNotFoundError) -> None:
    """Raise SourceError if the file is an object that the manifest of a former archive names."""
    if disk.exists(path):
        raise SourceError(
            f"{error.filename or path} is missing, although the manifest of the former archive names it: its "
            "segment cannot be copied"
        ) from error


# Copies what is missing of one partition into an archive, and commits it in manifests.
#
# A manifest is written when the copies since the last one have sixteen times its size, at the end, and when
# the command is interrupted. If segments are deleted or replaced meanwhile, the copies are decided again.
#
# Invariants: nothing above a checkpointed high watermark is copied; a segment is copied from the folder of
# the topic id that its manifest has; a log that diverges from the archive is never added to it; nothing is
# written to a chain that brokers write.

ROUNDS = 20
COMMIT_SHARE = 16
"""How many times larger than the manifest the copies are that it commits."""
NO_LEADER_EPOCH = -1
LEFT_FOR_MS = 24 * 3600 * 1000
"""What no manifest names is removed after so long. A run does not take as long between two manifests."""


@dataclass(slots=True)
class PartitionResult:
    """What was done for one partition, and what its archive has now. Offsets are [start, end)."""

    part: TopicPartition
    topic_id: str
    start: int = 0
    end: int = 0
    high_watermark: int = 0
    segments_copied: int = 0
    bytes_copied: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Offsets that were deleted from the log before they were archived, as far as this run found it out."""
    notes: list[str] = field(default_factory=list[str])
    problem: str | None = None
    """Why the partition was not archived up to its last sealed segment."""


class PartitionArchiver:
    """Archives one partition of one topic id. ``replicas`` are its folders, ``former`` is another archive."""

    def __init__(
        self,
        store: ListedStore,
        replicas: Sequence[ReplicaFolder],
        former: Sequence[ReplicaFolder],
        say: Callable[[str], None],
    ) -> None:
        first = replicas[0]
        if first.topic_id is None:
            raise SourceError(
                f"{shown(first.place)} has no topic id (partition.metadata): its records could not be told "
                "from those of a topic that had this name before"
            )
        self._store = store
        self._replicas = list(replicas)
        self._former = [one for one in former if (one.part, one.topic_id) == (first.part, first.topic_id)]
        self._say = say
        self._runtime = Runtime.system()
        self._topic_id = first.topic_id
        cluster_id = next((known for one in replicas if (known := one.directory.cluster_id)), UNKNOWN_CLUSTER)
        facts = TopicFacts(cluster_id, first.topic_id, first.part.topic, first.part.partition, 0, {}, 0)
        self._first = structs.replace(first_manifest(facts, 0), is_archive=True)
        self._folder = partition_folder(cluster_id, first.topic_id, first.part.partition)
        self._chain = Chain(store, self._folder, self._name())
        self._pending: list[tuple[RemoteSegment, int]] = []
        """Each with its first offset that may be read."""
        self._incomplete: list[RemoteSegment] = []
        """Those that a manifest names, but of which an object is missing or has another size."""
        self._without_log: set[str] = set()
        """The attempts of those of them that have no log object at all: nothing can be read of them."""
        self._swept: set[str] = set()
        self._has_others = False
        """Whether the last manifest is another writer's, and was not compared with the log yet."""
        self.result = PartitionResult(first.part, first.topic_id)

    async def run(self) -> None:
        """Copy and commit what is missing, and set ``result``. Raises SourceError, ObjectStoreError."""
        await self.read()
        before = self._manifest.segments
        await self._sweep()
        has_copied = False
        try:
            await self.copy_all()
            has_copied = True
        finally:
            await self.commit()
            self._conclude(before, has_copied=has_copied)

    async def read(self) -> None:
        await self._chain.read()
        self._require_archive()

    def _require_archive(self) -> None:
        last = self._chain.last
        if last is not None and not last.is_archive:
            raise SourceError(f"{self._folder} is in the remote storage of brokers, which write it alone")

    @property
    def _manifest(self) -> Manifest:
        return self._chain.last or self._first

    async def _sweep(self) -> None:
        """Remove what killed runs have left."""
        now_ms = self._runtime.clock.wall_ms()
        for one in await find_orphans(self._store, self._folder, self._chain.last, now_ms - LEFT_FOR_MS):
            await self._store.remove(one.name)
            self._swept.add(one.name.removeprefix(self._folder))

    async def copy_all(self) -> None:
        changed = None
        for _ in range(ROUNDS):
            sources = self._sources()
            stored = await self._stored_ranges()
            copies = decide_copies(sources, stored)
            self._require_untiered([*stored, *((one.base_offset, one.end_offset) for one in copies)])
            self._note_diverging(sources)
            self._require_same_history(sources)
            try:
                for copy in copies:
                    await self._copy(copy, sources[copy.source])
                return
            except SegmentChanged as error:
                changed = error
            self._replicas = self._present_replicas()
        raise SourceError(f"{changed} ({ROUNDS} times in a row)")

    # --- what is there

    def _sources(self) -> list[SourceLog]:
        found: list[SourceLog] = []
        for one in self._replicas:
            disk, folder = one.open()
            try:
                bases = one.segments()
                if one.may_have_gaps:
                    raise SourceError(
                        f"{shown(one.place)} was compacted: its sealed segments change with each cleaning, "
                        "so an archive of them would not be the log. The pipeline `table` keeps a row per key"
                    )
                epochs = checkpoints.read_epochs(disk, posixpath.join(folder, names.LEADER_EPOCH_CHECKPOINT))
            except FileNotFoundError:
                bases, epochs = [], []  # deleted meanwhile
            except CorruptCheckpoint as error:
                raise SourceError(str(error)) from error
            if one.high_watermark is None:
                raise SourceError(
                    f"no high watermark is checkpointed for {shown(one.place)}, so it is unknown which "
                    "records are committed: try again once the broker has written one"
                )
            start = one.log_start(bases)
            name = one.directory.name
            found.append(SourceLog(name, tuple(bases), start, one.high_watermark, tuple(epochs)))
        return found + [_source_of(one) for one in self._former]

    def _present_replicas(self) -> list[ReplicaFolder]:
        """Read the replicas' checkpoints again; without those that were deleted or are of another topic."""
        directories = sorted({one.directory.place for one in self._replicas})
        present = [one for place in directories for one in replicas_in(view_directory(place))]
        places = {one.place for one in self._replicas}
        return [one for one in present if one.place in places and one.topic_id == self._topic_id]

    async def _stored_ranges(self) -> list[tuple[int, int]]:
        """Return the offsets of the archived segments whose objects are there, in full size.

        Those of others are copied again, and the manifest drops them when that is done.
        """
        listed = await self._store.listed(self._folder)
        sizes = {path.removeprefix(self._folder): one.bytes for path, one in listed.items()}
        stored: list[RemoteSegment] = []
        self._incomplete, self._without_log = [], set()
        for one in (*self._manifest.segments, *(segment for segment, _ in self._pending)):
            found = sizes.get(one.log_name), sizes.get(one.index_name)
            is_complete = found == (one.log_bytes, one.index_bytes)
            (stored if is_complete else self._incomplete).append(one)
            if one.log_name not in sizes:
                self._without_log.add(one.attempt)
        return [(one.base_offset, one.end_offset) for one in stored]

    def _require_untiered(self, covered: Sequence[tuple[int, int]]) -> None:
        """Raise SourceError if records are in remote storage only, and would be missing in the archive."""
        for one in self._replicas:
            try:
                only_there = one.only_in_tier(one.segments())
            except FileNotFoundError:
                continue  # deleted meanwhile
            if only_there is not None and not covers(covered, *only_there):
                raise SourceError(
                    f"{shown(one.place)} begins in remote storage, because the topic is tiered: offsets "
                    f"{only_there[0]} to {only_there[1] - 1} are not in the folder, and not in the archive. "
                    "Remote storage keeps them: a tiered topic needs no archive"
                )

    def _note_diverging(self, sources: Sequence[SourceLog]) -> None:
        """Note the replicas that are not used. Raises SourceError if the former archive has another log."""
        found, logs = diverging(sources), range(len(self._replicas))
        for number, one in found.items():
            if number not in logs or found.keys() >= set(logs):
                raise SourceError(
                    f"the former archive and the log of {self.result.part} diverge at offset {one.offset}: "
                    "their leader epochs differ. An unclean election may have removed archived records. "
                    "Archive without --former: its records stay where they are"
                )
            note = f"{one.name} is not used: its log differs from offset {one.offset} on"
            if note not in self.result.notes:
                self.result.notes.append(note)

    def _require_same_history(self, sources: Sequence[SourceLog]) -> None:
        """Raise SourceError if the log has other records than the archive at some offset."""
        linked = self._manifest.segments
        order = in_order(sources)
        if not linked or not order:
            return
        log = sources[order[0]]
        offset = chain_divergence(linked, log.epochs, log.high_watermark)
        if offset is not None:
            raise SourceError(
                f"the archive of {self.result.part} and the log of {log.name} diverge at offset {offset}: "
                "their leader epochs differ. An unclean election may have removed archived records. Archive "
                "into another place"
            )

    # --- copying

    async def _copy(self, copy: Copy, source: SourceLog) -> None:
        replica = [*self._replicas, *self._former][copy.source]
        disk, folder = replica.open()
        self._say(f"{replica.part} offset {copy.base_offset:,}")
        segment = await copy_segment(disk, folder, copy, self._store, self._folder, self._name())
        if not source.ends:
            self._require_unchanged(replica)
        self._require_epochs(replica, segment, source)
        self._pending.append((segment, copy.start_offset))
        self.result.segments_copied += 1
        self.result.bytes_copied += segment.log_bytes + segment.index_bytes
        committed = 0 if self._chain.last is None else len(encode_manifest(self._chain.last))
        copied = sum(one.log_bytes + one.index_bytes for one, _ in self._pending)
        if copied >= COMMIT_SHARE * committed and not self._is_replacing():
            await self.commit()

    def _is_replacing(self) -> bool:
        """Whether a part of an incomplete segment is copied, and the others of its offsets are not yet."""
        replaced = self._replaced()
        return any(
            one.base_offset < copied.end_offset and copied.base_offset < one.end_offset
            for one in self._incomplete
            if one not in replaced
            for copied, _ in self._pending
        )

    def _require_unchanged(self, replica: ReplicaFolder) -> None:
        """Check after a copy that it was not of another topic, or of a log whose compaction had begun."""
        disk, folder = replica.open()
        try:
            found = checkpoints.read_partition_metadata(
                disk, posixpath.join(folder, names.PARTITION_METADATA)
            )
        except CorruptCheckpoint:
            found = None
        if found is None or uuid_to_text(found) != self._topic_id:
            raise SegmentChanged(f"{shown(replica.place)} was deleted")
        if replica.may_have_gaps:
            raise SegmentChanged(f"{shown(replica.place)} is being compacted")

    def _require_epochs(self, replica: ReplicaFolder, segment: RemoteSegment, source: SourceLog) -> None:
        offset = divergence(segment.epochs, segment.end_offset, source.epochs, source.high_watermark)
        if offset is not None:
            raise SourceError(
                f"{shown(replica.place)} is damaged: the leader epoch at offset {offset} is not that of its "
                f"{names.LEADER_EPOCH_CHECKPOINT}"
            )

    async def commit(self) -> None:
        """Name what was copied in the next manifest. Raises SourceError, ObjectStoreError."""
        while self._pending or self._replaced():
            if self._has_others:
                self._require_archive()
                self._require_same_history(self._sources())
                self._pending = [one for one in self._pending if not self._manifest.mentions(one[0])]
                self._has_others = False
                continue
            following = self._following()
            try:
                if await self._chain.append_at_rest(NO_LEADER_EPOCH, following):
                    break
            except Deposed:  # others have written so much since that it is unknown whether this one counts
                await self._chain.read()
            self._has_others = True
        else:
            return
        for one, _ in self._pending:
            if one not in following.segments:  # another segment has these offsets, too
                for name in one.object_names:
                    await self._store.remove(self._folder + name)
        self._pending = []
        self._incomplete = [one for one in self._incomplete if one in following.segments]

    def _following(self) -> Manifest:
        last, linked = self._manifest, self._linked()
        now_ms = self._runtime.clock.wall_ms()
        gone = [name for one in last.segments if one not in linked for name in one.object_names]
        starts = [start for one, start in self._pending if one in linked]
        return structs.replace(
            last,
            segments=tuple(linked),
            dropped=(
                *(one for one in last.dropped if one.name not in self._swept),
                *(Dropped(name, now_ms) for name in gone),
            ),
            log_start_offset=min([*starts, *([last.log_start_offset] if last.segments else [])], default=0),
            written_ms=now_ms,
        )

    def _linked(self) -> list[RemoteSegment]:
        """Return the segments of the next manifest. Of those without a log only those stay in whose place
        nothing is."""
        replaced = self._replaced()
        known = (*self._manifest.segments, *(one for one, _ in self._pending))
        named = [one for one in known if one not in replaced]
        linked = chain([one for one in named if one.attempt not in self._without_log])
        lacking = [one for one in named if one.attempt in self._without_log and fits(one, linked)]
        return sorted([*linked, *lacking], key=lambda one: one.base_offset)

    def _replaced(self) -> list[RemoteSegment]:
        """Return the segments without all their objects whose offsets others have by now."""
        known = (*self._manifest.segments, *(one for one, _ in self._pending))
        ranges = [(one.base_offset, one.end_offset) for one in known if one not in self._incomplete]
        return [one for one in self._incomplete if covers(ranges, one.base_offset, one.end_offset)]

    def _conclude(self, before: Sequence[RemoteSegment], *, has_copied: bool) -> None:
        linked, result = self._manifest.segments, self.result
        sources = [one for one in self._sources_if_readable() if one.bases]
        result.start = self._manifest.log_start_offset
        result.end = self._manifest.end_offset
        result.high_watermark = max((one.high_watermark for one in sources), default=result.end)
        result.notes += [
            f"{self._folder}{one.log_name} or its index is missing in the archive, or has another size, and "
            "no copy has replaced them"
            for one in self._incomplete
            if one in linked
        ]
        if has_copied and not linked and sources and (why := why_none(sources)) is not None:
            result.notes.append(f"Nothing of {result.part} is copied: {why}.")
        result.gaps = gaps(linked)
        known = set(gaps(before))
        archived_end = before[-1].end_offset if before else None
        result.lost = [one for one in result.gaps if one not in known]
        result.lost += lost(archived_end, sources, result.end)

    def _sources_if_readable(self) -> list[SourceLog]:
        try:
            return self._sources()
        except SourceError:
            return []  # it was reported as the reason why nothing more was copied

    def _name(self) -> str:
        return self._runtime.entropy.bytes(8).hex()


def _source_of(former: ReplicaFolder) -> SourceLog:
    segments = former.segments_in_tier
    bases, ends = (tuple(one.base_offset for one in segments), tuple(one.end_offset for one in segments))
    start = former.log_start(list(bases))
    return SourceLog(
        "the former archive", bases, start, former.high_watermark or 0, epochs_of(segments), ends
    )


# Archives topics: every partition that has a replica in some folders, one after the other.
#
# A partition that cannot be archived does not stop the others: its result says why. What the archive's
# store refuses ends the run.


async def archive(
    places: Sequence[str],
    topics: Collection[str],
    store: ListedStore,
    say: Callable[[str], None] = lambda what: None,
    *,
    former: str | None = None,
) -> list[PartitionResult]:
    """Copy the sealed segments that are missing in the archive; return a result for each partition.

    ``former``: the place of another archive, of which all segments are copied, too. Raises SourceError
    if a topic is not in ``places``, or the store refuses something.
    """
    replicas = [one for one in find_replicas(places) if one.part.topic in topics]
    missing = sorted(set(topics) - {one.part.topic for one in replicas})
    if missing:
        where = ", ".join(shown(one) for one in places)
        raise SourceError(
            f"topic {missing[0]} has no replica in {where}: `nilometer topic list` shows topics"
        )
    found = [] if former is None else log_places.find_stored(former, topics)
    earlier = [in_tier(one) for one in found if one.is_archive]
    for cluster_id in sorted({one.directory.cluster_id or "" for one in replicas} - {""}):
        await explained(_require_no_tier(store, cluster_id))
    ordered = sorted(replicas, key=lambda one: (one.part, one.topic_id or ""))
    groups = [list(group) for _, group in groupby(ordered, key=lambda one: (one.part, one.topic_id))]
    only_read = await explained(_only_read(store, replicas))
    results = [await explained(_archive_partition(store, group, earlier, say, only_read)) for group in groups]
    _note_unused(earlier, results)
    return results


async def _only_read(store: ListedStore, replicas: Sequence[ReplicaFolder]) -> set[tuple[str, str]]:
    """Return topic and topic id of those that the archive has in format 1. Raises ObjectStoreError."""
    known = sorted({(one.part.topic, one.topic_id or "") for one in replicas})
    return {one for one in known if await has_earlier(store, *one)}


def _note_unused(former: Sequence[ReplicaFolder], results: Sequence[PartitionResult]) -> None:
    """Note each partition of a former archive of which no folder is here, beside another of its topic."""
    used = {(one.part, one.topic_id) for one in results}
    for one in former:
        if (one.part, one.topic_id) not in used:
            result = next(result for result in results if result.part.topic == one.part.topic)
            result.notes.append(
                f"The former archive has {one.part} with the topic id {one.topic_id}, of which no folder is "
                "here: it is not copied."
            )


async def _require_no_tier(store: ObjectStore, cluster_id: str) -> None:
    """Raise SourceError if the store is the remote storage of the cluster's brokers, who write it alone."""
    for topic in await store.folders(f"{cluster_id}/"):
        for partition in (await store.folders(topic))[:1]:
            number = partition.split("/")[-2]
            if not number.isdecimal():
                continue
            found = await read_partition(store, cluster_id, topic.split("/")[-2], int(number))
            if found.manifest is not None and not found.is_archive:
                raise SourceError(
                    f"the store is the remote storage of tiered topics of cluster {cluster_id}, which "
                    "brokers write: give another place"
                )


async def _archive_partition(
    store: ListedStore,
    replicas: Sequence[ReplicaFolder],
    former: Sequence[ReplicaFolder],
    say: Callable[[str], None],
    only_read: Collection[tuple[str, str]],
) -> PartitionResult:
    first = replicas[0]
    result = PartitionResult(first.part, first.topic_id or "")
    try:
        if (result.part.topic, result.topic_id) in only_read:
            raise SourceError(
                f"the archive has topic {result.part.topic} in format 1, which is only read: archive into "
                "another place; with --former and the former place it gets these records, too"
            )
        archiver = PartitionArchiver(store, replicas, former, say)
        result = archiver.result
        await archiver.run()
    except (SourceError, DamagedObject, OSError) as error:
        result.problem = str(error)
    return result
