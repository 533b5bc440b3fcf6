"""What a store has: the chains of all partitions of all clusters, for who has only the store.

Folders are found by listing them. What a partition has is read from its chain, never from a listing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from nilometer.runtime.object_store import ObjectStore
from nilometer.tier.chain import Chain, ManifestsGone
from nilometer.tier.format import DamagedObject, Manifest, RemoteSegment, partition_folder

CHAINS_AT_ONCE = 16
"""So many chains are read at once."""


class StoredPartition(msgspec.Struct, frozen=True):
    """What the store has of one partition. Without a manifest it has nothing that can be read."""

    cluster_id: str
    topic_id: str
    partition: int
    manifest: Manifest | None
    """The last one; None if there is none, or it cannot be read."""
    problem: str = ""
    """Why it cannot be read."""

    @property
    def folder(self) -> str:
        return partition_folder(self.cluster_id, self.topic_id, self.partition)

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
        return -1 if self.manifest is None else self.manifest.newest_ms

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

    Raises ObjectStoreError.
    """
    reading = asyncio.Semaphore(CHAINS_AT_ONCE)

    async def read(cluster_id: str, topic_id: str, partition: int) -> StoredPartition:
        async with reading:
            return await read_partition(store, cluster_id, topic_id, partition)

    places = [
        (cluster[:-1], topic.split("/")[-2], int(partition.split("/")[-2]))
        for cluster in await store.folders("")
        for topic in await store.folders(cluster)
        for partition in await store.folders(topic)
        if _is_number(partition.split("/")[-2])
    ]
    found = await asyncio.gather(*(read(*place) for place in places))
    wanted = [one for one in found if not topics or one.topic in topics]
    return sorted(wanted, key=lambda one: (one.cluster_id, one.topic, one.topic_id, one.partition))


async def read_partition(
    store: ObjectStore, cluster_id: str, topic_id: str, partition: int
) -> StoredPartition:
    """Raises ObjectStoreError."""
    chain = Chain(store, partition_folder(cluster_id, topic_id, partition), "")
    try:
        return StoredPartition(cluster_id, topic_id, partition, await chain.read())
    except ManifestsGone:
        return StoredPartition(cluster_id, topic_id, partition, None, "its manifests are gone")
    except DamagedObject as error:
        return StoredPartition(cluster_id, topic_id, partition, None, str(error))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
