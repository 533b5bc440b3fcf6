"""DescribeLogDirs: the logs in this broker's log directories, their sizes, and the free space."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.storage import TopicPartition
from nilometer.storage.directories.log_manager import DirectoryDescription
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE):
        denied = ErrorCode.cluster_authorization_failed
        return request.respond(throttle_time_ms=0, error_code=denied, results=())
    wanted: Mapping[str, set[int]] | None = None
    if request.body.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.body.topics}
    results = tuple(
        _directory(services, request, found, wanted) for found in services.replicas.logs.describe()
    )
    return request.respond(throttle_time_ms=0, error_code=ErrorCode.none, results=results)


def _directory(
    services: Services, request: Request, found: DirectoryDescription, wanted: Mapping[str, set[int]] | None
) -> Message:
    topics: dict[str, list[tuple[TopicPartition, int]]] = {}
    for name, size in found.sizes.items():
        if wanted is None or name.partition in wanted.get(name.topic, ()):
            topics.setdefault(name.topic, []).append((name, size))

    def describe(sized: tuple[TopicPartition, int]) -> Message:
        name, size = sized
        return request.make(
            "DescribeLogDirsPartition",
            partition_index=name.partition,
            partition_size=size,
            offset_lag=services.replicas.offset_lag(name),
            is_future_key=False,
        )

    return request.make(
        "DescribeLogDirsResult",
        error_code=ErrorCode.none if found.failure is None else ErrorCode.kafka_storage_error,
        log_dir=found.path,
        topics=tuple(
            request.make("DescribeLogDirsTopic", name=name, partitions=LazySequence(describe, partitions))
            for name, partitions in sorted(topics.items())
        ),
        total_bytes=found.total_bytes,
        usable_bytes=found.usable_bytes,
        is_cordoned=False,
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_LOG_DIRS,
    versions=(1, 5),
    handle=handle,
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
