"""The settings of topics, brokers and groups: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and
ListConfigResources.

Each resource is decided for itself. Settings of topics and groups need rights on the resource, those of
brokers on the cluster. The log levels of a broker are settings, too, of the resource BROKER_LOGGER (KIP-412).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.topic_configs import (
    ConfigSource,
    EffectiveConfig,
    broker_config,
    group_config,
    topic_config,
)
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION, BrokerConfig
from nilometer.broker.settings.logging_settings import LEVELS, ROOT
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import CLUSTER_NAME, Operation, ResourceType
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.decision import OK, Decision, Outcome
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.cluster.states import why_invalid_name
from nilometer.groups import settings
from nilometer.runtime import Loggers
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    loggers: Loggers
    listings: Listings
    metadata: MetadataLog
    rights: Rights
    controller_requests: ControllerRequests


# What has settings, by the numbers that Kafka gives to the types of resources.

RESOURCE_TOPIC = 2
RESOURCE_BROKER = 4
RESOURCE_BROKER_LOGGER = 8
RESOURCE_CLIENT_METRICS = 16
RESOURCE_GROUP = 32


# Rights on settings: those of topics and groups by the resource, those of brokers by the cluster.

DENIED = {
    ResourceType.TOPIC: (ErrorCode.topic_authorization_failed, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.group_authorization_failed, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.cluster_authorization_failed, "Cluster authorization failed."),
}
"""By the type of resource that the right is on."""


def rights_of(operation: Operation) -> tuple[Right, ...]:
    return tuple(Right(operation, kind) for kind in DENIED)


def check_configs(parts: Parts, request: Request, operation: Operation, kind: int, name: str) -> None:
    """Raise KafkaError unless ``operation`` is allowed on the settings of the resource.

    ``kind``: the type of the resource, in the numbers of requests about settings.
    """
    of = {RESOURCE_TOPIC: ResourceType.TOPIC, RESOURCE_GROUP: ResourceType.GROUP}.get(
        kind, ResourceType.CLUSTER
    )
    resource = CLUSTER_NAME if of is ResourceType.CLUSTER else name
    if not parts.rights.access(request).allows(operation, of, resource):
        raise KafkaError(*DENIED[of])


def denied_alterations(parts: Parts, request: Request) -> dict[tuple[int, str], Outcome]:
    """Return the errors of the resources of a request whose settings the client may not alter."""
    denied: dict[tuple[int, str], Outcome] = {}
    for resource in request.body.resources:
        key = resource.resource_type, resource.resource_name
        try:
            check_configs(parts, request, Operation.ALTER_CONFIGS, *key)
        except KafkaError as error:
            denied[key] = Outcome(error.code, error.message)
    return denied


# ListConfigResources: what has settings (KIP-1142).
#
# Version 0 lists subscriptions of client metrics, of which there are none; 1 lists resources of the types
# that are asked for, or of all. Of the groups, those with settings of their own are listed.

_LIST_TYPES = (
    RESOURCE_GROUP,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_BROKER,
    RESOURCE_TOPIC,
)


def handle_list(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE_CONFIGS):
        denied = ErrorCode.cluster_authorization_failed
        return request.respond(error_code=denied, config_resources=())
    asked: tuple[int, ...] = request.field("resource_types", (RESOURCE_CLIENT_METRICS,))
    if not set(asked) <= set(_LIST_TYPES):
        return request.respond(error_code=ErrorCode.unsupported_version, config_resources=())
    return parts.listings.answer(request, partial(_list, parts, frozenset(asked or _LIST_TYPES)))


async def _list(parts: Parts, kinds: Collection[int], request: Request, work: LongWork) -> Response:
    listed: list[tuple[int, str]] = []
    for kind in _LIST_TYPES:
        for name in _names(parts.metadata.image, kind) if kind in kinds else ():
            listed.append((kind, name))
            await work.step(1)
    return request.respond(config_resources=LazySequence(partial(_config_resource, request), listed))


def _config_resource(request: Request, listed: tuple[int, str]) -> Message:
    kind, name = listed
    return request.make("ConfigResource", resource_name=name, resource_type=kind)


def _names(image: ClusterImage, kind: int) -> list[str]:
    if kind == RESOURCE_TOPIC:
        return [topic.name for topic in image.topics()]
    if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER):
        return [str(broker.id) for broker in image.live_brokers()]
    if kind == RESOURCE_GROUP:
        return [each.name for each in image.config_resources() if each.type is ConfigResourceType.GROUP]
    return []


# What AlterConfigs and IncrementalAlterConfigs share: which resources may be altered, and the answer.

_TYPES = {
    RESOURCE_TOPIC: ConfigResourceType.TOPIC,
    RESOURCE_BROKER: ConfigResourceType.BROKER,
    RESOURCE_GROUP: ConfigResourceType.GROUP,
}

Key = tuple[int, str]
"""Resource type (as on the wire) and name."""
Outcomes = dict[Key, Outcome]
Read = Callable[[ClusterImage, ConfigResource, Sequence[Message]], list[ConfigAlteration]]
"""Decodes what a request alters in one resource. Raises KafkaError."""


def alter(parts: Parts, request: Request, read: Read) -> asyncio.Future[Response]:
    def decide(image: ClusterImage) -> Decision[Outcomes]:
        outcomes: Outcomes = {}
        asked: list[tuple[Key, AlterResource]] = []
        for resource in request.body.resources:
            key = resource.resource_type, resource.resource_name
            try:
                altered = _altered(*key)
                asked.append((key, AlterResource(altered, read(image, altered, resource.configs))))
            except KafkaError as error:
                outcomes[key] = Outcome(error.code, error.message)
        denied = denied_alterations(parts, request)
        decision = decide_alter_configs(
            image,
            [resource for _, resource in asked],
            definitions=definitions_of(parts),
            denied={resource.resource: denied[key] for key, resource in asked if key in denied},
            validate_only=request.body.validate_only,
        )
        for (key, _), (_, outcome) in zip(asked, decision.reply, strict=True):
            outcomes[key] = outcome
        return Decision(decision.units, outcomes)

    return parts.controller_requests.decide(request, decide, respond, refuse)


def definitions_of(parts: Parts) -> ConfigDefinitions:
    return ConfigDefinitions(
        topic=TOPIC_CONFIG,
        broker=BROKER_CONFIG_DEFINITION,
        group=settings.definition_of(parts.config.groups),
        inherited_of=parts.config.topic_defaults,
    )


def _altered(resource_type: int, name: str) -> ConfigResource:
    """Return the resource, whose settings the metadata log must be able to keep: topic, broker(s) or group.

    Raises KafkaError for another type.
    """
    kind = _TYPES.get(resource_type)
    if resource_type == RESOURCE_CLIENT_METRICS:
        raise KafkaError(
            ErrorCode.invalid_request,
            "Client metrics are not collected: a subscription would have no effect, so it cannot be altered.",
        )
    if kind is None:
        raise KafkaError(ErrorCode.invalid_request, f"Resource type {resource_type} cannot be altered.")
    return ConfigResource(kind, name)


def respond(request: Request, outcomes: Outcomes) -> Response:
    return request.respond(
        responses=tuple(
            request.make(
                "AlterConfigsResourceResponse",
                error_code=outcome.error,
                error_message=outcome.message,
                resource_type=kind,
                resource_name=name,
            )
            for (kind, name), outcome in outcomes.items()
        )
    )


def refuse(request: Request, error: ErrorCode, message: str) -> Response:
    outcome = Outcome(error, message)
    resources = {(item.resource_type, item.resource_name): outcome for item in request.body.resources}
    return respond(request, resources)


# The log levels of this broker's loggers, by Kafka's names, as tools show and change them while it runs.
#
# A changed level is in force at once and until the process ends; it is kept nowhere, as in Kafka. Loggers are
# named after the packages (``nilometer.broker.replicas``); ``root`` is the one above all.


def logger_levels(loggers: Loggers) -> dict[str, str]:
    """Return the effective level of each logger by the logger's name, sorted by name."""
    return {name: _level_name(level) for name, level in sorted(loggers.levels().items())}


