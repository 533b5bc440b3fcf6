"""Puts topics back that an archive or remote storage has: into empty partitions of brokers that do not run.

Either to the disks of the brokers, as here, or from store to store, for topics that stay in remote storage
(``tier_restore``). On disks records keep their offsets, timestamps, keys, values and headers. What only the
former cluster knows is left out: leader epochs, producer ids (the new cluster gives the same numbers to
others, whose batches would be taken for repeated ones) and transactions. Of these the committed records are
ordinary ones, the aborted are gone; the restored log ends where the first transaction begins that had not
ended in the store. Offsets without a record are an empty batch, so that the log has no gap.

Invariants: every segment is read and checked before a partition is written; a partition that has ever had a
record is not written; a run that fails leaves all of them empty.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
from msgspec import structs

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.pipeline.archive.replica_folders import LEADER_EPOCH, EmptyReplica, ReplicaFolders
from nilometer.pipeline.archive.stored import explained
from nilometer.pipeline.errors import SourceError
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import ObjectStore
from nilometer.storage.names import TopicPartition
from nilometer.tier.catalogue import StoredPartition, find_partitions
from nilometer.tier.format import Manifest, RemoteSegment
from nilometer.tier.transfer import checked_pieces
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    pack_batch,
    read_header,
    without_producer,
)
from nilometer.wire.records import ControlType, read_end_txn_marker

CHUNK_BYTES = 1024 * 1024
"""So much is appended at once."""
_EMPTY_MAX = 1 << 30
"""The most offsets of one empty batch."""
_PIECE_MAX = 1 << 30
"""The most offsets of what is appended at once: a segment has at most twice as many."""


# What is restored, and into which empty partitions: on disks and in remote storage.


_ENABLE = "remote.storage.enable"
RECENT_MS = 600_000
"""A topic that another cluster has written to within so long is taken for one that it still writes to."""


class Restored(msgspec.Struct):
    """What was put back of one partition, and what was not."""

    stored: StoredPartition
    part: TopicPartition
    """The partition that has the records now."""
    start: int
    end: int
    """The offset after the last record, or after the markers behind it."""
    replicas: int
    """How many replicas were written."""
    bytes: int = 0
    records: int | None = 0
    """None: an earlier run has copied them."""
    aborted: int | None = None
    """Transactions that were aborted in remote storage because their ends are not there."""
    aborted_records: int = 0
    """Records that are left out on disks: their transaction was aborted."""
    unfinished_records: int = 0
    """Records that are left out on disks: their transaction, or one before them, has no end in the store."""


class Wanted(msgspec.Struct, frozen=True):
    """A stored partition with the empty replicas that get its records."""

    stored: StoredPartition
    part: TopicPartition
    replicas: Sequence[EmptyReplica]

    @property
    def segments(self) -> Sequence[RemoteSegment]:
        """All that have records that may be read: there may be gaps between them."""
        manifest = manifest_of(self.stored)
        return [one for one in manifest.segments if one.end_offset > manifest.log_start_offset]

    @property
    def start(self) -> int:
        start = manifest_of(self.stored).log_start_offset
        return max([start, *(one.base_offset for one in self.segments[:1])])

    @property
    def end(self) -> int:
        return manifest_of(self.stored).end_offset


def manifest_of(stored: StoredPartition) -> Manifest:
    assert stored.manifest is not None, "without a manifest it is not restored"
    return stored.manifest


def parts_of(chosen: Mapping[str, Sequence[StoredPartition]], name: str | None) -> dict[str, TopicPartition]:
    """Return the partition that gets the records of each stored one, by the folder of that."""
    return {
        one.folder: TopicPartition(topic if name is None else name, one.partition)
        for topic, found in chosen.items()
        for one in found
    }


def create_command(stored: Sequence[StoredPartition], name: str, *, is_tiered: bool) -> str:
    """Return the command that creates the topic, from remote storage to there with its settings, which an
    archive does not tell: else nothing that was restored expires."""
    newest = _newest(stored)
    settings = newest.topic.settings if is_tiered and not newest.is_archive else {"retention.ms": "-1"}
    if is_tiered:
        settings = settings | {_ENABLE: "true"}
    configs = [word for key, value in sorted(settings.items()) for word in ("--config", f"{key}={value}")]
    options = ["--partitions", str(_partition_count(stored)), *configs]
    words = [*options, "--", name] if name.startswith("-") else [name, *options]
    return shlex.join(["nilometer", "topic", "create", *words])


async def chosen_topics(
    source: ObjectStore,
    topics: Sequence[str],
    name: str | None,
    topic_id: str | None,
    *,
    allows_missing: bool,
    own: Collection[tuple[str | None, str | None]] = (),
) -> dict[str, list[StoredPartition]]:
    """Return the stored partitions of each topic.

    ``name``: the topic that gets the records of the only one of ``topics``. ``topic_id``: the one to take of
    several stored topics of a name, ``ID`` or ``CLUSTER/ID``. ``allows_missing``: what the store lacks is no
    error. ``own``: the clusters and ids of topics that are to get records: what an earlier run has copied for
    them is none. Raises SourceError if they are not there, or several; ObjectStoreError.
    """
    if internal := sorted({*topics, *([] if name is None else [name])} & set(INTERNAL_TOPICS)):
        raise SourceError(
            f"{internal[0]} belongs to the cluster that wrote it: offsets of groups and states of "
            "transactions are not restored"
        )
    stored = await find_partitions(source, topics)
    chosen = dict[str, list[StoredPartition]]()
    for topic in dict.fromkeys(topics):
        named = {one.topic_key for one in stored if one.topic == topic and not one.is_deleted}
        keys = sorted(named - set(own))
        if not keys:
            raise SourceError(_nothing_of(topic, stored, is_own=bool(named)))
        found = [one for one in keys if topic_id in (None, one[1], "/".join(one))]
        shown = ", ".join("/".join(one) for one in found or keys)
        if not found:
            raise SourceError(f"the store has no topic {topic} with the id {topic_id}, but {shown}")
        if len(found) > 1:
            raise SourceError(f"the store has several topics named {topic}: choose --topic-id {shown}")
        # Of the others of this id no manifest tells the topic's name.
        chosen[topic] = [one for one in stored if one.topic_key == found[0] and not one.is_deleted]
        for one in chosen[topic]:
            if one.problem:
                raise SourceError(f"{one.folder} cannot be read: {one.problem}")
        if not allows_missing:
            _require_all(chosen[topic])
    return chosen


def _nothing_of(topic: str, stored: Sequence[StoredPartition], *, is_own: bool) -> str:
    if is_own:
        return (
            f"what the store has of topic {topic} is of this very topic, which needs no restore: start its "
            "brokers. --as restores into another topic"
        )
    unread = [f"\n{one.folder} cannot be read: {one.problem}" for one in stored if one.problem]
    return f"the store has no records of topic {topic}: `nilometer archive list` shows what it has" + "".join(
        unread
    )


def _newest(stored: Sequence[StoredPartition]) -> Manifest:
    found = [one.manifest for one in stored if one.manifest is not None]
    return max(found, key=lambda manifest: manifest.written_ms)


def _partition_count(stored: Sequence[StoredPartition]) -> int:
    """Return how many partitions the topic had, as far as it is known: an archive does not tell it."""
    return max(_newest(stored).topic.partition_count, *(one.partition + 1 for one in stored))


def _require_all(stored: Sequence[StoredPartition]) -> None:
    """Raises SourceError if partitions are missing, or offsets between others."""
    topic, count = stored[0].topic, _partition_count(stored)
    found = {one.partition for one in stored}
    lacking = (number for number in range(count) if number not in found)
    if (first := next(lacking, None)) is not None:
        missing = count - len(found)
        raise SourceError(
            f"the store has nothing of {missing} of the {count} partitions of {topic}, {topic}-"
            f"{first} for example: no segment of these was ever copied. --allow-missing restores the "
            "others, and leaves these empty"
        )
    for one in stored:
        for first, end in one.gaps:
            raise SourceError(
                f"the store lacks the offsets {first} to {end - 1} of {topic}-{one.partition}. With "
                "--allow-missing the others are restored: to disks all of them, at their offsets; to remote "
                f"storage those from offset {one.start_offset} on, where the topic then begins"
            )


def require_at_rest(stored: StoredPartition, cluster_id: str | None, now_ms: int) -> None:
    """Raises SourceError if another cluster than ``cluster_id`` may still write to what is restored."""
    manifest = manifest_of(stored)
    age_ms = now_ms - manifest.written_ms
    if age_ms < RECENT_MS and stored.cluster_id != cluster_id and not manifest.is_archive:
        raise SourceError(
            f"{stored.folder} was written to {max(age_ms, 0) // 1000} s ago: what the cluster "
            f"{stored.cluster_id} still writes does not come back, and a run on another machine would "
            "restore more than this one. End that cluster, or copy the store, then restore with "
            "--allow-recent"
        )


def wanted_partitions(
    folders: ReplicaFolders,
    chosen: Mapping[str, Sequence[StoredPartition]],
    parts: Mapping[str, TopicPartition],
    *,
    only_here: bool,
    is_tiered: bool = False,
) -> list[Wanted]:
    """Return the partitions with their empty replicas; ``only_here``: without those that have none here.

    Raises SourceError if one has none, or is in use.
    """
    replicas = {
        folder: folders.empty_replicas(part, may_begin_in_tier=is_tiered) for folder, part in parts.items()
    }
    wanted = list[Wanted]()
    for stored in chosen.values():
        name = parts[stored[0].folder].topic
        leaves_out = only_here and any(replicas[one.folder] for one in stored)
        count = _newest(stored).topic.partition_count
        if count and (found := folders.partitions_of(name)) and max(found) >= count:
            raise SourceError(
                f"{name} has more than the {count} partitions of the stored topic: create it again"
            )
        for one in stored:
            if replicas[one.folder]:
                wanted.append(Wanted(one, parts[one.folder], replicas[one.folder]))
            elif not leaves_out:
                raise SourceError(
                    f"no broker has a replica of {parts[one.folder]} here. Start the brokers, create the "
                    f"topic with\n  {create_command(stored, name, is_tiered=is_tiered)}\n"
                    "stop them, and restore again. If it is on other machines, --only-here leaves it to them"
                )
    return wanted


# To the disks.


async def restore(
    source: ObjectStore,
    topics: Sequence[str],
    places: Sequence[str],
    *,
    name: str | None = None,
    topic_id: str | None = None,
    allows_missing: bool = False,
    only_here: bool = False,
    allows_recent: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> list[Restored]:
    """Write stored ``topics`` into all their replicas in ``places``, folders of brokers that do not run.

    ``allows_recent``: also what another cluster may still write to. The other options are those of
    :func:`chosen_topics`. Raises PipelineError; then all that was written is removed again, or the message
    names the folders that still have some of it.
    """
    chosen = await explained(chosen_topics(source, topics, name, topic_id, allows_missing=allows_missing))
    parts = parts_of(chosen, name)
    with ExitStack() as opened:
        folders = ReplicaFolders(places, set(parts.values()), opened)
        wanted = wanted_partitions(folders, chosen, parts, only_here=only_here)
        histories: list[_History] = []
        now_ms = Runtime.system().clock.wall_ms()
        for one in wanted:  # all that may be refused, before the first is written
            if not allows_recent and not manifest_of(one.stored).is_archive:
                cluster_id, _ = folders.identity(one.part)
                require_at_rest(one.stored, cluster_id, now_ms)
            say(f"{one.stored.topic}-{one.stored.partition}: checking")
            histories.append(await explained(_History.read(source, one)))
        restored: list[Restored] = []
        with folders.undone_on_error():
            for one, history in zip(wanted, histories, strict=True):
                say(f"{one.part}: restoring")
                result = Restored(
                    one.stored, one.part, one.start, one.start, len(one.replicas), aborted_records=0
                )
                pieces = _joined(_restored(source, one, history, result))
                await explained(folders.write(one.part, one.replicas, one.start, pieces))
                folders.note_end(one.part, result.end)
                restored.append(result)
            folders.finish()
    return restored


# Reading a stored partition, whose batches are checked each time.


async def _batches(source: ObjectStore, one: Wanted) -> AsyncIterator[tuple[bytearray, int, BatchHeader]]:
    """Yield (buffer, position, header) of each batch, in the order of offsets."""
    offset = one.start
    for segment in one.segments:
        async for piece in checked_pieces(source, one.stored.folder, segment):
            for position, header in piece.batches:
                if header.next_offset > offset:  # segments may overlap
                    offset = header.next_offset
                    yield piece.records, position, header


@dataclass(frozen=True, slots=True)
class _History:
    """How the transactions of a partition ended."""

    aborted: frozenset[tuple[int, int]]
    """(producer id, first offset)"""
    cut: frozenset[tuple[int, int]]
    """Those before missing offsets, among which their ends may be; (producer id, first offset)."""
    stable_end: int
    """Where the first one begins that did not end; otherwise the end of what is stored."""

    @classmethod
    async def read(cls, source: ObjectStore, one: Wanted) -> _History:
        """Raises DamagedObject, ObjectStoreError."""
        running = _Running(one.stored)
        aborted: set[tuple[int, int]] = set()
        cut: set[tuple[int, int]] = set()
        async for buffer, position, header in _batches(source, one):
            cut.update(running.cut_before(header))
            ended = running.note(buffer, position, header)
            if ended is not None and ended[1] is ControlType.ABORT:
                aborted.add((header.producer_id, ended[0]))
        stable_end = min(running.first_offsets.values(), default=one.end)
        return cls(frozenset(aborted), frozenset(cut), stable_end)


class _Running:
    """The transactions that have begun, and not ended yet."""

    def __init__(self, stored: StoredPartition) -> None:
        self.first_offsets: dict[int, int] = {}
        """By producer id."""
        self._gaps = deque(end for _, end in stored.gaps)
        """Where those end that are not passed yet. Compaction keeps the ends of transactions, so offsets that
        are missing within a segment are none."""

    def cut_before(self, header: BatchHeader) -> list[tuple[int, int]]:
        """Forget the transactions that run where the store has a gap before this batch; return them."""
        cut = list[tuple[int, int]]()
        while self._gaps and self._gaps[0] <= header.base_offset:
            self._gaps.popleft()
            cut += self.first_offsets.items()
            self.first_offsets.clear()
        return cut

    def note(self, buffer: bytearray, position: int, header: BatchHeader) -> tuple[int, ControlType] | None:
        """Note a batch; return the first offset and the end of the transaction that it ends."""
        if not header.is_control:
            if header.is_transactional:
                self.first_offsets.setdefault(header.producer_id, header.base_offset)
            return None
        marker = read_end_txn_marker(buffer, position, header)
        if marker is None or (first := self.first_offsets.pop(header.producer_id, None)) is None:
            return None
        return first, marker.control_type


async def _restored(
    source: ObjectStore, wanted: Wanted, history: _History, one: Restored
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the batches of the restored log, each with the offset after it.

    Count in ``one`` what they have and what is left out.
    """
    running = _Running(wanted.stored)
    offset, kept = one.start, 0
    async for buffer, position, header in _batches(source, wanted):
        running.cut_before(header)
        running.note(buffer, position, header)
        if header.is_control:
            continue
        count = min(header.records_count, header.next_offset - one.start)
        producer = header.producer_id
        transaction = (producer, running.first_offsets[producer]) if header.is_transactional else None
        if header.base_offset >= history.stable_end or transaction in history.cut:
            one.unfinished_records += count
            continue
        if transaction in history.aborted:
            one.aborted_records += count
            continue
        for empty in _empty_batches(offset, header.base_offset):
            yield empty
        changed = structs.replace(without_producer(header), partition_leader_epoch=LEADER_EPOCH)
        with memoryview(buffer) as view:
            records = view[position + HEADER_BYTES : position + header.size]
            batch = pack_batch(changed, records)
        yield header.next_offset, batch
        kept += count
        one.bytes += len(batch)
        offset = header.next_offset
    for empty in _empty_batches(offset, history.stable_end):
        yield empty
    one.end, one.records = max(offset, history.stable_end), kept


def _empty_batches(offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield batches without a record for the offsets [offset, end), each with the offset after it."""
    while offset < end:
        size = min(end - offset, _EMPTY_MAX)
        header = BatchHeader(
            base_offset=offset,
            batch_length=0,
            partition_leader_epoch=LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=size - 1,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            records_count=0,
        )
        offset += size
        yield offset, pack_batch(header, b"")


async def _joined(restored: AsyncIterator[tuple[int, bytes]]) -> AsyncIterator[bytes]:
    """Yield the batches, given with the offset after each, in pieces of about ``CHUNK_BYTES``."""
    piece: list[bytes] = []
    size = first = 0
    async for end, batch in restored:
        if size >= CHUNK_BYTES or end - first > _PIECE_MAX:
            if piece:
                yield b"".join(piece)
            piece, size, first = [], 0, read_header(batch).base_offset
        piece.append(batch)
        size += len(batch)
    if piece:
        yield b"".join(piece)
