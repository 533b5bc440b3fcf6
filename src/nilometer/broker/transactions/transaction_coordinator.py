"""The transaction coordinators of one broker, which pass requests to the shards and carry out their actions,
and the APIs of transactional producers that ask them: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and
EndTxn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar, assert_never

import msgspec
from msgspec.structs import asdict, replace

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message
from nilometer.broker.authorizer import Access
from nilometer.broker.control.internal_topics import InternalTopics
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinator_shell import CoordinatorKind
from nilometer.broker.coordinator_shells import CoordinatorShells, coordinator_error
from nilometer.broker.decision_lines import log_decision
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.transactions.markers import MarkerSender, Shell
from nilometer.broker.transactions.producer_ids import ProducerIds
from nilometer.broker.turns import LongWork, Turns
from nilometer.client_patterns import Pattern, matching
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Runtime
from nilometer.steps import at_once
from nilometer.storage.names import TopicPartition
from nilometer.transactions.records import TransactionRecord, decode_record, encode_record
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsResult,
    EndTransaction,
    EndTransactionResult,
    InitProducerId,
    InitProducerIdResult,
    ListTransactions,
    ProducerIdNeeded,
    TimeOut,
    TransactionRequest,
    TransactionResult,
    VerifyPartitions,
    VerifyPartitionsResult,
    refusal,
)
from nilometer.transactions.shard import AllocateProducerId, SendMarkers, TransactionAction, TransactionShard
from nilometer.transactions.transaction import EPOCH_BUMP_VERSION
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.compression import Codec
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division

# The transaction coordinators of one broker: passes requests to the shards, and carries out their actions.
#
# A producer id is allocated only when a shard needs one: the request is then submitted again with it.

logger = logging.getLogger("nilometer.broker.transactions")

COMMIT_TIMEOUT_MS = 30_000
"""How long a result waits for its record to be committed: Kafka's ``request.timeout.ms``."""

R = TypeVar("R")
OfOneId: TypeAlias = InitProducerId | EndTransaction | TimeOut
"""The requests that may need a new producer id."""
Respond: TypeAlias = Callable[[Sequence[TransactionResult]], Response]


class TransactionCoordinator(
    CoordinatorShells[TransactionRequest, TransactionResult, TransactionRecord, TransactionAction]
):
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: ReplicaManager,
        topics: InternalTopics,
        producer_ids: ProducerIds,
        markers: MarkerSender,
    ) -> None:
        self._matching = asyncio.Lock()
        """Held while ids are matched: other threads are left for the disks."""
        self._producer_ids = producer_ids
        self._markers = markers
        kind: CoordinatorKind[TransactionRequest, TransactionResult, TransactionRecord, TransactionAction]
        kind = CoordinatorKind(
            name="transaction",
            subject="transactions",
            topic=TRANSACTION_STATE_TOPIC,
            num_partitions=config.integer("transaction.state.log.num.partitions"),
            commit_timeout_ms=COMMIT_TIMEOUT_MS,
            load_buffer_bytes=config.integer("transaction.state.log.load.buffer.size"),
            codec=Codec.NONE,
            make_shard=lambda: TransactionShard(config.transactions, metadata.image),
            encode=encode_record,
            decode=decode_record,
            refuse=refusal,
            refuse_for_log=lambda request, error: refusal(request, coordinator_error(error)),
            carry_out=self._carry_out,
        )
        super().__init__(kind, runtime, tasks, metadata, replicas, topics)

    async def matching(self, pattern: Pattern, ids: Sequence[str]) -> list[str]:
        """Return the transactional ids that ``pattern`` matches as a whole, computed on another thread."""
        async with self._matching:
            return await self._runtime.disk.offload(lambda: matching(pattern, ids))

    async def answer_for_id(self, request: TransactionRequest) -> TransactionResult:
        """Return the result of a request about one transactional id, with a new producer id if it needs
        one."""
        assert not isinstance(request, ListTransactions), "that is asked of all shells"
        result = await self.answer(request.transactional_id, request)
        if not isinstance(result, ProducerIdNeeded):
            return result
        assert isinstance(request, OfOneId), "no other request needs a producer id"
        try:
            new_producer_id = await self._producer_ids.next()
        except (KafkaError, CoordinationError) as refused:
            logger.info("No producer id for %s yet: %s", request.transactional_id, refused)
            return refusal(request, ErrorCode.coordinator_load_in_progress)
        again = replace(request, new_producer_id=new_producer_id)
        return await self.answer(request.transactional_id, again)

    # ── actions ─────────────────────────────────────────────────────────────────────────────────
    def _carry_out(self, shell: Shell, action: TransactionAction) -> None:
        match action:
            case SendMarkers():
                if action.cause:
                    _log_abort(action)
                self._markers.send(shell, action)
            case AllocateProducerId():
                self._tasks.spawn(self._time_out(action.request), name="timeout of a transaction")
            case _:
                assert_never(action)

    async def _time_out(self, request: TimeOut) -> None:
        """Submit a time-out again with a new producer id; if none can be allocated, the shard's next check of
        time-outs repeats it."""
        try:
            new_producer_id = await self._producer_ids.next()
        except (KafkaError, CoordinationError) as refused:
            logger.info("No producer id for %s yet: %s", request.transactional_id, refused)
            return
        await self.answer(request.transactional_id, replace(request, new_producer_id=new_producer_id))


