"""IncrementalAlterConfigs (KIP-339): set, delete, append to and subtract from settings of topics and
brokers; and log levels of this broker (KIP-412).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.alter_loggers import alter_loggers, names_loggers
from nilometer.broker.api.config_access import denied_alterations, rights_of
from nilometer.broker.api.config_changes import Outcomes, check_resource, definitions_of, refuse, respond
from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if names_loggers(request):
        return alter_loggers(services, request)
    known, refused = _parse(request.body.resources)
    validate_only = request.body.validate_only
    definitions = definitions_of(services)

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        denied = denied_alterations(services, request)
        allowed = [(key, alter) for key, alter in known if key not in denied]
        decision = decide_alter_configs(
            image, [alter for _, alter in allowed], definitions=definitions, validate_only=validate_only
        )
        outcomes = {**refused, **denied}
        for (key, _), (_, outcome) in zip(allowed, decision.reply, strict=True):
            outcomes[key] = outcome
        return Decision(decision.units, outcomes)

    return on_controller(services, request, decide, respond, refuse)


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
    """Decode the alterations of one resource. Raises KafkaError for an invalid resource or operation."""
    altered = check_resource(resource.resource_type, resource.resource_name)
    alterations: list[ConfigAlteration] = []
    for config in resource.configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_request, f"There is no config operation {config.config_operation}."
            ) from None
        alterations.append(ConfigAlteration(config.name, operation, config.value))
    return AlterResource(altered, alterations)


API = ApiSpec(
    key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
    versions=(0, 1),
    handle=handle,
    forwardable=True,
    divisions=(
        Division(
            ("resources",), ("responses",), repeated=Repeated.TOGETHER, key=("resource_type", "resource_name")
        ),
    ),
    rights=rights_of(Operation.ALTER_CONFIGS),
)