def check_level(loggers: Loggers, name: str, level: str | None) -> None:
    """Raise KafkaError if the level of the logger ``name`` cannot be set to ``level`` (None: be removed)."""
    if name not in loggers.levels():
        raise KafkaError(ErrorCode.invalid_config, f"Logger {name} does not exist!")
    if level is None:
        if name == ROOT:
            raise KafkaError(
                ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed"
            )
    elif level not in LEVELS:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def set_level(loggers: Loggers, name: str, level: str | None) -> None:
    """Set the level of a logger; :func:`check_level` must have accepted it. With None, the logger gets the
    level of its parent."""
    loggers.set_level(name, logging.NOTSET if level is None else LEVELS[level])


def _level_name(level: int) -> str:
    """Return the nearest of Kafka's levels that is not above ``level``."""
    return next((name for name, number in LEVELS.items() if number <= level), "TRACE")


# IncrementalAlterConfigs of BROKER_LOGGER resources (KIP-412): log levels of this broker, while it runs.


def names_loggers(request: Request) -> bool:
    return any(each.resource_type == RESOURCE_BROKER_LOGGER for each in request.body.resources)


def alter_loggers(parts: Parts, request: Request) -> Response:
    """Change the log levels of this broker's loggers: of each resource either all, or none if one is invalid.

    Resources of other types get INVALID_REQUEST: the controller alters them, in a separate request.
    """
    outcomes: Outcomes = denied_alterations(parts, request)
    for resource in request.body.resources:
        if (resource.resource_type, resource.resource_name) in outcomes:
            continue
        try:
            levels = _levels(parts, resource)
            if not request.body.validate_only:
                for name, level in levels.items():
                    set_level(parts.loggers, name, level)
                parts.rights.audit_own_change(request, levels=levels)
            outcome = OK
        except KafkaError as error:
            outcome = Outcome(error.code, error.message)
        outcomes[resource.resource_type, resource.resource_name] = outcome
    return respond(request, outcomes)


