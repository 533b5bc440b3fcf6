"""What transaction coordinators know, held against their logs, which are read with a parser of their own.

A coordinator that has just taken over knows of each transactional id what its partition of
``__transaction_state`` says last. As long as a decision is not committed there, no partition has its marker.
Only markers with an epoch that no record of the producer has are told apart from earlier ones.
"""

# pyright: reportPrivateUsage=false
# The state that a coordinator must not lose is inside of it.

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nilometer.broker.coordinators.shell import ShellState
from nilometer.broker.transactions.marker_sender import Shell
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.cluster.states import TRANSACTION_STATE_TOPIC
from nilometer.invariants import check
from nilometer.simulation.checkers.disks import StoredBatch, read_batches_from
from nilometer.simulation.checkers.transactions import partition_logs
from nilometer.simulation.checkers.transactions.partition_logs import ProducerBatch
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.transactions.shard import TransactionShard
from nilometer.wire.record_batch import read_header
from nilometer.wire.records import decode_records

PREPARED, COMPLETE = (2, 3), (4, 5)
"""The numbers of the states that a transaction has while it ends, and afterwards."""
_HEAD = struct.Struct(">hqhib")
_NUMBER = struct.Struct(">i")
_FLEXIBLE = 1
VIOLATIONS_MAX = 20


