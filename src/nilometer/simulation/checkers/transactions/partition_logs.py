"""Transactions as they lie in the logs of partitions, read from the disks with a parser of their own.

Where a log was never compacted: the epochs of a producer never fall, no transaction begins in another, and at
rest each has an end. The last stable offset that a leader gave never lay behind the first record of a
transaction without a marker in the leader's log. (A leader that was restarted no longer knows which of its
markers are not replicated. It may pass these, as Kafka's may: the coordinator writes the same ones again.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.replication import LeaderRole
from nilometer.simulation.checkers.disks import StoredBatch, read_replica
from nilometer.simulation.checkers.transactions.ledger import TransactionLedger
from nilometer.simulation.cluster import Cluster

_PRODUCER = struct.Struct(">hiqqqh")
_ATTRIBUTES_AT = 21
RECENT = 16
"""Transactions in which a record may still be acknowledged."""
TRANSACTIONAL, CONTROL = 0x10, 0x20


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """Who wrote a batch, and as what."""

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
    """Of a log at rest that was never compacted."""
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
    """The batches of the replica that leads, from its disk."""
    image = cluster.newest_image
    state = image.partition(*partition) if image is not None else None
    if state is None or not state.has_leader:
        return []
    node = cluster.nodes[int(state.leader)]
    places = node.places_of(str(partition))
    replica = read_replica(node.host.disk, places[0], node.id) if places else None
    return [of_batch(batch) for batch in replica.batches] if replica is not None else []


class _First(NamedTuple):
    offset: int
    producer_id: int


class _Passed(NamedTuple):
    partition: TopicPartition
    first: _First
    last_stable_offset: int
    end: int
    """Where the leader's log ended."""
    who: str


class LastStableOffsets:
    """Looks at what leaders give, again and again."""

    def __init__(
        self, cluster: Cluster, ledger: TransactionLedger, partitions: Sequence[TopicPartition]
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._names = {str(each): each for each in partitions}
        self._firsts: dict[tuple[int, TopicPartition], _First] = {}
        """First records of transactions, by their number, that no last stable offset has passed."""
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
                if partition is None or written.offset is None:
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
        """At rest, with the markers that are in the logs by then."""
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