def _levels(parts: Parts, resource: Message) -> dict[str, str | None]:
    """Return the requested levels by logger name; None removes the logger's level.

    Raises KafkaError if one is invalid.
    """
    if resource.resource_type != RESOURCE_BROKER_LOGGER:
        raise KafkaError(
            ErrorCode.invalid_request, "The settings of loggers must be altered in a separate request."
        )
    check_names_this_broker(parts, resource.resource_name)
    times = Counter(config.name for config in resource.configs)
    levels: dict[str, str | None] = {}
    for config in resource.configs:
        if times[config.name] > 1:
            raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys")
        level = _level(config)
        check_level(parts.loggers, config.name, level)
        levels[config.name] = level
    return levels


def check_names_this_broker(parts: Parts, name: str) -> None:
    """Raise KafkaError (INVALID_REQUEST) unless ``name`` is the id of this broker."""
    if not name.removeprefix("-").isdecimal():
        raise KafkaError(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}")
    if int(name) != parts.config.node_id:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {parts.config.node_id} but received {name}",
        )


def _level(config: Message) -> str | None:
    match config.config_operation:
        case ConfigOperation.DELETE:
            return None
        case ConfigOperation.SET if config.value is not None:
            return str(config.value)
        case ConfigOperation.SET:
            why = f"Null value not supported for : {config.name}"
        case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
            operation = ConfigOperation(config.config_operation).name
            why = f"{operation} operation is not allowed for the BROKER_LOGGER resource"
        case _:
            why = f"There is no config operation {config.config_operation}."
    raise KafkaError(ErrorCode.invalid_request, why)


# DescribeConfigs: the settings in force for topics and brokers, their sources, and their documentation.
#
# Also the log levels of this broker, and the settings of a consumer group (KIP-848): its own, else the
# broker's. Client metrics have no subscription.

UNKNOWN_TYPE = 0


def handle_describe(parts: Parts, request: Request) -> Response:
    results = tuple(_resource(parts, request, resource) for resource in request.body.resources)
    return request.respond(results=results)


def _resource(parts: Parts, request: Request, resource: Message) -> Message:
    code, message, configs = ErrorCode.none, None, tuple[Message, ...]()
    try:
        kind, name = resource.resource_type, resource.resource_name
        check_configs(parts, request, Operation.DESCRIBE_CONFIGS, kind, name)
        configs = _configs(parts, request, resource)
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


def _configs(parts: Parts, request: Request, resource: Message) -> tuple[Message, ...]:
    """Return the settings of the resource that are asked for. Raises KafkaError."""
    kind, name = resource.resource_type, resource.resource_name
    wanted: Sequence[str] | None = resource.configuration_keys
    if kind == RESOURCE_BROKER_LOGGER:
        check_names_this_broker(parts, name)
        levels = logger_levels(parts.loggers)
        return tuple(
            _level_describe(request, each, levels[each]) for each in levels if not wanted or each in wanted
        )
    entries = _entries(parts, kind, name)
    return tuple(_config(request, each, kind) for each in entries if not wanted or each.key.name in wanted)


