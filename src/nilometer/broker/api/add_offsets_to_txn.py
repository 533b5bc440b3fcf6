"""AddOffsetsToTxn: a transaction is about to commit offsets of a group.

It adds the group's partition of ``__consumer_offsets`` to the transaction, so that the transaction's marker
is written there too. Producers of ``transaction.version`` 2 do not send it: their TxnOffsetCommit adds the
partition. Versions: 2 knows PRODUCER_FENCED.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.transaction_errors import error_for
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC
from nilometer.storage import TopicPartition
from nilometer.transactions.requests import AddPartitions, AddPartitionsReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

FIRST_WITH_PRODUCER_FENCED = 2


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    access = access_of(services, request)
    if not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, body.transactional_id):
        return _respond(request, ErrorCode.transactional_id_authorization_failed)
    if not access.allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return _respond(request, ErrorCode.group_authorization_failed)
    kept_in = TopicPartition(GROUP_METADATA_TOPIC, services.groups.partition_for(body.group_id))
    asked = AddPartitions(
        transactional_id=body.transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        partitions=frozenset({kept_in}),
    )

    def respond(reply: AddPartitionsReply) -> Reply:
        return _respond(request, error_for(reply.error_code, request.version, FIRST_WITH_PRODUCER_FENCED))

    return services.transactions.ask_one(asked.transactional_id, asked, AddPartitionsReply, respond)


def _respond(request: Request, error: ErrorCode) -> Reply:
    return request.respond(throttle_time_ms=0, error_code=error)


API = ApiSpec(
    key=ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    handle=handle,
    rights=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.READ, ResourceType.GROUP),
    ),
)
