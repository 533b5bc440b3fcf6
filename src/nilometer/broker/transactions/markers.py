"""The marker that ends a producer's transaction in one partition, written by the partition's leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from nilometer.broker.replicas.delayed_produce import DelayedProduce, ProduceOutcome
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.coordinators.turn import TransactionEnd
from nilometer.storage import AppendInfo, AppendOrigin
from nilometer.storage.producers import NO_OFFSET
from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.records import ControlType, EndTxnMarker, build_end_txn_marker


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    version: int
    """The ``transaction.version`` with which the transaction ended."""
    timestamp_ms: int


WriteMarker: TypeAlias = Callable[[Partition], AppendInfo]


class MarkerWriter:
    """Writes markers to partitions led here; in a coordinator's topic, its shard is notified of the end."""

    def __init__(
        self,
        replicas: ReplicaManager,
        coordinators: Mapping[str, Callable[[int, WriteMarker, TransactionEnd], AppendInfo]],
    ) -> None:
        """``coordinators``: by topic name, the function through which a coordinator appends a marker to a
        partition of its topic."""
        self._replicas = replicas
        self._coordinators = coordinators

    def begin(self, topic: str, marker: Marker, outcome: ProduceOutcome, request: DelayedProduce) -> None:
        """Write the marker to one partition; ``request`` waits until it is committed.

        Errors are set in ``outcome``, which also names the partition.
        """
        try:
            partition = self._replicas.partition(topic, outcome.index)
            appended = self._write(partition, marker)
            partition.acknowledge_when_committed(appended, outcome, request)
        except KafkaError as refused:
            outcome.fail(refused.code)

    def _write(self, partition: Partition, marker: Marker) -> AppendInfo:
        append = self._coordinators.get(partition.topic)
        if append is None:
            return write_marker(partition, marker)
        end = TransactionEnd(marker.producer_id, marker.committed)
        return append(partition.key.partition, lambda led: write_marker(led, marker), end)


def write_marker(partition: Partition, marker: Marker) -> AppendInfo:
    """Append the marker as leader.

    Raises KafkaError: INVALID_PRODUCER_EPOCH if a later transaction of the producer is open in the partition,
    TRANSACTION_COORDINATOR_FENCED if the partition knows a later coordinator, and the errors of an append.
    """
    _check_epoch(partition, marker)
    kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
    batch = build_end_txn_marker(
        EndTxnMarker(kind, marker.coordinator_epoch, marker.timestamp_ms),
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
    )
    return partition.append(batch, all_replicas=True, origin=AppendOrigin.COORDINATOR)


def _check_epoch(partition: Partition, marker: Marker) -> None:
    """Raise KafkaError if the marker would end a later transaction of its producer.

    With ``transaction.version`` 2 each end bumps the epoch: a transaction open in the marker's epoch is
    later.
    """
    if marker.version < EPOCH_BUMP_VERSION:
        return
    known = partition.log.producers.producers.get(marker.producer_id)
    if (
        known is not None
        and known.current_txn_first_offset != NO_OFFSET
        and marker.producer_epoch <= known.producer_epoch
    ):
        raise KafkaError(
            ErrorCode.invalid_producer_epoch,
            f"the open transaction of producer {marker.producer_id} in {partition} has producer "
            f"epoch {known.producer_epoch}; a marker of epoch {marker.producer_epoch} cannot end it",
        )
