"""Checking a compacted partition at rest: every replica must have the same newest value of each key.

Each replica compacts its log independently, so the batches on their disks differ, and only the table that a
reader from the start gets is compared. Offsets must increase, and CRCs be correct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.simulation.checkers.disks import StoredReplica, read_replica
from nilometer.simulation.cluster import Cluster
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import decode_records


def compare_cluster(
    cluster: Cluster, partition: TopicPartition, judge: Callable[[Mapping[str, str]], list[str]]
) -> list[str]:
    """Return the errors on the disks of a cluster at rest; ``judge`` returns those of one table."""
    name = f"{partition.topic}-{partition.partition}"
    image = next(node.image for node in cluster.nodes.values() if node.image is not None)
    state = image.partition(*partition)
    wrong: list[str] = []
    for broker_id in state.replicas if state else ():
        node = cluster.nodes[broker_id]
        for place in node.places_of(name):
            replica = read_replica(node.host.disk, place, node.id)
            if replica is None:
                wrong.append(f"compaction: {name} is missing on broker {node.id}")
                continue
            found = [*_inside(replica), *judge(table_of(replica))]
            wrong += [f"{error} (on the disk of broker {node.id})" for error in found]
    return wrong


def table_of(replica: StoredReplica) -> dict[str, str]:
    table: dict[str, str] = {}
    for batch in replica.batches:
        for record in decode_records(batch.data, 0, read_header(batch.data)):
            key = (record.key or b"").decode()
            if record.value is None:
                table.pop(key, None)
            else:
                table[key] = record.value.decode()
    return table


def _inside(replica: StoredReplica) -> list[str]:
    wrong: list[str] = []
    floor = 0
    for batch in replica.batches:
        if batch.base_offset < floor:
            wrong.append(f"compaction: offset {batch.base_offset} after {floor}")
        if not batch.is_sound:
            wrong.append(f"compaction: the CRC of the batch at {batch.base_offset} is wrong")
        floor = batch.last_offset + 1
    return wrong


class CompactionCounts:
    """How often all incarnations of all brokers have compacted a log; ``look`` updates the numbers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_incarnation: dict[tuple[int, int], tuple[int, int]] = {}
        """(broker id, incarnation) -> rounds that removed records, and records removed."""

    def look(self) -> None:
        for node in self._cluster.nodes.values():
            if node.broker is not None and node.is_running:
                report = node.broker.cleaner_report
                counts = report.rounds_that_removed, report.records_removed
                self._by_incarnation[node.id, node.incarnations] = counts

    def done(self) -> dict[str, int]:
        rounds = sum(count for count, _ in self._by_incarnation.values())
        records = sum(count for _, count in self._by_incarnation.values())
        return {"compaction rounds that removed records": rounds, "records compacted away": records}
