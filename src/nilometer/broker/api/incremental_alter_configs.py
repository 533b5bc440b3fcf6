"""IncrementalAlterConfigs (KIP-339): set, delete, append to and subtract from settings of topics and
brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.describe_configs import RESOURCE_BROKER, RESOURCE_TOPIC
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.broker.settings.config import BROKER_CONFIG_DEFINITION
from nilometer.cluster.controller.config_rules import ConfigDefinitions
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.cluster.topic import why_invalid_name
from nilometer.storage.log_config import TOPIC_CONFIG
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

_TYPES = {RESOURCE_TOPIC: ConfigResourceType.TOPIC, RESOURCE_BROKER: ConfigResourceType.BROKER}

Outcomes = dict[tuple[int, str], Outcome]
"""The outcome of each resource, by resource type (as on the wire) and name."""


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    known, refused = _parse(request.body.resources)
    validate_only = request.body.validate_only

    definitions = ConfigDefinitions(
        topic=TOPIC_CONFIG, broker=BROKER_CONFIG_DEFINITION, inherited_of=services.config.topic_defaults
    )

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        decision = decide_alter_configs(
            image, [alter for _, alter in known], definitions=definitions, validate_only=validate_only
        )
        outcomes = dict(refused)
        for (key, _), (_, outcome) in zip(known, decision.reply, strict=True):
            outcomes[key] = outcome
        return Decision(decision.units, outcomes)

    return on_controller(services, request, decide, _respond, _refuse)


def _parse(resources: Sequence[Message]) -> tuple[list[tuple[tuple[int, str], AlterResource]], Outcomes]:
    known: list[tuple[tuple[int, str], AlterResource]] = []
    refused: Outcomes = {}
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        try:
            known.append((key, _alter_resource(resource)))
        except KafkaError as error:
            refused[key] = Outcome(error.code, error.message)
    return known, refused


def _alter_resource(resource: Message) -> AlterResource:
    kind = _TYPES.get(resource.resource_type)
    if kind is None:
        raise KafkaError(
            ErrorCode.invalid_request, f"Resource type {resource.resource_type} cannot be altered."
        )
    if kind is ConfigResourceType.TOPIC and (error := why_invalid_name(resource.resource_name)) is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, error)
    alterations: list[ConfigAlteration] = []
    for config in resource.configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_request, f"There is no config operation {config.config_operation}."
            ) from None
        alterations.append(ConfigAlteration(config.name, operation, config.value))
    return AlterResource(ConfigResource(kind, resource.resource_name), alterations)


def _respond(services: Services, request: Request, outcomes: Outcomes) -> Reply:
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


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    outcome = Outcome(error, message)
    return _respond(
        services,
        request,
        {(item.resource_type, item.resource_name): outcome for item in request.body.resources},
    )


API = ApiSpec(key=ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), handle=handle, forwardable=True)
