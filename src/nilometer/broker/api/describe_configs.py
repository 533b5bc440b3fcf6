"""DescribeConfigs: the settings in force for topics and brokers, their sources, and their documentation.

Also the log levels of this broker, and the settings of a consumer group (KIP-848): its own, else the
broker's. Client metrics have no subscription.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.broker.api.alter_loggers import check_names_this_broker
from nilometer.broker.api.config_access import check_configs, rights_of
from nilometer.broker.api.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from nilometer.broker.api.log_levels import logger_levels
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.api.topic_configs import (
    ConfigSource,
    EffectiveConfig,
    broker_config,
    group_config,
    topic_config,
)
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation
from nilometer.cluster.states import why_invalid_name
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message

UNKNOWN_TYPE = 0


def handle(services: Services, request: Request) -> Reply:
    results = tuple(_resource(services, request, resource) for resource in request.body.resources)
    return request.respond(throttle_time_ms=0, results=results)


def _resource(services: Services, request: Request, resource: Message) -> Message:
    code, message, configs = ErrorCode.none, None, tuple[Message, ...]()
    try:
        kind, name = resource.resource_type, resource.resource_name
        check_configs(services, request, Operation.DESCRIBE_CONFIGS, kind, name)
        configs = _configs(services, request, resource)
    except KafkaError as error:
        code, message = error.code, error.message
    return request.make(
        "DescribeConfigsResult",
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _configs(services: Services, request: Request, resource: Message) -> tuple[Message, ...]:
    """Return the settings of the resource that are asked for. Raises KafkaError."""
    kind, name = resource.resource_type, resource.resource_name
    wanted: Sequence[str] | None = resource.configuration_keys
    if kind == RESOURCE_BROKER_LOGGER:
        check_names_this_broker(services, name)
        levels = logger_levels()
        return tuple(_level(request, each, levels[each]) for each in levels if not wanted or each in wanted)
    entries = _entries(services, kind, name)
    return tuple(_config(request, each, kind) for each in entries if not wanted or each.key.name in wanted)


def _entries(services: Services, kind: int, name: str) -> list[EffectiveConfig]:
    """Return the settings in force for the resource. Raises KafkaError for a resource not known here.

    ``kind``: the resource type. ``name``: the topic's or the group's name, or this broker's id; an empty one
    means the defaults of all brokers.
    """
    if kind == RESOURCE_TOPIC:
        if (error := why_invalid_name(name)) is not None:
            raise KafkaError(ErrorCode.invalid_topic_exception, error)
        if services.image.topic(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name}.")
        return topic_config(services, name)
    if kind == RESOURCE_BROKER:
        if name not in ("", str(services.broker_id)):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Send this request to broker {name}; this is broker {services.broker_id}.",
            )
        return broker_config(services, name)
    if kind == RESOURCE_GROUP and name:
        return group_config(services, name)
    if kind == RESOURCE_CLIENT_METRICS and name:
        return []
    if kind in (RESOURCE_GROUP, RESOURCE_CLIENT_METRICS):
        raise KafkaError(ErrorCode.invalid_request, "The name must not be empty.")
    raise KafkaError(
        ErrorCode.invalid_request, f"Resource type {kind} is not known; use 2 (topic) or 4 (broker)."
    )


def _level(request: Request, name: str, level: str) -> Message:
    return request.make(
        "DescribeConfigsResourceResult",
        name=name,
        value=level,
        read_only=False,
        config_source=int(ConfigSource.DYNAMIC_BROKER_LOGGER),
        is_sensitive=False,
        synonyms=(),
        config_type=UNKNOWN_TYPE,
        documentation=None,
    )


def _config(request: Request, entry: EffectiveConfig, kind: int) -> Message:
    synonyms: tuple[Message, ...] = ()
    if request.field("include_synonyms", False):
        synonyms = tuple(
            request.make(
                "DescribeConfigsSynonym",
                name=item.name,
                value=None if entry.key.sensitive else item.text,
                source=int(item.source),
            )
            for item in entry.synonyms
        )
    documented = request.field("include_documentation", False)
    return request.make(
        "DescribeConfigsResourceResult",
        name=entry.key.name,
        value=None if entry.key.sensitive else entry.text,
        read_only=kind == RESOURCE_BROKER and not entry.key.dynamic,
        config_source=int(entry.source),
        is_sensitive=entry.key.sensitive,
        synonyms=synonyms,
        config_type=entry.key.kind.value,
        documentation=entry.key.doc if documented else None,
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_CONFIGS,
    versions=(1, 4),
    handle=handle,
    divisions=(Division(("resources",), ("results",), repeated=Repeated.AT_MOST_TWICE),),
    rights=rights_of(Operation.DESCRIBE_CONFIGS),
)
