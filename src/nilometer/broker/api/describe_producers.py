"""DescribeProducers: the producers in the state of a partition's leader, and the first offsets of their open
transactions."""

from __future__ import annotations

from functools import partial

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.storage.producers import ProducerStateEntry
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply:
    topics = tuple(
        request.make(
            "TopicResponse",
            name=topic.name,
            partitions=tuple(
                _describe(services, request, topic.name, index) for index in topic.partition_indexes
            ),
        )
        for topic in request.body.topics
    )
    return request.respond(throttle_time_ms=0, topics=topics)


def _describe(services: Services, request: Request, topic: str, index: int) -> Message:
    try:
        if not access_of(services, request).allows(Operation.READ, ResourceType.TOPIC, topic):
            raise KafkaError(ErrorCode.topic_authorization_failed)
        partition = services.replicas.partition(topic, index)
        _ = partition.leader  # raises where another broker leads
        known = partition.log.producers.producers
    except KafkaError as refused:
        return request.make(
            "PartitionResponse",
            partition_index=index,
            error_code=refused.code,
            error_message=None,
            active_producers=(),
        )
    producers = LazySequence(partial(_producer, request), list(known.items()))
    return request.make(
        "PartitionResponse",
        partition_index=index,
        error_code=ErrorCode.none,
        error_message=None,
        active_producers=producers,
    )


def _producer(request: Request, known: tuple[int, ProducerStateEntry]) -> Message:
    producer_id, entry = known
    return request.make(
        "ProducerState",
        producer_id=producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.current_txn_first_offset,
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    handle=handle,
    divisions=(
        Division(("topics", "partition_indexes"), ("topics", "partitions"), repeated=Repeated.AT_MOST_TWICE),
    ),
    rights=(Right(Operation.READ, ResourceType.TOPIC),),
)
