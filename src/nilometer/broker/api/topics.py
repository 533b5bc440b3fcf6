"""Topics come and go: CreateTopics, CreatePartitions, DeleteTopics, and topics that are created because a
client requested them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from uuid import UUID

import msgspec

from nilometer.broker.api.access import TOPIC_DENIED, Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.topic_configs import EffectiveConfig, topic_config
from nilometer.broker.authorizer import Access
from nilometer.broker.control.controller_link import ControllerLink, RequestingClient
from nilometer.broker.control.internal_topics import new_internal_topic
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Outcome, Steps
from nilometer.cluster.controller.topics import (
    CreatedTopic,
    MorePartitions,
    NewTopic,
    TopicDefaults,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.coordination.store import CoordinationError
from nilometer.identifiers import topic_id_of, uuid_from_text
from nilometer.runtime import Entropy, Runtime
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    runtime: Runtime
    metadata: MetadataLog
    rights: Rights
    controller_requests: ControllerRequests


# CreateTopics. Versions: 5 returns the new topic's configuration and counts; 7 its id.


def handle_create(parts: Parts, request: Request) -> asyncio.Future[Response]:
    topics = [_new_topic_create(topic) for topic in request.body.topics]
    validate_only = request.field("validate_only", False)
    quota = parts.controller_requests.mutation_quota(request, strict_from=6)

    def decide(image: ClusterImage) -> Steps[tuple[CreatedTopic, ...]]:
        creatable = _creatable(parts, request, topics)
        decision = yield from decide_create_topics.steps(
            image,
            [topic for topic in topics if topic.name in creatable],
            config_definition=TOPIC_CONFIG,
            chance=parts.runtime.entropy,
            defaults=_defaults(parts.config),
            inherited_of=parts.config.topic_defaults,
            validate_only=validate_only,
            take_quota=quota.take,
        )
        denied = Outcome(ErrorCode.topic_authorization_failed, "Authorization failed.")
        refused = (
            CreatedTopic(name=each.name, outcome=denied) for each in topics if each.name not in creatable
        )
        return Decision(decision.units, (*decision.reply, *refused))

    return parts.controller_requests.decide(
        request, decide, partial(_respond_create, parts), _refuse_create, quota=quota
    )


def _creatable(parts: Parts, request: Request, topics: Sequence[NewTopic]) -> set[str]:
    access, names = parts.rights.access(request), [topic.name for topic in topics]
    if access.on_cluster(Operation.CREATE, report=False):
        return set(names)
    return access.allowed(Operation.CREATE, ResourceType.TOPIC, names)


def _new_topic_create(topic: Message) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(item.partition_index, item.broker_ids) for item in topic.assignments],
        configs={config.name: config.value for config in topic.configs},
    )


def _respond_create(parts: Parts, request: Request, created: tuple[CreatedTopic, ...]) -> Response:
    by_name = {topic.name: topic for topic in created}  # a topic named twice is rejected, with one result
    results = LazySequence(partial(_result, parts, request), list(by_name.values()))
    return request.respond(topics=results)


def _refuse_create(request: Request, error: ErrorCode, message: str) -> Response:
    results = tuple(
        request.make(
            "CreatableTopicResult", name=topic.name, error_code=error, error_message=message, configs=()
        )
        for topic in request.body.topics
    )
    return request.respond(topics=results)


def _result(parts: Parts, request: Request, topic: CreatedTopic) -> Message:
    configs: tuple[Message, ...] = ()
    if topic.outcome.ok and not _may_describe_configs(parts, request, topic.name):
        return _result_without_configs(request, topic)
    if topic.outcome.ok and request.version >= 5:
        configs = tuple(
            _config(request, entry)
            for entry in topic_config(parts.metadata.image, parts.config, topic.name, topic.configs)
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


def _may_describe_configs(parts: Parts, request: Request, name: str) -> bool:
    kind = ResourceType.TOPIC
    return parts.rights.access(request).allows(Operation.DESCRIBE_CONFIGS, kind, name, report=False)


def _result_without_configs(request: Request, topic: CreatedTopic) -> Message:
    return request.make(
        "CreatableTopicResult",
        name=topic.name,
        topic_id=uuid_from_text(topic.topic_id) if topic.topic_id else None,
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


# CreatePartitions: add partitions to topics; their number never falls.

Outcomes = tuple[tuple[str, Outcome], ...]


def handle_create_partitions(parts: Parts, request: Request) -> asyncio.Future[Response]:
    wanted = [
        MorePartitions(
            name=topic.name,
            count=topic.count,
            assignments=None
            if topic.assignments is None
            else [item.broker_ids for item in topic.assignments],
        )
        for topic in request.body.topics
    ]

    quota = parts.controller_requests.mutation_quota(request, strict_from=3)

    def decide(image: ClusterImage) -> Steps[Outcomes]:
        access, names = parts.rights.access(request), [topic.name for topic in wanted]
        alterable = access.allowed(Operation.ALTER, ResourceType.TOPIC, names)
        allowed = [topic for topic in wanted if topic.name in alterable]
        decision = yield from decide_create_partitions.steps(
            image,
            allowed,
            chance=parts.runtime.entropy,
            validate_only=request.body.validate_only,
            take_quota=quota.take,
        )
        denied = Outcome(ErrorCode.topic_authorization_failed, TOPIC_DENIED)
        refused = ((name, denied) for name in names if name not in alterable)
        return Decision(decision.units, (*decision.reply, *refused))

    return parts.controller_requests.decide(
        request, decide, _respond_create_partitions, _refuse_create_partitions, quota=quota
    )


def _respond_create_partitions(request: Request, outcomes: Outcomes) -> Response:
    results = tuple(
        request.make(
            "CreatePartitionsTopicResult", name=name, error_code=outcome.error, error_message=outcome.message
        )
        for name, outcome in dict(outcomes).items()  # a topic named twice is rejected, with one result
    )
    return request.respond(results=results)


def _refuse_create_partitions(request: Request, error: ErrorCode, message: str) -> Response:
    outcome = Outcome(error, message)
    return _respond_create_partitions(request, tuple((topic.name, outcome) for topic in request.body.topics))


# DeleteTopics, by name or (version 6) by id. The log folders are renamed at once, and removed after
# ``file.delete.delay.ms``.


class _Asked(msgspec.Struct, frozen=True):
    name: str | None
    topic_id: UUID | None


class _Result(msgspec.Struct, frozen=True):
    name: str | None
    topic_id: UUID | None
    outcome: Outcome


def handle_delete(parts: Parts, request: Request) -> asyncio.Future[Response]:
    asked = _asked(request)
    quota = parts.controller_requests.mutation_quota(request, strict_from=5)

    def decide(image: ClusterImage) -> Decision[tuple[_Result, ...]]:
        if not parts.config.boolean("delete.topic.enable"):
            disabled = Outcome(ErrorCode.topic_deletion_disabled, "delete.topic.enable is false")
            return Decision((), tuple(_Result(topic.name, topic.topic_id, disabled) for topic in asked))
        times, access = Counter(asked), parts.rights.access(request)
        found = ((topic, _resolve(image, topic, times[topic])) for topic in times)
        results = {index: _authorized(access, *one) for index, one in enumerate(found)}
        known = {
            index: topic_id_of(found.topic_id)
            for index, found in results.items()
            if found.outcome.ok and found.topic_id
        }
        decision = decide_delete_topics(image, list(known.values()), quota.take)
        for index, (_, outcome) in zip(known, decision.reply, strict=True):
            results[index] = _Result(results[index].name, results[index].topic_id, outcome)
        return Decision(decision.units, tuple(results.values()))

    return parts.controller_requests.decide(request, decide, _respond_delete, _refuse_delete, quota=quota)


def _asked(request: Request) -> list[_Asked]:
    if request.version >= 6:
        return [_Asked(topic.name, topic.topic_id) for topic in request.body.topics]
    return [_Asked(name, None) for name in request.body.topic_names]


def _resolve(image: ClusterImage, asked: _Asked, times: int) -> _Result:
    if (why := _why_invalid(asked, times)) is not None:
        return _Result(asked.name, asked.topic_id, Outcome(ErrorCode.invalid_request, why))
    if asked.name is not None:
        topic, unknown = image.topic(asked.name), ErrorCode.unknown_topic_or_partition
    else:
        topic = image.topic_by_uuid(asked.topic_id) if asked.topic_id else None
        unknown = ErrorCode.unknown_topic_id
    if topic is None:
        return _Result(asked.name, asked.topic_id, Outcome(unknown, "This server does not host this topic."))
    return _Result(topic.name, topic.uuid, Outcome())


def _authorized(access: Access, asked: _Asked, found: _Result) -> _Result:
    """Return ``found``, or the error for a client that may not delete the topic.

    A topic that it may not describe is, by name, as one that does not exist, and by id has no name.
    """
    if access.is_full or found.outcome.error is ErrorCode.invalid_request or found.name is None:
        return found
    if access.on_cluster(Operation.DELETE, report=False):
        return found
    describes = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, found.name)
    deletes = access.allows(Operation.DELETE, ResourceType.TOPIC, found.name)
    if deletes and (describes or asked.name is None):
        return found
    if describes and not found.outcome.ok:
        return found
    denied = Outcome(ErrorCode.topic_authorization_failed, TOPIC_DENIED)
    if asked.name is not None:
        return _Result(asked.name, None, denied)
    return _Result(found.name if describes else None, asked.topic_id, denied)


def _why_invalid(asked: _Asked, times: int) -> str | None:
    if times > 1:
        return "Duplicate topic."
    if asked.name is not None and asked.topic_id is not None:
        return "You may not specify both topic name and topic id."
    if asked.name is None and asked.topic_id is None:
        return "Neither topic name nor id were specified."
    return None


def _respond_delete(request: Request, results: tuple[_Result, ...]) -> Response:
    return request.respond(responses=tuple(_response(request, result) for result in results))


def _refuse_delete(request: Request, error: ErrorCode, message: str) -> Response:
    outcome = Outcome(error, message)
    return _respond_delete(
        request, tuple(_Result(topic.name, topic.topic_id, outcome) for topic in _asked(request))
    )


def _response(request: Request, result: _Result) -> Message:
    return request.make(
        "DeletableTopicResult",
        name=result.name,
        topic_id=result.topic_id,
        error_code=result.outcome.error,
        error_message=result.outcome.message,
    )


# Creates topics that a client requested and that do not exist (``auto.create.topics.enable``).
#
# An internal topic is created with its own settings. One that brokers do not need is not created: as an
# ordinary topic it would have the wrong settings.

_CREATED_OR_EXISTS = (ErrorCode.none, ErrorCode.topic_already_exists)


def _defaults(config: BrokerConfig) -> TopicDefaults:
    """Return the partition count and replication factor for topics created without them."""
    return TopicDefaults(
        num_partitions=config.integer("num.partitions"),
        replication_factor=config.integer("default.replication.factor"),
    )


class MissingTopics:
    """Creates topics that clients ask for in Metadata requests."""

    def __init__(
        self, config: BrokerConfig, chance: Entropy, metadata: MetadataLog, link: ControllerLink
    ) -> None:
        self._config = config
        self._chance = chance
        self._metadata = metadata
        self._link = link

    async def create(self, names: Sequence[str], client: RequestingClient) -> dict[str, ErrorCode]:
        """Create topics with the broker's defaults for ``client``; return the errors of those that could not
        be created.

        If there are too few brokers for a topic's replicas, or the client's quota is used up, its clients get
        a retriable error and try again.
        """
        unique = list(dict.fromkeys(names))
        topics = [self._new_topic(name) for name in unique]
        wanted = [topic for topic in topics if topic is not None]
        if not wanted:
            return {}
        try:
            errors = await self._link.create_topics(wanted, self._chance, client)
        except KafkaError as error:
            return dict.fromkeys(unique, error.code)
        except CoordinationError:
            return dict.fromkeys(unique, ErrorCode.unknown_topic_or_partition)
        return {
            name: ErrorCode.unknown_topic_or_partition
            if error is ErrorCode.throttling_quota_exceeded
            else error
            for name, error in errors.items()
            if error not in _CREATED_OR_EXISTS
        }

    def _new_topic(self, name: str) -> NewTopic | None:
        if name in INTERNAL_TOPICS:
            return new_internal_topic(self._config, self._metadata.image, name)
        defaults = _defaults(self._config)
        return NewTopic(
            name=name,
            num_partitions=defaults.num_partitions,
            replication_factor=defaults.replication_factor,
        )


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.CREATE_TOPICS,
            versions=(2, 7),
            handle=partial(handle_create, parts),
            forwardable=True,
            divisions=(Division(("topics",), ("topics",), repeated=Repeated.TOGETHER, key=("name",)),),
            rights=(
                Right(Operation.CREATE, ResourceType.CLUSTER),
                Right(Operation.CREATE, ResourceType.TOPIC),
                Right(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.CREATE_PARTITIONS,
            versions=(0, 3),
            handle=partial(handle_create_partitions, parts),
            forwardable=True,
            divisions=(Division(("topics",), ("results",), repeated=Repeated.TOGETHER, key=("name",)),),
            rights=(Right(Operation.ALTER, ResourceType.TOPIC),),
        ),
        ApiSpec(
            key=ApiKey.DELETE_TOPICS,
            versions=(1, 6),
            handle=partial(handle_delete, parts),
            forwardable=True,
            divisions=(
                Division(("topics",), ("responses",), repeated=Repeated.TOGETHER),
                Division(("topic_names",), ("responses",), repeated=Repeated.TOGETHER),
            ),
            rights=(
                Right(Operation.DELETE, ResourceType.CLUSTER),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
                Right(Operation.DELETE, ResourceType.TOPIC),
            ),
        ),
    )
