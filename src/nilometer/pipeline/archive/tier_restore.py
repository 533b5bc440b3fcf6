"""Brings topics back into remote storage, from an archive or from remote storage alone.

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
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec
from crc32c import crc32c

from nilometer.pipeline.archive.replica_folders import ReplicaFolders, local_replicas
from nilometer.pipeline.archive.restore import (
    Restored,
    Wanted,
    chosen_topics,
    manifest_of,
    parts_of,
    require_at_rest,
    wanted_partitions,
)
from nilometer.pipeline.archive.stored import explained
from nilometer.pipeline.errors import SourceError
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import ObjectStore
from nilometer.tier.catalogue import StoredPartition
from nilometer.tier.chain import Chain, Deposed
from nilometer.tier.format import Manifest, TopicFacts, encode_manifest, partition_folder
from nilometer.tier.plan import first_manifest
from nilometer.tier.transfer import LEADER_EPOCH, NO_PRODUCERS, SEGMENTS_AT_ONCE, Copied, copy_partition

_WRITER = "restore"


class _Target(msgspec.Struct, frozen=True):
    """A partition with its new folder in the store."""

    wanted: Wanted
    folder: str
    facts: TopicFacts

    @property
    def stored(self) -> StoredPartition:
        return self.wanted.stored


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
    allows_recent: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> list[Restored]:
    """Restore ``topics`` into all their replicas in ``places``, folders of brokers that do not run.

    ``target``: the remote storage of these brokers. ``allows_recent``: also what another cluster may still
    write to, so that a run on another machine may find more than this one. The other options are those of
    :func:`restore.chosen_topics`. Raises SourceError.
    """
    own = {
        (one.directory.cluster_id, one.topic_id)
        for one in local_replicas(places)
        if one.part.topic in ((name,) if name else topics)
    }
    chosen = await explained(
        chosen_topics(source, topics, name, topic_id, allows_missing=allows_missing, own=own)
    )
    parts = parts_of(chosen, name)

    def opened_by(opened: ExitStack) -> tuple[ReplicaFolders, list[_Target]]:
        folders = ReplicaFolders(places, set(parts.values()), opened)
        wanted = wanted_partitions(folders, chosen, parts, only_here=only_here, is_tiered=True)
        return folders, [_target(folders, one) for one in wanted]

    run = _Run(source, target, say)
    with ExitStack() as opened:
        _, wanted = opened_by(opened)
        await explained(run.check(wanted, allows_recent=allows_recent))
    copies = await explained(run.copy(wanted))
    with ExitStack() as opened:
        folders, found_again = opened_by(opened)
        if [one.folder for one in found_again] != [one.folder for one in wanted]:
            raise SourceError("the folders of the brokers have changed meanwhile: restore again")
        with folders.undone_on_error():
            restored = await explained(run.begin(folders, found_again, copies))
            folders.finish()
    return restored


def _target(folders: ReplicaFolders, wanted: Wanted) -> _Target:
    part, stored = wanted.part, wanted.stored
    cluster_id, topic_id = folders.identity(part)
    facts = msgspec.structs.replace(
        manifest_of(stored).topic,
        cluster_id=cluster_id,
        topic_id=topic_id,
        topic=part.topic,
        metadata_entry=0,
    )
    folder = partition_folder(cluster_id, topic_id, part.partition)
    if folder == stored.folder:
        raise SourceError(f"{part} is the topic whose records are in {folder}: it needs no restore")
    return _Target(wanted, folder, facts)


class _Run:
    def __init__(self, source: ObjectStore, target: ObjectStore, say: Callable[[str], None]) -> None:
        self._source = source
        self._target = target
        self._say = say
        self._runtime = Runtime.system()
        self._room = asyncio.Semaphore(SEGMENTS_AT_ONCE)
        self._partitions = asyncio.Semaphore(SEGMENTS_AT_ONCE)
        self._copied_bytes = 0

    async def check(self, wanted: Sequence[_Target], *, allows_recent: bool) -> None:
        """Raises SourceError for all that may be refused, before the first write."""
        for one in wanted:
            last = (await self._chain(one)).last
            if not _is_own(last) and any(replica.log.log_end_offset for replica in one.wanted.replicas):
                raise SourceError(f"{one.wanted.part} has had records: create the topic again")
            if not allows_recent and not _has_copied(one.stored, last):
                require_at_rest(one.stored, one.facts.cluster_id, self._runtime.clock.wall_ms())

    async def copy(self, wanted: Sequence[_Target]) -> list[Copied | None]:
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
        self, folders: ReplicaFolders, wanted: Sequence[_Target], copies: Sequence[Copied | None]
    ) -> list[Restored]:
        """Let the replicas begin behind what was copied."""
        manifests = [await self._named(one) for one in wanted]
        return [
            _begin(folders, one, manifest, copied)
            for one, manifest, copied in zip(wanted, manifests, copies, strict=True)
        ]

    async def _chain(self, one: _Target) -> Chain:
        """Return the chain of the new partition. Raises SourceError if it has segments of another writer."""
        chain = Chain(self._target, one.folder, _writer(one.stored) + self._name())
        last = await chain.read()
        if last is not None and (last.is_deleted or (last.segments and not _is_own(last))):
            raise SourceError(
                f"{one.folder} has records, or a deleted topic, already: create the topic again, and restore "
                "into the new one"
            )
        return chain

    async def _copy(self, one: _Target, on_bytes: Callable[[int], None]) -> Copied | None:
        """Return what was copied; None if an earlier run has done so."""
        async with self._partitions:
            chain = await self._chain(one)
            if _has_copied(one.stored, chain.last):
                self._say(f"{one.wanted.part} was copied by an earlier run")
                return None
            if chain.last is None:  # segments without a manifest would be those of a chain that was lost
                begun = Chain(self._target, one.folder, self._name())
                await begun.read()
                await begun.append_at_rest(LEADER_EPOCH, first_manifest(one.facts, 0))
                await chain.read()
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

    async def _named(self, one: _Target) -> Manifest:
        """Return the manifest of the copies. Raises SourceError if brokers wrote another one meanwhile."""
        last = (await self._chain(one)).last
        if last is None or not _has_copied(one.stored, last):
            raise SourceError(f"{one.folder} was written to by others: stop the brokers of {one.wanted.part}")
        return last

    async def _name_copies(self, one: _Target, chain: Chain, copied: Copied) -> None:
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
            raise SourceError(f"{one.wanted.part} is in use: {error}") from error
        if not is_written and not _has_copied(one.stored, chain.last):
            raise SourceError(f"{one.folder} was written to by others: stop the brokers of {one.wanted.part}")

    def _name(self) -> str:
        return self._runtime.entropy.bytes(8).hex()


def _writer(stored: StoredPartition) -> str:
    """Return how the manifests of a restore from this state of the store begin the name of their writer."""
    manifest = manifest_of(stored)
    state = (
        f"{manifest.number}-{crc32c(encode_manifest(manifest)):08x}"  # several archives may have the number
    )
    return f"{_WRITER}-{stored.top}-{stored.topic_id}-{state}-"


def _is_own(last: Manifest | None) -> bool:
    """Return whether a restore has written the last manifest."""
    return last is not None and last.writer.startswith(_WRITER)


def _has_copied(stored: StoredPartition, last: Manifest | None) -> bool:
    """Return whether it was a restore from this state of the store."""
    return last is not None and last.writer.startswith(_writer(stored))


def _begin(folders: ReplicaFolders, one: _Target, manifest: Manifest, copied: Copied | None) -> Restored:
    start, end = manifest.log_start_offset, manifest.end_offset
    folders.begin_in_tier(one.wanted.part, one.wanted.replicas, start, end, NO_PRODUCERS)
    return Restored(
        one.stored,
        one.wanted.part,
        start,
        end,
        len(one.wanted.replicas),
        manifest.sums.log_bytes,
        None if copied is None else copied.records,
        None if copied is None else copied.aborted,
    )
