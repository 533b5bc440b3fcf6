"""Brings tiered topics back from remote storage alone: into empty partitions of brokers that do not run.

The segments are copied to the new topic's folder of the store (``tier.transfer``), and the chain there gets a
manifest that names them; then each replica begins behind them, with an empty log of its own. So the disks of
the brokers need no room for the records.

Invariants: a partition that has ever had a record is not written. A run that fails, or is killed, leaves
partitions that are empty for every reader, or complete; the same command again goes on with the partitions
that have no manifest of it yet. While records are copied no directory is open: one whose opener is killed has
to be recovered by its broker. Brokers that start before remove what an interrupted run has copied.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import msgspec

from nilometer.pipeline.archive.replica_folders import EmptyReplica, ReplicaFolders, local_replicas
from nilometer.pipeline.errors import SourceError
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import ObjectStore, ObjectStoreError
from nilometer.storage.names import TopicPartition
from nilometer.tier.catalogue import StoredPartition, find_partitions
from nilometer.tier.chain import Chain, Deposed
from nilometer.tier.format import (
    DamagedObject,
    Manifest,
    TopicFacts,
    partition_folder,
)
from nilometer.tier.plan import first_manifest
from nilometer.tier.transfer import LEADER_EPOCH, NO_PRODUCERS, SEGMENTS_AT_ONCE, Copied, copy_partition

T = TypeVar("T")
_WRITER = "restore"
ENABLE = "remote.storage.enable"


class RestoredTier(msgspec.Struct):
    """What came back of one partition."""

    stored: StoredPartition
    part: TopicPartition
    """The partition that has the records now."""
    start: int
    end: int
    """The offset after the last record, or after the markers behind it."""
    bytes: int
    replicas: int
    records: int | None
    """None: an earlier run has copied them."""
    aborted: int | None
    """Transactions that were aborted because their ends are not in the store; None as for the records."""


class _Wanted(msgspec.Struct, frozen=True):
    stored: StoredPartition
    part: TopicPartition
    replicas: Sequence[EmptyReplica]
    folder: str
    facts: TopicFacts


def create_command(stored: Sequence[StoredPartition], name: str) -> str:
    """Return the command that creates the topic with the settings that it had."""
    facts = _newest(stored).topic
    settings = dict(sorted((facts.settings | {ENABLE: "true"}).items()))
    configs = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
    options = ["--partitions", str(facts.partition_count), *configs]
    words = [*options, "--", name] if name.startswith("-") else [name, *options]
    return shlex.join(["nilometer", "topic", "create", *words])


async def restore(
    source: ObjectStore,
    target: ObjectStore,
    topics: Sequence[str],
    places: Sequence[str],
    *,
    name: str | None = None,
    topic_id: str | None = None,
    allows_missing: bool = False,
    only_here: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> list[RestoredTier]:
    """Restore ``topics`` into all their replicas in ``places``, folders of brokers that do not run.

    ``target``: the remote storage of these brokers. ``name``: the topic that gets the records of the only one
    of ``topics``. ``topic_id``: the one to take of several stored topics of a name, ``ID`` or ``CLUSTER/ID``.
    ``allows_missing``: what the store lacks is no error. ``only_here``: partitions without a replica in
    ``places`` are left out.
    Raises SourceError.
    """
    own = {
        (one.directory.cluster_id, one.topic_id)
        for one in local_replicas(places)
        if one.part.topic in ((name,) if name else topics)
    }
    chosen = await explained(_chosen(source, topics, topic_id, own))
    if not allows_missing:
        for found in chosen.values():
            _require_all(found)
    parts = {
        one.folder: TopicPartition(name or one.topic, one.partition)
        for found in chosen.values()
        for one in found
    }

    def opened_by(opened: ExitStack) -> tuple[ReplicaFolders, list[_Wanted]]:
        folders = ReplicaFolders(places, set(parts.values()), opened)
        return folders, [
            one
            for topic, found in chosen.items()
            for one in _wanted(folders, found, parts, name or topic, only_here=only_here)
        ]

    run = _Run(source, target, say)
    with ExitStack() as opened:
        _, wanted = opened_by(opened)
        await explained(run.check(wanted))
    copies = await explained(run.copy(wanted))
    with ExitStack() as opened:
        folders, found_again = opened_by(opened)
        if [one.folder for one in found_again] != [one.folder for one in wanted]:
            raise SourceError("the folders of the brokers have changed meanwhile: restore again")
        with folders.undone_on_error():
            restored = await explained(run.begin(folders, found_again, copies))
            folders.finish()
    return restored


async def explained(work: Coroutine[Any, Any, T]) -> T:
    """Raises SourceError for what the store, or an object in it, refuses."""
    try:
        return await work
    except (ObjectStoreError, DamagedObject) as error:
        raise SourceError(str(error)) from error


async def _chosen(
    source: ObjectStore,
    topics: Sequence[str],
    topic_id: str | None,
    own: Collection[tuple[str | None, str | None]],
) -> Mapping[str, list[StoredPartition]]:
    """Return the stored partitions of each topic. Raises SourceError if they are not there, or several.

    ``own``: the clusters and ids of topics that are to get records: what an earlier run has copied for them
    is none.
    """
    stored = await find_partitions(source, topics)
    chosen = dict[str, list[StoredPartition]]()
    for topic in dict.fromkeys(topics):
        named = {one.topic_key for one in stored if one.topic == topic and not one.is_deleted}
        keys = sorted(named - set(own))
        if not keys:
            raise SourceError(_nothing_of(topic, stored, is_own=bool(named)))
        found = [one for one in keys if topic_id in (None, one[1], "/".join(one))]
        shown = ", ".join(map("/".join, found or keys))
        if not found:
            raise SourceError(f"the store has no topic {topic} with the id {topic_id}, but {shown}")
        if len(found) > 1:
            raise SourceError(f"the store has several topics named {topic}: choose --topic-id {shown}")
        # Of the others of this id no manifest tells the topic's name.
        chosen[topic] = [one for one in stored if one.topic_key == found[0] and not one.is_deleted]
        for one in chosen[topic]:
            if one.problem:
                raise SourceError(f"{one.folder} cannot be read: {one.problem}")
    return chosen


def _nothing_of(topic: str, stored: Sequence[StoredPartition], *, is_own: bool) -> str:
    if is_own:
        return (
            f"what the store has of topic {topic} is of this very topic, which needs no restore: start its "
            "brokers. --as restores into another topic"
        )
    unread = [f"\n{one.folder} cannot be read: {one.problem}" for one in stored if one.problem]
    return f"the store has no records of topic {topic}: `nilometer tier list` shows what it has" + "".join(
        unread
    )


def _newest(stored: Sequence[StoredPartition]) -> Manifest:
    found = [one.manifest for one in stored if one.manifest is not None]
    return max(found, key=lambda manifest: manifest.written_ms)


def _require_all(stored: Sequence[StoredPartition]) -> None:
    """Raises SourceError if partitions are missing, or offsets between others."""
    topic, count = stored[0].topic, _newest(stored).topic.partition_count
    found = {one.partition for one in stored}
    lacking = (number for number in range(count) if number not in found)
    if (first := next(lacking, None)) is not None:
        missing = count - sum(number < count for number in found)
        raise SourceError(
            f"the store has nothing of {missing} of the {count} partitions of {topic}, {topic}-"
            f"{first} for example: no segment of these was ever copied. --allow-missing restores the "
            "others, and leaves these empty"
        )
    for one in stored:
        for first, end in one.gaps:
            raise SourceError(
                f"the store lacks the offsets {first} to {end - 1} of {topic}-{one.partition}: "
                f"--allow-missing restores those from {one.start_offset} on"
            )


def _wanted(
    folders: ReplicaFolders,
    stored: Sequence[StoredPartition],
    parts: Mapping[str, TopicPartition],
    name: str,
    *,
    only_here: bool,
) -> list[_Wanted]:
    """Return the partitions with their empty replicas. Raises SourceError if one has none, or is in use."""
    replicas = {
        one.folder: folders.empty_replicas(parts[one.folder], may_begin_in_tier=True) for one in stored
    }
    leaves_out = only_here and any(replicas.values())
    count = _newest(stored).topic.partition_count
    if (found := folders.partitions_of(name)) and max(found) >= count:
        raise SourceError(f"{name} has more than the {count} partitions of the stored topic: create it again")
    wanted = list[_Wanted]()
    for one in stored:
        part = parts[one.folder]
        if not replicas[one.folder]:
            if leaves_out:
                continue
            raise SourceError(
                f"no broker has a replica of {part} here. Start the brokers, create the topic with\n"
                f"  {create_command(stored, name)}\n"
                "stop them, and restore again. If it is on other machines, --only-here leaves it to them"
            )
        assert one.manifest is not None, "without a manifest it is not restored"
        cluster_id, topic_id = folders.identity(part)
        facts = msgspec.structs.replace(
            one.manifest.topic, cluster_id=cluster_id, topic_id=topic_id, topic=name, metadata_entry=0
        )
        folder = partition_folder(cluster_id, topic_id, one.partition)
        if folder == one.folder:
            raise SourceError(f"{part} is the topic whose records are in {one.folder}: it needs no restore")
        wanted.append(_Wanted(one, part, replicas[one.folder], folder, facts))
    return wanted


class _Run:
    def __init__(self, source: ObjectStore, target: ObjectStore, say: Callable[[str], None]) -> None:
        self._source = source
        self._target = target
        self._say = say
        self._runtime = Runtime.system()
        self._room = asyncio.Semaphore(SEGMENTS_AT_ONCE)
        self._partitions = asyncio.Semaphore(SEGMENTS_AT_ONCE)
        self._copied_bytes = 0

    async def check(self, wanted: Sequence[_Wanted]) -> None:
        """Raises SourceError for all that may be refused, before the first write."""
        for one in wanted:
            last = (await self._chain(one)).last
            if not _is_own(last) and any(replica.log.log_end_offset for replica in one.replicas):
                raise SourceError(f"{one.part} has had records: create the topic again")

    async def copy(self, wanted: Sequence[_Wanted]) -> list[Copied | None]:
        """Copy what no earlier run has copied, and name it in the chains."""
        total = sum(segment.log_bytes for one in wanted for segment in one.stored.segments)

        def on_bytes(count: int) -> None:
            self._copied_bytes += count
            self._say(f"{self._copied_bytes:,} of {total:,} bytes copied")

        try:
            async with asyncio.TaskGroup() as group:
                copies = [group.create_task(self._copy(one, on_bytes)) for one in wanted]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [copy.result() for copy in copies]

    async def begin(
        self, folders: ReplicaFolders, wanted: Sequence[_Wanted], copies: Sequence[Copied | None]
    ) -> list[RestoredTier]:
        """Let the replicas begin behind what was copied."""
        manifests = [await self._named(one) for one in wanted]
        return [
            _begin(folders, one, manifest, copied)
            for one, manifest, copied in zip(wanted, manifests, copies, strict=True)
        ]

    async def _chain(self, one: _Wanted) -> Chain:
        """Return the chain of the new partition. Raises SourceError if it has segments of another writer."""
        chain = Chain(self._target, one.folder, _writer(one.stored) + self._name())
        last = await chain.read()
        if last is not None and (last.is_deleted or (last.segments and not _is_own(last))):
            raise SourceError(
                f"{one.folder} has records, or a deleted topic, already: create the topic again, and restore "
                "into the new one"
            )
        return chain

    async def _copy(self, one: _Wanted, on_bytes: Callable[[int], None]) -> Copied | None:
        """Return what was copied; None if an earlier run has done so."""
        async with self._partitions:
            chain = await self._chain(one)
            if _has_copied(one.stored, chain.last):
                self._say(f"{one.part} was copied by an earlier run")
                return None
            found = await copy_partition(
                self._source,
                one.stored,
                self._target,
                one.folder,
                new_name=self._name,
                room=self._room,
                on_bytes=on_bytes,
            )
            await self._name_copies(one, chain, found)
        return found

    async def _named(self, one: _Wanted) -> Manifest:
        """Return the manifest of the copies. Raises SourceError if brokers wrote another one meanwhile."""
        last = (await self._chain(one)).last
        if last is None or not _has_copied(one.stored, last):
            raise SourceError(f"{one.folder} was written to by others: stop the brokers of {one.part}")
        return last

    async def _name_copies(self, one: _Wanted, chain: Chain, copied: Copied) -> None:
        now_ms = self._runtime.clock.wall_ms()
        last = chain.last or first_manifest(one.facts, 0)
        following = msgspec.structs.replace(
            last.without(last.segments, now_ms),
            segments=copied.segments,
            log_start_offset=copied.start_offset,
            written_ms=now_ms,
            topic=one.facts,
        )
        try:
            is_written = await chain.append_at_rest(LEADER_EPOCH, following)
        except Deposed as error:
            raise SourceError(f"{one.part} is in use: {error}") from error
        if not is_written and not _has_copied(one.stored, chain.last):
            raise SourceError(f"{one.folder} was written to by others: stop the brokers of {one.part}")

    def _name(self) -> str:
        return self._runtime.entropy.bytes(8).hex()


def _writer(stored: StoredPartition) -> str:
    """Return how the manifests of a restore from this state of the store begin the name of their writer."""
    assert stored.manifest is not None, "without a manifest it is not restored"
    return f"{_WRITER}-{stored.cluster_id}-{stored.topic_id}-{stored.manifest.number}-"


def _is_own(last: Manifest | None) -> bool:
    """Return whether a restore has written the last manifest."""
    return last is not None and last.writer.startswith(_WRITER)


def _has_copied(stored: StoredPartition, last: Manifest | None) -> bool:
    """Return whether it was a restore from this state of the store."""
    return last is not None and last.writer.startswith(_writer(stored))


def _begin(folders: ReplicaFolders, one: _Wanted, manifest: Manifest, copied: Copied | None) -> RestoredTier:
    start, end = manifest.log_start_offset, manifest.end_offset
    folders.begin_in_tier(one.part, one.replicas, start, end, NO_PRODUCERS)
    return RestoredTier(
        one.stored,
        one.part,
        start,
        end,
        manifest.log_bytes,
        len(one.replicas),
        None if copied is None else copied.records,
        None if copied is None else copied.aborted,
    )
