"""Checks the transactions in the partitions' logs, read from the disks with a separate parser.

In a log that was never compacted, the epochs of a producer never decrease, no transaction begins inside
another of the same producer, and at rest each has an end. The last stable offset of a leader was never above
the first record of a transaction without a marker in the leader's log. (A restarted leader does not know
which of its markers are not replicated; its last stable offset may pass these, as in Kafka. The coordinator
writes the same markers again.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.replication import LeaderRole
from nilometer.simulation.checkers.disks import StoredBatch, read_batches_from
from nilometer.simulation.checkers.transactions.ledger import NO_PRODUCER_ID, TransactionLedger
from nilometer.simulation.cluster import Cluster

_PRODUCER = struct.Struct(">hiqqqh")
_ATTRIBUTES_AT = 21
RECENT = 16
"""Number of latest transactions whose records may still be acknowledged."""
TRANSACTIONAL, CONTROL = 0x10, 0x20


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """The producer of a batch, its offsets, and whether it is transactional or a marker."""

    first: int
    last: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    is_control: bool


def of_batch(batch: StoredBatch) -> ProducerBatch:
    attributes, _, _, _, producer_id, epoch = _PRODUCER.unpack_from(batch.data, _ATTRIBUTES_AT)
    return ProducerBatch(
        batch.base_offset,
        batch.last_offset,
        producer_id,
        epoch,
        bool(attributes & TRANSACTIONAL),
        bool(attributes & CONTROL),
    )


def judge_log(name: str, batches: Sequence[ProducerBatch]) -> Iterator[str]:
    """Yield the errors in a log at rest that was never compacted; ``name`` is the partition's."""
    epochs: dict[int, int] = {}
    opened: dict[int, ProducerBatch] = {}
    for batch in batches:
        if batch.producer_id < 0:
            continue
        epoch = epochs.get(batch.producer_id, -1)
        who = f"producer {batch.producer_id}"
        if batch.producer_epoch < epoch:
            yield f"G0: {name}: {who} wrote at {batch.first} in epoch {batch.producer_epoch}, after {epoch}"
        epochs[batch.producer_id] = max(epoch, batch.producer_epoch)
        if batch.is_control:
            opened.pop(batch.producer_id, None)
        elif batch.is_transactional:
            first = opened.setdefault(batch.producer_id, batch)
            if first.producer_epoch != batch.producer_epoch:
                yield f"G0: {name}: {who} has epochs {first.producer_epoch} and {batch.producer_epoch} open"
    for batch in opened.values():
        yield (
            f"hanging transaction: {name}: producer {batch.producer_id}, epoch {batch.producer_epoch}, "
            f"began at {batch.first}, and has no end"
        )


def read_leader(cluster: Cluster, partition: TopicPartition) -> list[ProducerBatch]:
    """Return the batches of the leader's log, read from its disk; empty without a leader."""
    return [of_batch(batch) for batch in stored_by_leader(cluster, partition)]


def stored_by_leader(cluster: Cluster, partition: TopicPartition) -> list[StoredBatch]:
    image = cluster.newest_image
    state = image.partition(*partition) if image is not None else None
    if state is None or not state.has_leader:
        return []
    node = cluster.nodes[int(state.leader)]
    places = node.places_of(str(partition))
    return read_batches_from(node.host.disk, places[0], 0) if places else []


class _First(NamedTuple):
    offset: int
    producer_id: int


class _Passed(NamedTuple):
    partition: TopicPartition
    first: _First
    last_stable_offset: int
    end: int
    """The leader's log end offset at that time."""
    who: str


class LastStableOffsets:
    """Checks the leaders' last stable offsets: ``look`` samples them, ``judge`` returns the errors."""

    def __init__(
        self, cluster: Cluster, ledger: TransactionLedger, partitions: Sequence[TopicPartition]
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._names = {str(each): each for each in partitions}
        self._firsts: dict[tuple[int, TopicPartition], _First] = {}
        """(transaction, partition) -> its first record, until a last stable offset has passed it."""
        self._seen: set[tuple[int, TopicPartition]] = set()
        self._passed: list[_Passed] = []

    def look(self) -> None:
        self._learn()
        for node in self._cluster.nodes.values():
            for partition in node.partitions:
                watched = self._names.get(str(partition))
                if watched is not None and isinstance(partition.replica.role, LeaderRole):
                    offset = partition.log.last_stable_offset(partition.replica.high_watermark)
                    self._pass(watched, offset, partition.log.log_end_offset, node.name)

    def _learn(self) -> None:
        for transaction in self._ledger.transactions[-RECENT:]:
            for written in transaction.writes:
                partition = self._names.get(written.partition)
                if partition is None or written.offset is None or transaction.producer_id == NO_PRODUCER_ID:
                    continue
                key = transaction.number, partition
                if key not in self._seen:
                    self._seen.add(key)
                    self._firsts[key] = _First(written.offset, transaction.producer_id)

    def _pass(self, partition: TopicPartition, last_stable_offset: int, end: int, who: str) -> None:
        for key, first in list(self._firsts.items()):
            if key[1] == partition and first.offset < last_stable_offset:
                del self._firsts[key]
                self._passed.append(_Passed(partition, first, last_stable_offset, end, who))

    def judge(self) -> Iterator[str]:
        """Yield each transaction that a last stable offset passed without a marker in the leader's log.

        Called at rest, when all markers are in the logs.
        """
        markers: dict[TopicPartition, list[ProducerBatch]] = {}
        for partition in self._names.values():
            markers[partition] = [
                batch for batch in read_leader(self._cluster, partition) if batch.is_control
            ]
        for each in self._passed:
            if not any(
                marker.producer_id == each.first.producer_id and each.first.offset < marker.first < each.end
                for marker in markers[each.partition]
            ):
                yield (
                    f"last stable offset: {each.who} gave {each.last_stable_offset} of {each.partition}; "
                    f"producer {each.first.producer_id} had a transaction open since {each.first.offset}"
                )
