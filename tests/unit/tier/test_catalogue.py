"""What a store has is found without keeping what is not asked for."""

from __future__ import annotations

import asyncio
import random
from weakref import WeakSet

import pytest

from nilometer.runtime.object_store import ObjectStore
from nilometer.simulation.object_store import Bucket, VirtualObjectStore
from nilometer.tier import catalogue
from nilometer.tier.catalogue import CHAINS_AT_ONCE, find_partitions

PARTITIONS = 5 * CHAINS_AT_ONCE


class Stored:
    """Stands for a partition whose manifest is large."""

    def __init__(self, topic_id: str, partition: int, *, problem: str = "") -> None:
        self.topic_key, self.cluster_id, self.topic_id = ("c", topic_id), "c", topic_id
        self.topic, self.partition, self.problem = "" if problem else f"of {topic_id}", partition, problem


def test_manifests_of_other_topics_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, held, most = Bucket(), WeakSet[Stored](), 0
    for topic_id, count in (("wanted", 2), ("other", PARTITIONS), ("unknown", 1)):
        for partition in range(count):
            bucket.write(f"c/{topic_id}/{partition}/head", b"0")

    async def read(store: ObjectStore, cluster_id: str, topic_id: str, partition: int) -> Stored:
        nonlocal most
        await store.get(f"{cluster_id}/{topic_id}/{partition}/head")
        damaged = topic_id == "unknown" or (topic_id, partition) in (("wanted", 1), ("other", 1))
        found = Stored(topic_id, partition, problem="damaged" if damaged else "")
        held.add(found)
        most = max(most, len(held))
        return found

    monkeypatch.setattr(catalogue, "read_partition", read)

    async def main() -> list[tuple[str, int]]:
        store = VirtualObjectStore(bucket, random.Random(1))
        found = await find_partitions(store, ["of wanted"])
        return [(one.topic_id, one.partition) for one in found]

    found = asyncio.run(main())
    assert found == [("unknown", 0), ("wanted", 1), ("wanted", 0)], (
        "one that cannot be read may be of the topic"
    )
    assert most <= 2 * CHAINS_AT_ONCE