def _log_abort(action: SendMarkers) -> None:
    """Write the line about a transaction that is aborted, though its producer has not asked for it."""
    sentence = f"The open transaction of {action.transactional_id!r} is aborted"
    fields = {"transactional_id": action.transactional_id, "producer_id": action.producer_id}
    log_decision(logger, "transaction-aborted", sentence, action.cause, fields)


# The requests of transactional producers: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    turns: Turns
    metadata: MetadataLog
    producer_ids: ProducerIds
    partition_of_group: Callable[[str], int]
    """Returns the partition of the topic of groups that keeps a group, by its id."""
    transactions: TransactionCoordinator
    rights: Rights


# Errors of transactions, as older versions of their APIs know them.


def error_for(error: ErrorCode, version: int, first_with_producer_fenced: int) -> ErrorCode:
    """Return ``error``, or INVALID_PRODUCER_EPOCH for PRODUCER_FENCED in versions that do not know it: there
    it is as fatal."""
    if error is ErrorCode.producer_fenced and version < first_with_producer_fenced:
        return ErrorCode.invalid_producer_epoch
    return error


# InitProducerId: returns a producer id and epoch for an idempotent or a transactional producer.
#
# A request without a transactional id gets a new producer id, even if it names its current id and epoch
# (version 3): without a transactional id the previous user of a producer id cannot be fenced. A request with
# one is decided by its transaction coordinator. Version 4 knows PRODUCER_FENCED.

INIT_PRODUCER_ID_FIRST_WITH_PRODUCER_FENCED = 4


