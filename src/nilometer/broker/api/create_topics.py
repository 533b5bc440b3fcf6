"""CreateTopics. Versions: 5 returns the new topic's configuration and counts; 7 its id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.access import access_of
from nilometer.broker.api.controller_requests import mutation_quota, on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.topic_configs import EffectiveConfig, topic_config
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.controller.topics import CreatedTopic, NewTopic, decide_create_topics
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import uuid_from_text
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    topics = [_new_topic(topic) for topic in request.body.topics]
    validate_only = request.field("validate_only", False)
    quota = mutation_quota(services, request, strict_from=6)

    def decide(image: ClusterImage) -> Decision[tuple[CreatedTopic, ...]]:
        creatable = _creatable(services, request, topics)
        decision = decide_create_topics(
            image,
            [topic for topic in topics if topic.name in creatable],
            config_definition=TOPIC_CONFIG,
            chance=services.runtime.entropy,
            defaults=services.topic_defaults,
            inherited_of=services.config.topic_defaults,
            validate_only=validate_only,
            take_quota=quota.take,
        )
        denied = Outcome(ErrorCode.topic_authorization_failed, "Authorization failed.")
        refused = (
            CreatedTopic(name=each.name, outcome=denied) for each in topics if each.name not in creatable
        )
        return Decision(decision.units, (*decision.reply, *refused))

    return on_controller(services, request, decide, _respond, _refuse, quota=quota)


def _creatable(services: Services, request: Request, topics: Sequence[NewTopic]) -> set[str]:
    access, names = access_of(services, request), [topic.name for topic in topics]
    if access.on_cluster(Operation.CREATE, report=False):
        return set(names)
    return access.allowed(Operation.CREATE, ResourceType.TOPIC, names)


def _new_topic(topic: Message) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(item.partition_index, item.broker_ids) for item in topic.assignments],
        configs={config.name: config.value for config in topic.configs},
    )


def _respond(services: Services, request: Request, created: tuple[CreatedTopic, ...]) -> Reply:
    by_name = {topic.name: topic for topic in created}  # a topic named twice is rejected, with one result
    return request.respond(
        throttle_time_ms=0, topics=tuple(_result(services, request, topic) for topic in by_name.values())
    )


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    results = tuple(
        request.make(
            "CreatableTopicResult", name=topic.name, error_code=error, error_message=message, configs=()
        )
        for topic in request.body.topics
    )
    return request.respond(throttle_time_ms=0, topics=results)


def _result(services: Services, request: Request, topic: CreatedTopic) -> Message:
    configs: tuple[Message, ...] = ()
    if topic.outcome.ok and not _may_describe_configs(services, request, topic.name):
        return _result_without_configs(request, topic)
    if topic.outcome.ok and request.version >= 5:
        configs = tuple(
            _config(request, entry) for entry in topic_config(services, topic.name, topic.configs)
        )
    return request.make(
        "CreatableTopicResult",
        name=topic.name,
        topic_id=uuid_from_text(topic.topic_id) if topic.topic_id else None,
        error_code=topic.outcome.error,
        error_message=topic.outcome.message,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=configs,
    )


def _may_describe_configs(services: Services, request: Request, name: str) -> bool:
    kind = ResourceType.TOPIC
    return access_of(services, request).allows(Operation.DESCRIBE_CONFIGS, kind, name, report=False)


def _result_without_configs(request: Request, topic: CreatedTopic) -> Message:
    return request.make(
        "CreatableTopicResult",
        name=topic.name,
        topic_id=uuid_from_text(topic.topic_id) if topic.topic_id else None,
        error_code=ErrorCode.none,
        error_message=None,
        topic_config_error_code=ErrorCode.topic_authorization_failed,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )


def _config(request: Request, entry: EffectiveConfig) -> Message:
    return request.make(
        "CreatableTopicConfigs",
        name=entry.key.name,
        value=entry.text,
        read_only=False,
        config_source=int(entry.source),
        is_sensitive=entry.key.sensitive,
    )


API = ApiSpec(
    key=ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    handle=handle,
    forwardable=True,
    divisions=(Division(("topics",), ("topics",), repeated=Repeated.TOGETHER, key=("name",)),),
    rights=(
        Right(Operation.CREATE, ResourceType.CLUSTER),
        Right(Operation.CREATE, ResourceType.TOPIC),
        Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    ),
)
