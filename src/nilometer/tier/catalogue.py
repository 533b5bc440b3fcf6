"""What a store has: the chains of all partitions of all clusters, for who has only the store.

Folders are found by listing them. What a partition has is read from its chain, never from a listing. A
manifest that no broker can have written for its folder counts as one that cannot be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from nilometer.runtime.object_store import ObjectStore
from nilometer.tier.chain import Chain, ManifestsGone
from nilometer.tier.earlier_archives import read_earlier
from nilometer.tier.format import DamagedObject, Manifest, RemoteSegment, manifest_name, partition_folder

CHAINS_AT_ONCE = 16
"""So many chains are read at once."""

_NUMBERS_END = 1 << 62
"""Offsets and timestamps of brokers are far below it; sums of them fit into 64 bits."""
_PARTITIONS_END = 1 << 31
_ATTEMPT_MAX = 64


class StoredPartition(msgspec.Struct, frozen=True):
    """What the store has of one partition. Without a manifest it has nothing that can be read."""

    cluster_id: str
    """Empty if it is unknown: an archive of format 1 has folders of topics."""
    topic_id: str
    partition: int
    manifest: Manifest | None
    """The last one; None if there is none, or it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""

    @property
    def top(self) -> str:
        """The folder of the store that has it: of its cluster or, in an archive of format 1, of its topic."""
        return self.cluster_id or self.topic

    @property
    def folder(self) -> str:
        return partition_folder(self.top, self.topic_id, self.partition)

    @property
    def is_archive(self) -> bool:
        return self.manifest is not None and self.manifest.is_archive

    @property
    def topic_key(self) -> tuple[str, str]:
        """What tells its topic from all others, also if no manifest can be read: two clusters may have topics
        of one id."""
        return self.top, self.topic_id

    @property
    def topic(self) -> str:
        """The topic's name; empty if no manifest tells it."""
        return "" if self.manifest is None else self.manifest.topic.topic

    @property
    def is_deleted(self) -> bool:
        return self.manifest is not None and self.manifest.is_deleted

    @property
    def start_offset(self) -> int:
        """The first offset that can be read from the store alone."""
        return self._run[0]

    @property
    def segments(self) -> tuple[RemoteSegment, ...]:
        """Those from the start offset to the end, without a gap between them."""
        return self._run[1]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Ranges [first, end) of offsets below the start offset that the topic had, and the store lacks."""
        return self._run[2]

    @property
    def newest_ms(self) -> int:
        """The largest timestamp; -1 if there is no record."""
        return -1 if self.manifest is None else self.manifest.sums.newest_ms

    @property
    def _run(self) -> tuple[int, tuple[RemoteSegment, ...], list[tuple[int, int]]]:
        if self.manifest is None:
            return 0, (), []
        start = offset = self.manifest.log_start_offset
        found, gaps = list[RemoteSegment](), list[tuple[int, int]]()
        for one in self.manifest.segments:
            if one.end_offset <= offset:
                continue  # below the log start
            if one.base_offset > offset:
                gaps.append((offset, one.base_offset))
                start, found = one.base_offset, []
            found.append(one)
            offset = one.end_offset
        return start, tuple(found), gaps


async def find_partitions(store: ObjectStore, topics: Collection[str] = ()) -> list[StoredPartition]:
    """Return all partitions in the store, or those of ``topics``, by cluster, topic and number.

    One that cannot be read is among those of ``topics`` unless the others of its topic have another name.
    Raises ObjectStoreError.
    """
    reading = asyncio.Semaphore(CHAINS_AT_ONCE)
    names = dict[tuple[str, str], set[str]]()

    async def read(cluster_id: str, topic_id: str, partition: int) -> StoredPartition | None:
        """Return None for one of another topic: the manifests of a whole store may not fit into memory."""
        async with reading:
            found = await read_partition(store, cluster_id, topic_id, partition)
        names.setdefault(found.topic_key, set()).update({found.topic} - {""})
        return found if not topics or found.problem or found.topic in topics else None

    places = [
        (cluster[:-1], topic.split("/")[-2], int(partition.split("/")[-2]))
        for cluster in await store.folders("")
        for topic in await store.folders(cluster)
        for partition in await store.folders(topic)
        if _is_partition(partition.split("/")[-2])
    ]
    found = await asyncio.gather(*(read(*place) for place in places))

    def is_wanted(one: StoredPartition) -> bool:
        known = names[one.topic_key]
        return not topics or one.topic in topics or not known or not known.isdisjoint(topics)

    wanted = [one for one in found if one is not None and is_wanted(one)]
    return sorted(wanted, key=lambda one: (one.cluster_id, one.topic, one.topic_id, one.partition))


async def read_partition(
    store: ObjectStore, cluster_id: str, topic_id: str, partition: int
) -> StoredPartition:
    """Return what a folder has; ``cluster_id`` is the topic's name in an archive of format 1.

    Raises ObjectStoreError.
    """
    chain = Chain(store, partition_folder(cluster_id, topic_id, partition), "")
    manifest, problem = None, ""
    try:
        manifest = await chain.read()
        if manifest is None:
            earlier = await read_earlier(store, cluster_id, topic_id, partition)
            if earlier is not None:
                return StoredPartition("", topic_id, partition, earlier)
    except ManifestsGone:
        problem = "its manifests are gone"
    except DamagedObject as error:
        problem = str(error)
    if manifest is not None and (problem := _problem(manifest, (cluster_id, topic_id, partition))):
        manifest, problem = None, f"{manifest_name(manifest.number)} {problem}"
    return StoredPartition(cluster_id, topic_id, partition, manifest, problem)


def _problem(manifest: Manifest, place: tuple[str, str, int]) -> str:
    """Return what a broker cannot have written in the folder of ``place``; empty if there is nothing."""
    facts = manifest.topic
    if (facts.cluster_id, facts.topic_id, facts.partition) != place:
        folder = partition_folder(facts.cluster_id, facts.topic_id, facts.partition)
        return f"is of the folder {folder} ({facts.topic}-{facts.partition})"
    if not facts.topic:
        return "does not tell its topic"
    if not 0 <= facts.partition_count < _PARTITIONS_END:
        return f"is of a topic of {facts.partition_count} partitions"
    if not 0 <= manifest.log_start_offset < _NUMBERS_END:
        return f"has the log start offset {manifest.log_start_offset}"
    for one in manifest.segments:
        if not (one.attempt.isascii() and one.attempt.isalnum() and len(one.attempt) <= _ATTEMPT_MAX):
            return f"has a segment named {one.attempt[:_ATTEMPT_MAX]!r}"
        if max(one.last_offset, abs(one.max_timestamp), one.log_bytes, one.index_bytes) >= _NUMBERS_END:
            return f"has a segment at {one.base_offset} with numbers that are too large"
    return ""


def _is_partition(name: str) -> bool:
    """Return whether it is a partition's number, as brokers write it."""
    is_number = name.isascii() and name.isdigit() and len(name) <= len(str(_PARTITIONS_END))
    return is_number and str(int(name)) == name and int(name) < _PARTITIONS_END
