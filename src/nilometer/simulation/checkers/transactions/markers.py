"""Checks the markers in the partitions' logs, and the index of aborted transactions beside them.

In a log that was never compacted, the coordinator epochs in a producer's markers never decrease; if every end
bumps the epoch (``transaction.version`` 2), all markers of one epoch say the same; and the index has just the
transactions that end with an abort marker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.simulation.checkers.disks import StoredBatch, read_batches_from
from nilometer.simulation.checkers.transactions.partition_logs import of_batch
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.file_tree import FileNode, FolderNode
from nilometer.simulation.host_disk import HostDisk

_ENTRY = struct.Struct(">hqqqq")
_VALUE = struct.Struct(">hi")
"""At the end of a marker's record: version, coordinator epoch; then the number of headers."""
_HEADERS = 1
_TYPE = struct.Struct(">h")
COMMIT = 1
INDEX_SUFFIX = ".txnindex"


class Marker(NamedTuple):
    offset: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


class Aborted(NamedTuple):
    producer_id: int
    first: int
    last: int


def read_marker(batch: StoredBatch) -> Marker:
    """Decode a control batch with one marker: key (version, type), value (version, coordinator epoch)."""
    producer = of_batch(batch)
    value_at = len(batch.data) - _HEADERS - _VALUE.size
    _, coordinator_epoch = _VALUE.unpack_from(batch.data, value_at)
    # The length of the value, one byte, is between the key and the value.
    (kind,) = _TYPE.unpack_from(batch.data, value_at - 1 - _TYPE.size)
    return Marker(
        producer.first, producer.producer_id, producer.producer_epoch, kind == COMMIT, coordinator_epoch
    )


def check_markers(name: str, batches: Sequence[StoredBatch], *, bumps: bool) -> Iterator[str]:
    """Yield the errors in the markers of a log. ``bumps``: whether every end has an epoch of its own."""
    coordinators: dict[int, int] = {}
    ends: dict[tuple[int, int], bool] = {}
    for marker in (read_marker(batch) for batch in batches if of_batch(batch).is_control):
        who = f"producer {marker.producer_id}, epoch {marker.producer_epoch}"
        newest = coordinators.setdefault(marker.producer_id, marker.coordinator_epoch)
        if marker.coordinator_epoch < newest:
            yield (
                f"old coordinator: {name}: the marker of {who} at {marker.offset} is of coordinator epoch "
                f"{marker.coordinator_epoch}, after one of {newest}"
            )
        coordinators[marker.producer_id] = max(newest, marker.coordinator_epoch)
        first = ends.setdefault((marker.producer_id, marker.producer_epoch), marker.is_commit)
        if bumps and first != marker.is_commit:
            yield f"two ends: {name}: {who} is committed and aborted; the second marker is at {marker.offset}"


def expected_index(batches: Sequence[StoredBatch]) -> set[Aborted]:
    """Return the aborted transactions in a log."""
    opened: dict[int, int] = {}
    aborted: set[Aborted] = set()
    for stored in batches:
        batch = of_batch(stored)
        if batch.is_control:
            first = opened.pop(batch.producer_id, None)
            if first is not None and not read_marker(stored).is_commit:
                aborted.add(Aborted(batch.producer_id, first, batch.first))
        elif batch.is_transactional:
            opened.setdefault(batch.producer_id, batch.first)
    return aborted


def read_index(disk: HostDisk, folder: str) -> set[Aborted]:
    """Return the entries of all ``.txnindex`` files in ``folder``."""
    found = disk.find(folder)
    entries: set[Aborted] = set()
    for name, file in found.entries.items() if isinstance(found, FolderNode) else ():
        if name.endswith(INDEX_SUFFIX) and isinstance(file, FileNode):
            for _, producer_id, first, last, _ in _ENTRY.iter_unpack(bytes(file.data)):
                entries.add(Aborted(producer_id, first, last))
    return entries


def compare_indexes(cluster: Cluster, partition: TopicPartition) -> Iterator[str]:
    """Yield the differences between the logs on all replicas' disks and the indexes beside them, at rest."""
    for node in cluster.nodes.values():
        for folder in node.places_of(str(partition)):
            expected = expected_index(read_batches_from(node.host.disk, folder, 0))
            found = read_index(node.host.disk, folder)
            if found != expected:
                yield (
                    f"aborted index: {partition} on {node.name} lacks {sorted(expected - found)[:3]} and has "
                    f"{sorted(found - expected)[:3]} besides"
                )
