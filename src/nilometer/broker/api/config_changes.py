"""What AlterConfigs and IncrementalAlterConfigs share: which resources may be altered, and the answer."""

from __future__ import annotations

from nilometer.broker.api.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION
from nilometer.cluster.controller.config_rules import ConfigDefinitions
from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.records import ConfigResourceType
from nilometer.cluster.topic import why_invalid_name
from nilometer.groups import group_settings
from nilometer.storage.log_config import TOPIC_CONFIG
from nilometer.wire.errors import ErrorCode, KafkaError

_TYPES = {
    RESOURCE_TOPIC: ConfigResourceType.TOPIC,
    RESOURCE_BROKER: ConfigResourceType.BROKER,
    RESOURCE_GROUP: ConfigResourceType.GROUP,
}

Outcomes = dict[tuple[int, str], Outcome]
"""By resource type (as on the wire) and name."""


def definitions_of(services: Services) -> ConfigDefinitions:
    return ConfigDefinitions(
        topic=TOPIC_CONFIG,
        broker=BROKER_CONFIG_DEFINITION,
        group=group_settings.definition_of(services.config.groups),
        inherited_of=services.config.topic_defaults,
    )


def check_resource(resource_type: int, name: str) -> ConfigResource:
    """Return the resource, whose settings the metadata log must be able to keep: topic, broker(s) or group.

    Raises KafkaError for another type, or for an invalid topic name.
    """
    kind = _TYPES.get(resource_type)
    if resource_type == RESOURCE_CLIENT_METRICS:
        raise KafkaError(
            ErrorCode.invalid_request,
            "Client metrics are not collected: a subscription would have no effect, so it cannot be altered.",
        )
    if kind is None:
        raise KafkaError(ErrorCode.invalid_request, f"Resource type {resource_type} cannot be altered.")
    if kind is ConfigResourceType.TOPIC and (error := why_invalid_name(name)) is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, error)
    return ConfigResource(kind, name)


def respond(services: Services, request: Request, outcomes: Outcomes) -> Reply:
    return request.respond(
        throttle_time_ms=0,
        responses=tuple(
            request.make(
                "AlterConfigsResourceResponse",
                error_code=outcome.error,
                error_message=outcome.message,
                resource_type=kind,
                resource_name=name,
            )
            for (kind, name), outcome in outcomes.items()
        ),
    )


def refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    outcome = Outcome(error, message)
    resources = {(item.resource_type, item.resource_name): outcome for item in request.body.resources}
    return respond(services, request, resources)
