"""IncrementalAlterConfigs (KIP-339): set, delete, append to and subtract from settings of topics and
brokers; and log levels of this broker (KIP-412).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.alter_loggers import alter_loggers, names_loggers
from nilometer.broker.api.config_access import rights_of
from nilometer.broker.api.config_changes import alter
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation
from nilometer.cluster.controller.configs import ConfigAlteration, ConfigOperation
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if names_loggers(request):
        return alter_loggers(services, request)
    return alter(services, request, _alterations)


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
                ErrorCode.invalid_request, f"There is no config operation {config.config_operation}."
            ) from None
        alterations.append(ConfigAlteration(config.name, operation, config.value))
    return alterations


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
