"""The markers that end transactions in partitions: written by a partition's leader, sent by the coordinator
until each is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.control.broker_peers import PeerConnections
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinator_shell import CoordinatorShell, ShellState
from nilometer.broker.replicas.delayed_requests import DelayedProduce, DelayedResponse, ProduceOutcome
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import PartitionState
from nilometer.coordinators import TransactionEnd
from nilometer.runtime import Runtime
from nilometer.storage.appending import AppendInfo
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import NO_OFFSET, AppendOrigin
from nilometer.transactions.records import TransactionRecord
from nilometer.transactions.requests import MarkersWritten, TransactionRequest, TransactionResult
from nilometer.transactions.shard import SendMarkers, TransactionAction
from nilometer.transactions.transaction import EPOCH_BUMP_VERSION
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division
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


logger = logging.getLogger("nilometer.broker.transactions")

RETRY_S = 0.1
MARKERS_AT_ONCE = 64
"""The markers of a transaction with more partitions are distributed to the leaders in several turns."""
MARKERS_PER_REQUEST_MAX = 1_000
LOCAL_TIMEOUT_MS = 30_000

Shell: TypeAlias = CoordinatorShell[
    TransactionRequest, TransactionResult, TransactionRecord, TransactionAction
]


class _End:
    """The end of one transaction, with the partitions whose markers are not written yet (``missing``)."""

    __slots__ = ("_load", "action", "missing", "shell")

    def __init__(self, shell: Shell, action: SendMarkers) -> None:
        self.shell = shell
        self.action = action
        self.missing = dict.fromkeys(action.partitions)
        self._load = shell.loads

    @property
    def is_current(self) -> bool:
        """Whether the shard that requested the markers is still loaded."""
        return self.shell.state is ShellState.ACTIVE and self.shell.loads == self._load


class _Entry(NamedTuple):
    end: _End
    partition: TopicPartition


class MarkerSender:
    def __init__(
        self,
        broker_id: int,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        writer: MarkerWriter,
        connections: PeerConnections,
        turns: Turns,
    ) -> None:
        self._broker_id = broker_id
        self._turns = turns
        self._runtime = runtime
        self._tasks = tasks
        self._metadata = metadata
        self._writer = writer
        self._connections = connections
        self._queues: dict[int, list[_Entry]] = {}
        """The markers to send, by the broker that leads their partitions."""
        self._to_retry: list[_Entry] = []
        """The markers to send again after :data:`RETRY_S`, all with one timer."""
        self._leaderless: dict[TopicPartition, list[_Entry]] = {}
        """Those that wait until their partition has a leader: of many transactions, as long as it takes."""
        self._is_looking = False
        """Whether a task looks for their leaders, or is about to."""
        self._sending: dict[int, None] = {}
        """The brokers to which a task is sending markers."""

    def send(self, shell: Shell, action: SendMarkers) -> None:
        """Send the markers; when all are committed, submit MarkersWritten to ``shell``."""
        end = _End(shell, action)
        if not action.partitions:
            self._complete(end)
        self._route_all([_Entry(end, partition) for partition in action.partitions])

    # ── who leads ───────────────────────────────────────────────────────────────────────────────
    def _route_all(self, entries: Sequence[_Entry]) -> None:
        if len(entries) > MARKERS_AT_ONCE:
            self._tasks.spawn(self._route_slices(entries), name="markers of transactions")
            return
        for entry in entries:
            self._route(entry)

    async def _route_slices(self, entries: Sequence[_Entry]) -> None:
        work = LongWork(self._turns)
        for entry in entries:
            await work.step(1)
            self._route(entry)

    def _route(self, entry: _Entry) -> None:
        """Queue a marker for the leader of its partition; without a leader, try again later."""
        if not entry.end.is_current:
            return
        state = self._state_of(entry.partition)
        if state is None:
            logger.info("%s is deleted: it needs no marker", entry.partition)
            self._written(entry)
        elif not state.has_leader:
            self._leaderless.setdefault(entry.partition, []).append(entry)
            if not self._is_looking:
                self._look_later()
        else:
            self._enqueue(int(state.leader), entry)

    def _state_of(self, partition: TopicPartition) -> PartitionState | None:
        topic = self._metadata.image.topic(partition.topic)
        return None if topic is None else topic.partition(partition.partition)

    def _look_later(self) -> None:
        self._is_looking = True
        asyncio.get_running_loop().call_later(RETRY_S, self._begin_to_look)

    def _begin_to_look(self) -> None:
        self._tasks.spawn(self._look_for_leaders(), name="markers without a leader")

    async def _look_for_leaders(self) -> None:
        """Route the markers again whose partitions have a leader now, or are deleted. Of each partition one
        marker is looked at, however many transactions wait for it."""
        work = LongWork(self._turns)
        try:
            for partition in tuple(self._leaderless):
                await work.step(1)
                state, entries = self._state_of(partition), self._leaderless[partition]
                if state is not None and not state.has_leader and entries[-1].end.is_current:
                    continue
                for entry in self._leaderless.pop(partition):
                    await work.step(1)
                    self._route(entry)
        finally:
            self._is_looking = False
            if self._leaderless:
                self._look_later()

    def _enqueue(self, leader: int, entry: _Entry) -> None:
        self._queues.setdefault(leader, []).append(entry)
        if leader not in self._sending:
            self._sending[leader] = None
            self._tasks.spawn(self._send_all(leader), name=f"markers to broker {leader}")

    def _retry(self, entry: _Entry) -> None:
        if not self._to_retry:
            asyncio.get_running_loop().call_later(RETRY_S, self._route_again)
        self._to_retry.append(entry)

    def _route_again(self) -> None:
        entries, self._to_retry = self._to_retry, []
        self._route_all(entries)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────
    async def _send_all(self, leader: int) -> None:
        """Send the markers queued for broker ``leader`` until its queue is empty.

        Markers that fail, or get no response, are sent again later.
        """
        work = LongWork(self._turns)
        try:
            while queue := self._queues.pop(leader, None):
                rest = queue[MARKERS_PER_REQUEST_MAX:]
                if rest:
                    self._queues[leader] = rest
                batch = [entry for entry in queue[:MARKERS_PER_REQUEST_MAX] if entry.end.is_current]
                if batch:
                    for entry, error in zip(batch, await self._write(leader, batch), strict=True):
                        self._on_answer(entry, error)
                        await work.step(1)
        finally:
            del self._sending[leader]

    async def _write(self, leader: int, batch: Sequence[_Entry]) -> Sequence[ErrorCode]:
        if leader == self._broker_id:
            return await self._write_here(batch)
        try:
            connection = await self._connections.to(leader)
            response = await connection.request(ApiKey.WRITE_TXN_MARKERS, lambda api: _request(api, batch))
        except KafkaError as refused:
            logger.info(
                "No response to %d transaction markers from broker %d: %s", len(batch), leader, refused
            )
            return [ErrorCode.network_exception] * len(batch)
        except Exception:  # the transactions must be finished all the same
            logger.exception("Transaction markers to broker %d failed and are sent again", leader)
            return [ErrorCode.unknown_server_error] * len(batch)
        return _errors(response, batch)

    async def _write_here(self, batch: Sequence[_Entry]) -> Sequence[ErrorCode]:
        outcomes = [ProduceOutcome(entry.partition.partition) for entry in batch]
        done = asyncio.Event()
        delayed = DelayedProduce(done.set)
        timestamp_ms = self._runtime.clock.wall_ms()
        work = LongWork(self._turns)
        for entry, outcome in zip(batch, outcomes, strict=True):
            marker = _marker(entry.end, timestamp_ms)
            self._writer.begin(entry.partition.topic, marker, outcome, delayed)
            await work.step(1)
        if delayed.is_waiting:
            delayed.start_timer(LOCAL_TIMEOUT_MS)
            await done.wait()
        return [outcome.error for outcome in outcomes]

    # ── what came of it ─────────────────────────────────────────────────────────────────────────
    def _on_answer(self, entry: _Entry, error: ErrorCode) -> None:
        match error:
            case ErrorCode.none:
                self._written(entry)
            case ErrorCode.invalid_producer_epoch:
                logger.warning(
                    "%s already has a later transaction than %s: it needs no marker",
                    entry.partition,
                    entry.end.action,
                )
                self._written(entry)
            case ErrorCode.transaction_coordinator_fenced:
                logger.warning(
                    "The transaction of %s is completed by a newer coordinator",
                    entry.end.action.transactional_id,
                )
            case _:
                self._retry(entry)

    def _written(self, entry: _Entry) -> None:
        missing = entry.end.missing
        if entry.partition in missing:
            del missing[entry.partition]
            if not missing:
                self._complete(entry.end)

    def _complete(self, end: _End) -> None:
        """Submit MarkersWritten; again later if the shell does not take it now.

        A shell rejects requests while the broker's session may have expired. If the session turns out to be
        live, the shell stays loaded, and no other coordinator would complete the transaction.
        """
        if not end.is_current:
            return
        action = end.action
        request = MarkersWritten(
            transactional_id=action.transactional_id,
            producer_id=action.producer_id,
            producer_epoch=action.producer_epoch,
        )
        try:
            end.shell.submit(request, lambda _reply: None)
        except KafkaError as refused:
            logger.info("%s is not completed yet: %s", action, refused)
            asyncio.get_running_loop().call_later(RETRY_S, self._complete, end)


def _marker(end: _End, timestamp_ms: int) -> Marker:
    action = end.action
    return Marker(
        producer_id=action.producer_id,
        producer_epoch=action.producer_epoch,
        committed=action.committed,
        coordinator_epoch=end.shell.leader_epoch,
        version=action.version,
        timestamp_ms=timestamp_ms,
    )


def _request(api: Api, batch: Sequence[_Entry]) -> Message:
    ends: dict[_End, dict[str, list[int]]] = {}
    for end, partition in batch:
        ends.setdefault(end, {}).setdefault(partition.topic, []).append(partition.partition)
    with_version = api.version >= 2
    return api.request(
        markers=tuple(
            api.make_request(
                "WritableTxnMarker",
                producer_id=end.action.producer_id,
                producer_epoch=end.action.producer_epoch,
                transaction_result=end.action.committed,
                coordinator_epoch=end.shell.leader_epoch,
                topics=tuple(
                    api.make_request("WritableTxnMarkerTopic", name=name, partition_indexes=tuple(indexes))
                    for name, indexes in topics.items()
                ),
                **({"transaction_version": end.action.version} if with_version else {}),
            )
            for end, topics in ends.items()
        )
    )


def _errors(response: Message, batch: Sequence[_Entry]) -> list[ErrorCode]:
    """Return the error of each marker in ``batch``, in order; NETWORK_EXCEPTION if the response lacks one."""
    found = {
        (marker.producer_id, topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
    return [
        found.get((end.action.producer_id, partition.topic, partition.partition), ErrorCode.network_exception)
        for end, partition in batch
    ]


# WriteTxnMarkers: writes the control records that end a transaction to partitions led here.
#
# Sent by transaction coordinators, and by tools that abort a transaction whose coordinator has lost it. The
# response comes once the markers are committed. Version 2 has the ``transaction.version``: with 2 the epoch
# of a marker is above that of the transaction's records, so that a repeated marker of an earlier transaction
# does not end a later one (KIP-890).


class Parts(msgspec.Struct, frozen=True):
    runtime: Runtime
    turns: Turns
    marker_writer: MarkerWriter
    rights: Rights


TIMEOUT_MS = 30_000
"""How long markers may wait for the high watermark: Kafka's ``request.timeout.ms``."""