def _entries(parts: Parts, kind: int, name: str) -> list[EffectiveConfig]:
    """Return the settings in force for the resource. Raises KafkaError for a resource not known here.

    ``kind``: the resource type. ``name``: the topic's or the group's name, or this broker's id; an empty one
    means the defaults of all brokers.
    """
    if kind == RESOURCE_TOPIC:
        if (error := why_invalid_name(name)) is not None:
            raise KafkaError(ErrorCode.invalid_topic_exception, error)
        if parts.metadata.image.topic(name) is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"There is no topic {name}.")
        return topic_config(parts.metadata.image, parts.config, name)
    if kind == RESOURCE_BROKER:
        if name not in ("", str(parts.config.node_id)):
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Send this request to broker {name}; this is broker {parts.config.node_id}.",
            )
        return broker_config(parts.metadata.image, parts.config, name)
    if kind == RESOURCE_GROUP and name:
        return group_config(parts.metadata.image, parts.config, name)
    if kind == RESOURCE_CLIENT_METRICS and name:
        return []
    if kind in (RESOURCE_GROUP, RESOURCE_CLIENT_METRICS):
        raise KafkaError(ErrorCode.invalid_request, "The name must not be empty.")
    raise KafkaError(
        ErrorCode.invalid_request, f"Resource type {kind} is not known; use 2 (topic) or 4 (broker)."
    )


def _level_describe(request: Request, name: str, level: str) -> Message:
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


# AlterConfigs: replace all settings of topics and brokers. What is not named goes back to its default.
#
# The older form of IncrementalAlterConfigs, for clients from before it.


def handle_alter(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return alter(parts, request, _replacement)


def _replacement(
    image: ClusterImage, resource: ConfigResource, configs: Sequence[Message]
) -> list[ConfigAlteration]:
    given = {config.name for config in configs}
    removed = [key for key in image.config(*resource) if key not in given]
    return [
        *(ConfigAlteration(config.name, ConfigOperation.SET, config.value) for config in configs),
        *(ConfigAlteration(key, ConfigOperation.DELETE) for key in removed),
    ]


# IncrementalAlterConfigs (KIP-339): set, delete, append to and subtract from settings of topics and
# brokers; and log levels of this broker (KIP-412).


def handle_incremental_alter(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if names_loggers(request):
        return alter_loggers(parts, request)
    return alter(parts, request, _alterations)


def _alterations(
    image: ClusterImage, resource: ConfigResource, configs: Sequence[Message]
) -> list[ConfigAlteration]:
    """Raises KafkaError for an invalid operation."""
    alterations: list[ConfigAlteration] = []
    for config in configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"There is no config operation {config.config_operation} ({config.name} of {resource.name}): "
                "it is 0 (SET), 1 (DELETE), 2 (APPEND) or 3 (SUBTRACT).",
            ) from None
        alterations.append(ConfigAlteration(config.name, operation, config.value))
    return alterations


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.LIST_CONFIG_RESOURCES,
            versions=(0, 1),
            handle=partial(handle_list, parts),
            rights=(Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_CONFIGS,
            versions=(1, 4),
            handle=partial(handle_describe, parts),
            divisions=(
                Division(("resources",), ("results",), repeated=Repeated.AT_MOST_TWICE, elements_max=4),
            ),
            rights=rights_of(Operation.DESCRIBE_CONFIGS),
        ),
        ApiSpec(
            key=ApiKey.ALTER_CONFIGS,
            versions=(0, 2),
            handle=partial(handle_alter, parts),
            forwardable=True,
            divisions=(
                Division(
                    ("resources",),
                    ("responses",),
                    repeated=Repeated.TOGETHER,
                    key=("resource_type", "resource_name"),
                ),
            ),
            rights=rights_of(Operation.ALTER_CONFIGS),
        ),
        ApiSpec(
            key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
            versions=(0, 1),
            handle=partial(handle_incremental_alter, parts),
            forwardable=True,
            divisions=(
                Division(
                    ("resources",),
                    ("responses",),
                    repeated=Repeated.TOGETHER,
                    key=("resource_type", "resource_name"),
                ),
            ),
            rights=rights_of(Operation.ALTER_CONFIGS),
        ),
    )
