"""DeleteRecords: move a partition's log start offset up; -1 means up to the high watermark.

An offset above the high watermark is OFFSET_OUT_OF_RANGE. Answered with the partition's low watermark.
"""

from __future__ import annotations

from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.topic import INTERNAL_TOPICS
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError


def handle(services: Services, request: Request) -> Reply:
    topics: list[object] = []
    for topic in request.body.topics:
        partitions: list[object] = []
        for asked in {part.partition_index: part for part in topic.partitions}.values():
            error, low_watermark = ErrorCode.none, -1
            try:
                if topic.name in INTERNAL_TOPICS:
                    raise KafkaError(
                        ErrorCode.invalid_topic_exception, f"Cannot delete records of {topic.name}"
                    )
                partition = services.replicas.partition(topic.name, asked.partition_index)
                low_watermark = partition.delete_records(asked.offset)
            except KafkaError as problem:
                error = problem.code
            partitions.append(
                request.make(
                    "DeleteRecordsPartitionResult",
                    partition_index=asked.partition_index,
                    low_watermark=low_watermark,
                    error_code=error,
                )
            )
        topics.append(request.make("DeleteRecordsTopicResult", name=topic.name, partitions=tuple(partitions)))
    return request.respond(throttle_time_ms=0, topics=tuple(topics))


API = ApiSpec(key=ApiKey.DELETE_RECORDS, versions=(0, 2), handle=handle)