class _TopicOutcomes(NamedTuple):
    name: str
    partitions: Sequence[ProduceOutcome]


class _MarkerOutcomes(NamedTuple):
    producer_id: int
    topics: Sequence[_TopicOutcomes]


def handle(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    access, markers = parts.rights.access(request), list[_MarkerOutcomes]()
    denied = not (
        access.on_cluster(Operation.ALTER, report=False) or access.on_cluster(Operation.CLUSTER_ACTION)
    )
    waiting = DelayedResponse(parts.turns, lambda: _respond(request, markers))
    for asked in request.body.markers:
        marker = _requested_marker(parts, asked)
        topics = [
            _TopicOutcomes(topic.name, [ProduceOutcome(index) for index in topic.partition_indexes])
            for topic in asked.topics
        ]
        markers.append(_MarkerOutcomes(asked.producer_id, topics))
        if not denied:
            ended = {topic.name: list(topic.partition_indexes) for topic in asked.topics}
            parts.rights.audit_own_change(request, producer_id=asked.producer_id, partitions=ended)
        for topic in topics:
            for outcome in topic.partitions:
                if denied:
                    outcome.fail(ErrorCode.cluster_authorization_failed)
                    continue
                parts.marker_writer.begin(topic.name, marker, outcome, waiting.delayed)
    return waiting.response(TIMEOUT_MS)


def _requested_marker(parts: Parts, asked: Message) -> Marker:
    return Marker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        committed=asked.transaction_result,
        coordinator_epoch=asked.coordinator_epoch,
        version=getattr(asked, "transaction_version", 0),
        timestamp_ms=parts.runtime.clock.wall_ms(),
    )


def _respond(request: Request, markers: Sequence[_MarkerOutcomes]) -> Response:
    return request.respond(
        markers=tuple(
            request.make(
                "WritableTxnMarkerResult",
                producer_id=marker.producer_id,
                topics=tuple(_topic(request, topic) for topic in marker.topics),
            )
            for marker in markers
        )
    )


def _topic(request: Request, topic: _TopicOutcomes) -> Message:
    return request.make(
        "WritableTxnMarkerTopicResult",
        name=topic.name,
        partitions=tuple(
            request.make(
                "WritableTxnMarkerPartitionResult", partition_index=outcome.index, error_code=outcome.error
            )
            for outcome in topic.partitions
        ),
    )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.WRITE_TXN_MARKERS,
            versions=(1, 2),
            handle=partial(handle, parts),
            exempt_from_quotas=True,
            divisions=(
                Division(
                    ("markers", "topics", "partition_indexes"),
                    ("markers", "topics", "partitions"),
                    elements_max=16,  # the first append to a partition opens its files
                ),
            ),
            rights=(
                Right(Operation.ALTER, ResourceType.CLUSTER),
                Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
            ),
        ),
    )
