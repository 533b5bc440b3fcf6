"""AlterConfigs: replace all settings of topics and brokers. What is not named goes back to its default.

The older form of IncrementalAlterConfigs, for clients from before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.config_access import denied_alterations, rights_of
from nilometer.broker.api.config_changes import (
    Outcomes,
    check_resource,
    definitions_of,
    refuse,
    respond,
)
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
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import KafkaError
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    def decide(image: ClusterImage) -> Decision[Outcomes]:
        denied = denied_alterations(services, request)
        resources = [each for each in request.body.resources if _key(each) not in denied]
        decision = _decide(services, image, resources, request.body.validate_only)
        return Decision(decision.units, {**denied, **decision.reply})

    return on_controller(services, request, decide, respond, refuse)


def _key(resource: Message) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


def _decide(
    services: Services, image: ClusterImage, resources: Sequence[Message], validate_only: bool
) -> Decision[Outcomes]:
    outcomes: Outcomes = {}
    asked: list[AlterResource] = []
    keys: list[tuple[int, str]] = []
    for resource in resources:
        key = _key(resource)
        try:
            asked.append(_replacement(image, check_resource(*key), resource.configs))
            keys.append(key)
        except KafkaError as error:
            outcomes[key] = Outcome(error.code, error.message)
    decision = decide_alter_configs(
        image, asked, definitions=definitions_of(services), validate_only=validate_only
    )
    outcomes.update((key, outcome) for key, (_, outcome) in zip(keys, decision.reply, strict=True))
    return Decision(decision.units, outcomes)


def _replacement(image: ClusterImage, resource: ConfigResource, configs: Sequence[Message]) -> AlterResource:
    given = {config.name for config in configs}
    removed = [key for key in image.config(*resource) if key not in given]
    return AlterResource(
        resource,
        [
            *(ConfigAlteration(config.name, ConfigOperation.SET, config.value) for config in configs),
            *(ConfigAlteration(key, ConfigOperation.DELETE) for key in removed),
        ],
    )


API = ApiSpec(
    key=ApiKey.ALTER_CONFIGS,
    versions=(0, 2),
    handle=handle,
    forwardable=True,
    divisions=(
        Division(
            ("resources",), ("responses",), repeated=Repeated.TOGETHER, key=("resource_type", "resource_name")
        ),
    ),
    rights=rights_of(Operation.ALTER_CONFIGS),
)
