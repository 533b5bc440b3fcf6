"""Builds the requests of a transactional producer and reads their responses, in any version. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.client.group.group_exchange import MemberIdentity
from nilometer.client.network.cluster_metadata import TopicPartition, numbers_by_topic
from nilometer.client.transactions.transaction_manager import TransactionManager
from nilometer.client.transactions.transaction_steps import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    InitProducerId,
    ProducerIdentity,
)
from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.wire.errors import ErrorCode, UnsupportedVersion
from nilometer.wire.messages import Api, Message

NEXT_EPOCH_SINCE = 3
"""The first version of InitProducerId that can request the next epoch of a producer id (KIP-360)."""
ADD_PARTITIONS_OF_CLIENTS_MAX = 3
"""The newest version of AddPartitionsToTxn for clients; only brokers send later ones."""
PRODUCE_OF_VERSION_1_MAX = 11
"""The newest version of Produce without the implicit adding of partitions to the transaction (KIP-890)."""
COMMIT_OFFSETS_OF_VERSION_1_MAX = 4
END_OF_VERSION_1_MAX = 4
PREVIOUS_END_PAUSE_MS = 20
"""The longest pause before a retry after CONCURRENT_TRANSACTIONS: the markers of the previous transaction are
still being written, which takes less time than what other retriable errors wait for."""
MEMBER_SINCE = 3
"""The first version of TxnOffsetCommit with the group member and its generation, for fencing (KIP-447)."""


def init_request(api: Api, manager: TransactionManager, step: InitProducerId) -> Message:
    """Build the InitProducerId request. Raises UnsupportedVersion if it is for the next epoch of a known
    producer id and the broker does not support that."""
    if step.identity.is_known and api.version < NEXT_EPOCH_SINCE:
        raise UnsupportedVersion(api.key, api.version)
    return api.request(
        transactional_id=manager.transactional_id,
        transaction_timeout_ms=manager.timeout_ms,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
    )


def add_partitions_request(api: Api, transactional_id: str, step: AddPartitions) -> Message:
    return api.request(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=step.identity.producer_id,
        v3_and_below_producer_epoch=step.identity.producer_epoch,
        v3_and_below_topics=tuple(
            api.make_request("AddPartitionsToTxnTopic", name=topic, partitions=tuple(numbers))
            for topic, numbers in numbers_by_topic(step.partitions).items()
        ),
    )


def read_partitions_added(response: Message) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, part.partition_index): part.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    }


def add_offsets_request(api: Api, transactional_id: str, step: AddOffsets) -> Message:
    return api.request(
        transactional_id=transactional_id,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
        group_id=step.pending.group.group_id,
    )


def commit_offsets_request(api: Api, transactional_id: str, step: CommitOffsets) -> Message:
    """Build the TxnOffsetCommit request. Raises UnsupportedVersion if the offsets come from a group member
    and the broker cannot fence members."""
    member = step.pending.group.identity
    if api.version < MEMBER_SINCE and member != MemberIdentity():
        raise UnsupportedVersion(api.key, api.version)
    by_topic: dict[str, list[Message]] = {}
    for (topic, number), one in step.offsets.items():
        part = api.make_request(
            "TxnOffsetCommitRequestPartition",
            partition_index=number,
            committed_offset=one.offset,
            committed_leader_epoch=one.leader_epoch,
            committed_metadata=one.metadata,
        )
        by_topic.setdefault(topic, []).append(part)
    return api.request(
        transactional_id=transactional_id,
        group_id=step.pending.group.group_id,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=tuple(
            api.make_request("TxnOffsetCommitRequestTopic", name=topic, partitions=tuple(parts))
            for topic, parts in by_topic.items()
        ),
    )


def read_offsets_committed(response: Message) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(topic.name, part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }


def end_request(api: Api, transactional_id: str, step: EndTransaction) -> Message:
    return api.request(
        transactional_id=transactional_id,
        producer_id=step.identity.producer_id,
        producer_epoch=step.identity.producer_epoch,
        committed=step.committed,
    )


def read_identity(response: Message) -> ProducerIdentity | None:
    """Return the producer id and epoch in a response of InitProducerId or EndTxn; None for EndTxn before
    version 5, which has none."""
    if not hasattr(response, "producer_id"):
        return None
    return ProducerIdentity(response.producer_id, response.producer_epoch)


def at_most(version: int, of_version_1: int) -> int | None:
    """Return the newest request version for a transaction with ``transaction.version`` ``version``:
    ``of_version_1`` for versions 0 and 1, None (any request version) for later ones."""
    return None if version >= EPOCH_BUMP_VERSION else of_version_1


def worst(codes: Mapping[TopicPartition, ErrorCode]) -> tuple[TopicPartition, ErrorCode] | None:
    """Return one failed partition with its error, or None if none failed.

    Errors that are not retriable come first. OPERATION_NOT_ATTEMPTED does not count: it only follows from
    another partition's error.
    """
    failed = [
        (partition, code)
        for partition, code in codes.items()
        if code not in (ErrorCode.none, ErrorCode.operation_not_attempted)
    ]
    return min(failed, key=lambda one: one[1].retriable, default=None)
