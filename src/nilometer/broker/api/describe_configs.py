"""DescribeConfigs: the settings in force for topics and brokers, their sources, and their documentation."""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.broker.topic_configs import EffectiveConfig, broker_config, topic_config
from nilometer.cluster.topic import why_invalid_name
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

RESOURCE_TOPIC, RESOURCE_BROKER = 2, 4


def handle(services: Services, request: Request) -> Reply:
    results = tuple(_resource(services, request, resource) for resource in request.body.resources)
    return request.respond(throttle_time_ms=0, results=results)


def _resource(services: Services, request: Request, resource: Message) -> Message:
    code, message, entries = ErrorCode.none, None, list[EffectiveConfig]()
    try:
        entries = _entries(services, resource.resource_type, resource.resource_name)
    except KafkaError as error:
        code, message = error.code, error.message
    wanted: Sequence[str] | None = resource.configuration_keys
    return request.make(
        "DescribeConfigsResult",
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _config(request, entry, resource.resource_type)
            for entry in entries
            if not wanted or entry.key.name in wanted
        ),
    )


def _entries(services: Services, kind: int, name: str) -> list[EffectiveConfig]:
    """Return the settings in force for the resource. Raises KafkaError for a resource not known here.

    ``kind``: the resource type (``RESOURCE_TOPIC`` or ``RESOURCE_BROKER``). ``name``: the topic's name, or
    this broker's id; an empty one means the defaults of all brokers.
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
                ErrorCode.invalid_request, f"Ask broker {name} itself; this is broker {services.broker_id}."
            )
        return broker_config(services, name)
    raise KafkaError(
        ErrorCode.invalid_request, f"Resource type {kind} is not known; use 2 (topic) or 4 (broker)."
    )


def _config(request: Request, entry: EffectiveConfig, kind: int) -> Message:
    synonyms: tuple[Message, ...] = ()
    if request.field("include_synonyms", False):
        synonyms = tuple(
            request.make("DescribeConfigsSynonym", name=item.name, value=item.text, source=int(item.source))
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


API = ApiSpec(key=ApiKey.DESCRIBE_CONFIGS, versions=(1, 4), handle=handle)
