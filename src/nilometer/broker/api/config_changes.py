"""What AlterConfigs and IncrementalAlterConfigs share: which resources may be altered, and the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nilometer.broker.api.config_access import denied_alterations
from nilometer.broker.api.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    decide_alter_configs,
)
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.groups import settings
from nilometer.storage.topic_config import TOPIC_CONFIG
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

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


def alter(services: Services, request: Request, read: Read) -> asyncio.Future[Reply]:
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
        denied = denied_alterations(services, request)
        decision = decide_alter_configs(
            image,
            [resource for _, resource in asked],
            definitions=definitions_of(services),
            denied={resource.resource: denied[key] for key, resource in asked if key in denied},
            validate_only=request.body.validate_only,
        )
        for (key, _), (_, outcome) in zip(asked, decision.reply, strict=True):
            outcomes[key] = outcome
        return Decision(decision.units, outcomes)

    return on_controller(services, request, decide, respond, refuse)


def definitions_of(services: Services) -> ConfigDefinitions:
    return ConfigDefinitions(
        topic=TOPIC_CONFIG,
        broker=BROKER_CONFIG_DEFINITION,
        group=settings.definition_of(services.config.groups),
        inherited_of=services.config.topic_defaults,
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
