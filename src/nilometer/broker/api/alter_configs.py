"""AlterConfigs: replace all settings of topics and brokers. What is not named goes back to its default.

The older form of IncrementalAlterConfigs, for clients from before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    return alter(services, request, _replacement)


def _replacement(
    image: ClusterImage, resource: ConfigResource, configs: Sequence[Message]
) -> list[ConfigAlteration]:
    given = {config.name for config in configs}
    removed = [key for key in image.config(*resource) if key not in given]
    return [
        *(ConfigAlteration(config.name, ConfigOperation.SET, config.value) for config in configs),
        *(ConfigAlteration(key, ConfigOperation.DELETE) for key in removed),
    ]


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
