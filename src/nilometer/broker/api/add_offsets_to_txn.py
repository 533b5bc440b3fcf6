"""AddOffsetsToTxn: a transaction is about to commit offsets of a group.

It adds the group's partition of ``__consumer_offsets`` to the transaction, so that the transaction's marker
is written there too. Producers of ``transaction.version`` 2 do not send it: their TxnOffsetCommit adds the
partition. Versions: 2 knows PRODUCER_FENCED.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.api.transaction_errors import error_for
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.topic import GROUP_METADATA_TOPIC
from nilometer.storage import TopicPartition
from nilometer.transactions.requests import AddPartitions, AddPartitionsReply
from nilometer.wire.api_keys import ApiKey

FIRST_WITH_PRODUCER_FENCED = 2


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    kept_in = TopicPartition(GROUP_METADATA_TOPIC, services.groups.partition_for(body.group_id))
    asked = AddPartitions(
        transactional_id=body.transactional_id,
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        partitions=frozenset({kept_in}),
    )

    def respond(reply: AddPartitionsReply) -> Reply:
        error = error_for(reply.error_code, request.version, FIRST_WITH_PRODUCER_FENCED)
        return request.respond(throttle_time_ms=0, error_code=error)

    return services.transactions.ask_one(asked.transactional_id, asked, AddPartitionsReply, respond)


API = ApiSpec(key=ApiKey.ADD_OFFSETS_TO_TXN, versions=(0, 4), handle=handle)
