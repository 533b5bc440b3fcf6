"""The transaction coordinators of one broker: passes requests to the shards, and carries out their actions.

A producer id is allocated only when a shard needs one: the request is then submitted again with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar, assert_never

from msgspec.structs import replace

from nilometer.broker.control.controller_link import ProducerIds
from nilometer.broker.control.internal_topics import InternalTopics
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinators.markers import MarkerSender, Shell
from nilometer.broker.coordinators.shell import CoordinatorKind
from nilometer.broker.coordinators.shells import CoordinatorShells, coordinator_error
from nilometer.broker.decision_lines import log_decision
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.replies import Reply as Frame
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.states import TRANSACTION_STATE_TOPIC
from nilometer.coordination.store import CoordinationError
from nilometer.coordinators.client_patterns import Pattern, matching
from nilometer.runtime import Runtime
from nilometer.transactions.records import TransactionRecord, decode_record, encode_record
from nilometer.transactions.requests import (
    EndTransaction,
    InitProducerId,
    ListTransactions,
    ProducerIdNeeded,
    TimeOut,
    TransactionReply,
    TransactionRequest,
    refusal,
)
from nilometer.transactions.shard import AllocateProducerId, SendMarkers, TransactionAction, TransactionShard
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.transactions")

COMMIT_TIMEOUT_MS = 30_000
"""How long a reply waits for its record to be committed: Kafka's ``request.timeout.ms``."""

R = TypeVar("R")
OfOneId: TypeAlias = InitProducerId | EndTransaction | TimeOut
"""The requests that may need a new producer id."""
Respond: TypeAlias = Callable[[Sequence[TransactionReply]], Frame]


class TransactionCoordinator(
    CoordinatorShells[TransactionRequest, TransactionReply, TransactionRecord, TransactionAction]
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
        kind: CoordinatorKind[TransactionRequest, TransactionReply, TransactionRecord, TransactionAction]
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

    async def answer_for_id(self, request: TransactionRequest) -> TransactionReply:
        """Return the reply to a request about one transactional id, with a new producer id if it needs
        one."""
        assert not isinstance(request, ListTransactions), "that is asked of all shells"
        reply = await self.answer(request.transactional_id, request)
        if not isinstance(reply, ProducerIdNeeded):
            return reply
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