def handle_init_producer_id(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    return parts.tasks.spawn(_answer_init_producer_id(parts, request))


async def _answer_init_producer_id(parts: Parts, request: Request) -> Response:
    transactional_id: str | None = request.body.transactional_id
    timeout_ms = milliseconds(request.body.transaction_timeout)
    if (denied := _denial(parts, request)) is not ErrorCode.none:
        return _respond_init_producer_id(request, InitProducerIdResult(denied))
    asked = of_message(InitProducerId, request.body, transaction_timeout_ms=timeout_ms)
    if transactional_id == "" or (asked.producer_id < 0) != (asked.producer_epoch < 0):
        return _respond_init_producer_id(request, InitProducerIdResult(ErrorCode.invalid_request))
    if transactional_id is None:
        return _respond_init_producer_id(request, await _new_identity(parts))
    result = await parts.transactions.answer_for_id(asked)
    assert isinstance(result, InitProducerIdResult)
    return _respond_init_producer_id(request, result)


def _denial(parts: Parts, request: Request) -> ErrorCode:
    """Return the error if the client may not get a producer id; ``none`` if it may.

    Idempotent producers need IDEMPOTENT_WRITE on the cluster, or WRITE on some topic (KIP-679).
    """
    access, transactional_id = parts.rights.access(request), request.body.transactional_id
    if transactional_id is not None:
        if access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.none
        return ErrorCode.transactional_id_authorization_failed
    if access.on_cluster(Operation.IDEMPOTENT_WRITE, report=False):
        return ErrorCode.none
    if access.allows_some(Operation.WRITE, ResourceType.TOPIC):
        return ErrorCode.none
    return ErrorCode.cluster_authorization_failed


async def _new_identity(parts: Parts) -> InitProducerIdResult:
    try:
        return InitProducerIdResult(ErrorCode.none, await parts.producer_ids.next(), 0)
    except (KafkaError, CoordinationError):
        return InitProducerIdResult(ErrorCode.coordinator_load_in_progress)


def _respond_init_producer_id(request: Request, result: InitProducerIdResult) -> Response:
    error = error_for(result.error_code, request.version, INIT_PRODUCER_ID_FIRST_WITH_PRODUCER_FENCED)
    return request.respond(**(asdict(result) | {"error_code": error}))


# AddPartitionsToTxn: add partitions to a transaction before it writes to them, or verify that it has them.
#
# Versions: 2 knows PRODUCER_FENCED. From 4 on brokers send it, for many transactions at once: to verify that
# a partition is part of the transaction (``verify_only``), or to add it when a producer that knows
# ``transaction.version`` 2 sends its first batch (KIP-890).

FIRST_OF_BROKERS = 4
_WRITE = Operation.WRITE
ADD_PARTITIONS_FIRST_WITH_PRODUCER_FENCED = 2
FEW_PARTITIONS = 256
"""A request with more is handled in several turns: in one, each takes some 4 us."""

Errors = Mapping[TopicPartition, ErrorCode]


class _Named(NamedTuple):
    """What a request says about one transaction."""

    transactional_id: str
    topics: Sequence[Message]
    ask: Callable[[Sequence[TopicPartition]], AddPartitions | VerifyPartitions]
    """Makes the request to the coordinator."""


class _Checked(NamedTuple):
    transactional_id: str
    partitions: Sequence[TopicPartition]
    refused: Errors | None
    """The errors of all partitions if some are wrong: none is added, and the coordinator is not asked."""
    asked: AddPartitions | VerifyPartitions


def handle_add_partitions(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    access, denied = parts.rights.access(request), ErrorCode.none
    if request.version < FIRST_OF_BROKERS:
        named = [_named_by_client(request.body)]
        if not access.allows(_WRITE, ResourceType.TRANSACTIONAL_ID, named[0].transactional_id):
            denied = ErrorCode.transactional_id_authorization_failed
    elif not access.on_cluster(Operation.CLUSTER_ACTION):
        return request.respond(error_code=ErrorCode.cluster_authorization_failed, results_by_transaction=())
    else:
        named = [_named_by_broker(each) for each in request.body.transactions]
    checks = [_check(parts, request, each, access, denied) for each in named]
    if sum(len(topic.partitions) for each in named for topic in each.topics) > FEW_PARTITIONS:
        return parts.tasks.spawn(_add_many(parts, request, checks), kind="AddPartitionsToTxn")
    checked = [at_once(each) for each in checks]
    return parts.transactions.ask(
        [(each.transactional_id, each.asked) for each in checked if each.refused is None],
        lambda results: _respond_added(request, checked, results),
    )


async def _add_many(
    parts: Parts, request: Request, checks: Sequence[Generator[int, None, _Checked]]
) -> Response:
    work = LongWork(parts.turns)
    checked = [await work.go_through(each) for each in checks]
    results: list[TransactionResult] = []
    for each in checked:
        if each.refused is None:
            results.append(await parts.transactions.answer(each.transactional_id, each.asked))
            await parts.turns.wait_next()  # the coordinator has walked over the whole transaction
    return _respond_added(request, checked, results)


def _named_by_client(body: Message) -> _Named:
    def ask(partitions: Sequence[TopicPartition]) -> AddPartitions:
        return AddPartitions(
            transactional_id=body.v3_and_below_transactional_id,
            producer_id=body.v3_and_below_producer_id,
            producer_epoch=body.v3_and_below_producer_epoch,
            partitions=frozenset(partitions),
        )

    return _Named(body.v3_and_below_transactional_id, body.v3_and_below_topics, ask)


def _named_by_broker(transaction: Message) -> _Named:
    def ask(partitions: Sequence[TopicPartition]) -> AddPartitions | VerifyPartitions:
        if transaction.verify_only:
            return of_message(VerifyPartitions, transaction, partitions=tuple(partitions))
        added = frozenset(partitions)
        return of_message(AddPartitions, transaction, partitions=added, version=EPOCH_BUMP_VERSION)

    return _Named(transaction.transactional_id, transaction.topics, ask)


def _check(
    parts: Parts, request: Request, named: _Named, access: Access, denied: ErrorCode
) -> Generator[int, None, _Checked]:
    """Check the partitions of one transaction; each step yields how many. ``denied``: the error of all.

    A client needs the right to write to each topic, and no right is enough for an internal one; a broker has
    checked the rights of the client that it asks for.
    """
    partitions = list[TopicPartition]()
    wrong = dict[TopicPartition, ErrorCode]()
    for topic in named.topics:
        may_write = request.version >= FIRST_OF_BROKERS or (
            denied is ErrorCode.none and _may_write(access, topic.name)
        )
        for start in range(0, len(topic.partitions), FEW_PARTITIONS):
            indexes = topic.partitions[start : start + FEW_PARTITIONS]
            found = [TopicPartition(topic.name, index) for index in indexes]
            partitions += found
            if not may_write:
                wrong.update(dict.fromkeys(found, ErrorCode.topic_authorization_failed))
            else:
                known = parts.metadata.image.topic(topic.name)
                missing = [each for each in found if known is None or known.partition(each.partition) is None]
                wrong.update(dict.fromkeys(missing, ErrorCode.unknown_topic_or_partition))
            yield len(found)
    asked = named.ask(partitions)
    refused: Errors | None = None
    if denied is not ErrorCode.none:
        refused = dict.fromkeys(partitions, denied)
    elif wrong:
        refused = {each: wrong.get(each, ErrorCode.operation_not_attempted) for each in partitions}
    return _Checked(named.transactional_id, partitions, refused, asked)


def _may_write(access: Access, topic: str) -> bool:
    if access.is_full:
        return True
    return topic not in INTERNAL_TOPICS and access.allows(_WRITE, ResourceType.TOPIC, topic)


def _respond_added(
    request: Request, checked: Sequence[_Checked], results: Sequence[TransactionResult]
) -> Response:
    """``results``: the coordinator's, for those transactions that are not refused."""
    answered = iter(results)
    errors = [
        _errors(request, each.partitions, next(answered)) if each.refused is None else each.refused
        for each in checked
    ]
    if request.version < FIRST_OF_BROKERS:
        return request.respond(results_by_topic_v3_and_below=_topics(request, errors[0]))
    return request.respond(
        error_code=ErrorCode.none,
        results_by_transaction=tuple(
            request.make(
                "AddPartitionsToTxnResult",
                transactional_id=each.transactional_id,
                topic_results=_topics(request, of_each),
            )
            for each, of_each in zip(checked, errors, strict=True)
        ),
    )


def _errors(request: Request, partitions: Sequence[TopicPartition], result: TransactionResult) -> Errors:
    if isinstance(result, VerifyPartitionsResult):
        return dict(result.errors)
    assert isinstance(result, AddPartitionsResult)
    error = error_for(result.error_code, request.version, ADD_PARTITIONS_FIRST_WITH_PRODUCER_FENCED)
    return dict.fromkeys(partitions, error)


def _topics(request: Request, errors: Errors) -> Sequence[Message]:
    topics = defaultdict[str, list[tuple[int, ErrorCode]]](list)
    for partition, error in errors.items():
        topics[partition.topic].append((partition.partition, error))
    return LazySequence(partial(_topic, request), list(topics.items()))


def _topic(request: Request, added: tuple[str, Sequence[tuple[int, ErrorCode]]]) -> Message:
    name, partitions = added
    results = LazySequence(partial(_partition, request), partitions)
    return request.make("AddPartitionsToTxnTopicResult", name=name, results_by_partition=results)


def _partition(request: Request, added: tuple[int, ErrorCode]) -> Message:
    index, error = added
    return request.make(
        "AddPartitionsToTxnPartitionResult", partition_index=index, partition_error_code=error
    )


# AddOffsetsToTxn: a transaction is about to commit offsets of a group.
#
# It adds the group's partition of ``__consumer_offsets`` to the transaction, so that the transaction's marker
# is written there too. Producers of ``transaction.version`` 2 do not send it: their TxnOffsetCommit adds the
# partition. Versions: 2 knows PRODUCER_FENCED.

ADD_OFFSETS_FIRST_WITH_PRODUCER_FENCED = 2


def handle_add_offsets(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body = request.body
    access = parts.rights.access(request)
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id):
        return _respond_add_offsets(request, ErrorCode.transactional_id_authorization_failed)
    if not access.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return _respond_add_offsets(request, ErrorCode.group_authorization_failed)
    kept_in = TopicPartition(GROUP_METADATA_TOPIC, parts.partition_of_group(body.group_id))
    asked = of_message(AddPartitions, body, partitions=frozenset({kept_in}))

    def respond(result: AddPartitionsResult) -> Response:
        return _respond_add_offsets(
            request, error_for(result.error_code, request.version, ADD_OFFSETS_FIRST_WITH_PRODUCER_FENCED)
        )

    return parts.transactions.ask_one(asked.transactional_id, asked, AddPartitionsResult, respond)


def _respond_add_offsets(request: Request, error: ErrorCode) -> Response:
    return request.respond(error_code=error)


# EndTxn: commit or abort the open transaction of a producer.
#
# Versions: 2 knows PRODUCER_FENCED; 5 bumps the producer epoch with every end, and returns the producer id
# and epoch for the next transaction (KIP-890).

FIRST_WITH_EPOCH_BUMP = 5
END_TXN_FIRST_WITH_PRODUCER_FENCED = 2


def handle_end_txn(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    return parts.tasks.spawn(_answer_end_txn(parts, request))


async def _answer_end_txn(parts: Parts, request: Request) -> Response:
    body = request.body
    write, kind = Operation.WRITE, ResourceType.TRANSACTIONAL_ID
    if not parts.rights.access(request).allows(write, kind, body.transactional_id):
        return _respond_end_txn(
            request, EndTransactionResult(ErrorCode.transactional_id_authorization_failed)
        )
    version = EPOCH_BUMP_VERSION if request.version >= FIRST_WITH_EPOCH_BUMP else 0
    result = await parts.transactions.answer_for_id(of_message(EndTransaction, body, version=version))
    assert isinstance(result, EndTransactionResult)
    return _respond_end_txn(request, result)


def _respond_end_txn(request: Request, result: EndTransactionResult) -> Response:
    error = error_for(result.error_code, request.version, END_TXN_FIRST_WITH_PRODUCER_FENCED)
    return request.respond(**(asdict(result) | {"error_code": error}))


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.INIT_PRODUCER_ID,
            versions=(0, 5),
            handle=partial(handle_init_producer_id, parts),
            rights=(
                Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
                Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
                Right(Operation.WRITE, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.ADD_PARTITIONS_TO_TXN,
            versions=(0, 5),
            handle=partial(handle_add_partitions, parts),
            divisions=(Division(("transactions",), ("results_by_transaction",)),),
            rights=(
                Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
                Right(Operation.WRITE, ResourceType.TOPIC),
                Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
            ),
        ),
        ApiSpec(
            key=ApiKey.ADD_OFFSETS_TO_TXN,
            versions=(0, 4),
            handle=partial(handle_add_offsets, parts),
            rights=(
                Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
                Right(Operation.READ, ResourceType.GROUP),
            ),
        ),
        ApiSpec(
            key=ApiKey.END_TXN,
            versions=(0, 5),
            handle=partial(handle_end_txn, parts),
            rights=(Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),),
        ),
    )