class KnownTransaction(NamedTuple):
    """What a coordinator must not forget."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: int
    partitions: tuple[str, ...]


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str:
        size = self.varint() - 1
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def number(self) -> int:
        (value,) = _NUMBER.unpack_from(self._data, self._at)
        self._at += _NUMBER.size
        return value


def read_value(value: bytes) -> KnownTransaction:
    """Decode the value of a transaction record of version 1, the only version that brokers write."""
    version, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(value)
    check(version == _FLEXIBLE, "brokers write transaction records of version 1", version)
    reader = _Reader(value, _HEAD.size)
    partitions: list[str] = []
    for _ in range(reader.varint() - 1):
        topic = reader.text()
        partitions += [f"{topic}-{reader.number()}" for _ in range(reader.varint() - 1)]
        check(reader.varint() == 0, "a topic has no tagged fields")
    return KnownTransaction(producer_id, epoch, timeout_ms, state, tuple(sorted(partitions)))


class LogRecord(NamedTuple):
    offset: int
    leader_epoch: int
    transactional_id: str
    transaction: KnownTransaction | None


def records_of(batches: Iterable[StoredBatch]) -> Iterator[LogRecord]:
    for batch in batches:
        for record in decode_records(batch.data, 0, read_header(batch.data)):
            name = (record.key or b"")[4:].decode()
            value = None if record.value is None else read_value(record.value)
            yield LogRecord(record.offset, batch.epoch, name, value)


def fold(records: Iterator[LogRecord]) -> dict[str, KnownTransaction]:
    """Return the transactions after all ``records``, by transactional id; a tombstone removes its id."""
    table: dict[str, KnownTransaction] = {}
    for record in records:
        if record.transaction is None:
            table.pop(record.transactional_id, None)
        else:
            table[record.transactional_id] = record.transaction
    return table


def known_to(shard: TransactionShard) -> dict[str, KnownTransaction]:
    return {
        name: KnownTransaction(
            each.producer_id,
            each.producer_epoch,
            each.timeout_ms,
            int(each.state),
            tuple(sorted(str(partition) for partition in each.partitions)),
        )
        for name, each in shard._transactions.items()
    }


def compare(who: str, known: dict[str, KnownTransaction], logged: dict[str, KnownTransaction]) -> list[str]:
    return [
        f"coordinator state: {who} has {known.get(name)} of {name}, its log {logged.get(name)}"
        for name in sorted(known.keys() | logged.keys())
        if known.get(name) != logged.get(name)
    ]


def finished_by_another(records: Sequence[LogRecord], leaders: dict[int, int]) -> int:
    """Return how many transactions one coordinator prepared and another completed.

    ``leaders`` has the broker id of the partition's leader by leader epoch.
    """
    prepared: dict[str, int | None] = {}
    finished = 0
    for _, epoch, name, transaction in records:
        state = None if transaction is None else transaction.state
        if state in PREPARED:
            prepared[name] = leaders.get(epoch)
        elif state in COMPLETE:
            before, now = prepared.pop(name, None), leaders.get(epoch)
            finished += before is not None and now is not None and before != now
    return finished


def is_marked(batches: Iterable[ProducerBatch], producer_id: int, epoch: int) -> bool:
    """Whether there is a marker of that epoch, and nothing else."""
    found = {
        batch.is_control
        for batch in batches
        if (batch.producer_id, batch.producer_epoch) == (producer_id, epoch)
    }
    return found == {True}


def _parse(partition: str) -> TopicPartition:
    topic, _, index = partition.rpartition("-")
    return TopicPartition(topic, int(index))


class CoordinatorStates:
    """Compares the state of the active transaction coordinators with their partitions' logs.

    ``violations`` has all errors found so far, up to ``VIOLATIONS_MAX``.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: set[tuple[int, ...]] = set()
        self._leaders: dict[int, dict[int, int]] = {}
        """Broker id of the leader, by partition and leader epoch."""
        self.violations: list[str] = []
        self.takeovers = 0

    def look(self) -> None:
        for node, index, shell in self._active():
            load = node.id, node.incarnations, index, shell.leader_epoch, shell.loads
            self._leaders.setdefault(index, {})[shell.leader_epoch] = node.id
            if load not in self._seen:
                self._seen.add(load)
                self.takeovers += 1
                self._note(self._compare(node, index, shell))
            if shell.partition.replica.high_watermark < shell.partition.log.log_end_offset:
                self._note(self._marked_too_early(node, index, shell))

    def _note(self, found: Iterable[str]) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations += found

    def _marked_too_early(self, node: BrokerNode, index: int, shell: Shell) -> Iterator[str]:
        image, high_watermark = self._cluster.newest_image, shell.partition.replica.high_watermark
        state = image.partition(TRANSACTION_STATE_TOPIC, index) if image is not None else None
        if state is None or state.leader_epoch != shell.leader_epoch:
            return  # another one leads, which may have decided as much
        for offset, epoch, name, transaction in records_of(_batches(node, index, high_watermark)):
            if offset < high_watermark or epoch != shell.leader_epoch or transaction is None:
                continue
            for partition in transaction.partitions if transaction.state in PREPARED else ():
                batches = partition_logs.read_leader(self._cluster, _parse(partition))
                if is_marked(batches, transaction.producer_id, transaction.producer_epoch):
                    yield (
                        f"marker too early: {partition} has the end of the transaction of {name}, epoch "
                        f"{transaction.producer_epoch}; the decision at {offset} is not committed"
                    )

    def judge_at_rest(self) -> Iterator[str]:
        for node, index, shell in self._active():
            yield from self._compare(node, index, shell)

    def has_decided(self, node: BrokerNode) -> bool:
        """Whether a coordinator of ``node`` has a committed decision whose markers are not all written."""
        return any(
            transaction.state.is_prepared
            for found, _, shell in self._active()
            if found is node and isinstance(shard := shell._shard, TransactionShard)
            if shell.partition.replica.high_watermark == shell.partition.log.log_end_offset
            for transaction in shard._transactions.values()
        )

    def finished_by_another(self) -> int:
        """Return how many transactions one coordinator prepared and another completed, according to the
        coordinators' logs. Call it when the cluster is at rest."""
        finished = 0
        for node, index, _ in self._active():
            records = list(records_of(_batches(node, index)))
            finished += finished_by_another(records, self._leaders.get(index, {}))
        return finished

    def _active(self) -> Iterator[tuple[BrokerNode, int, Shell]]:
        for node in self._cluster.nodes.values():
            if node.broker is None or not node.is_running:
                continue
            for index, shell in node.broker.services.transactions._shells._shells.items():
                if shell.state is ShellState.ACTIVE and shell.partition.is_led_here:
                    yield node, index, shell

    def _compare(self, node: BrokerNode, index: int, shell: Shell) -> list[str]:
        shard = shell._shard
        if not _places(node, index) or not isinstance(shard, TransactionShard):
            return []
        logged = fold(records_of(_batches(node, index)))
        return compare(f"{node.name}, partition {index},", known_to(shard), logged)


def _places(node: BrokerNode, index: int) -> list[str]:
    return node.places_of(str(TopicPartition(TRANSACTION_STATE_TOPIC, index)))


def _batches(node: BrokerNode, index: int, offset: int = 0) -> list[StoredBatch]:
    """Return the batches with records at or above ``offset`` of a partition of the node's coordinator."""
    places = _places(node, index)
    return read_batches_from(node.host.disk, places[0], offset) if places else []
