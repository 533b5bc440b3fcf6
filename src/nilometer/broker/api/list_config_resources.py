"""ListConfigResources: what has settings (KIP-1142).

Version 0 lists subscriptions of client metrics, of which there are none; 1 lists resources of the types that
are asked for, or of all. Of the groups, those with settings of their own are listed.
"""

from __future__ import annotations

from nilometer.broker.api.access import access_of
from nilometer.broker.api.config_resources import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
)
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

_TYPES = (RESOURCE_GROUP, RESOURCE_CLIENT_METRICS, RESOURCE_BROKER_LOGGER, RESOURCE_BROKER, RESOURCE_TOPIC)


def handle(services: Services, request: Request) -> Reply:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE_CONFIGS):
        denied = ErrorCode.cluster_authorization_failed
        return request.respond(throttle_time_ms=0, error_code=denied, config_resources=())
    asked: tuple[int, ...] = request.field("resource_types", (RESOURCE_CLIENT_METRICS,))
    if not set(asked) <= set(_TYPES):
        return request.respond(
            throttle_time_ms=0, error_code=ErrorCode.unsupported_version, config_resources=()
        )
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
        config_resources=tuple(
            request.make("ConfigResource", resource_name=name, resource_type=kind)
            for kind in _TYPES
            if not asked or kind in asked
            for name in _names(services.image, kind)
        ),
    )


def _names(image: ClusterImage, kind: int) -> list[str]:
    if kind == RESOURCE_TOPIC:
        return [topic.name for topic in image.topics()]
    if kind in (RESOURCE_BROKER, RESOURCE_BROKER_LOGGER):
        return [str(broker.id) for broker in image.live_brokers()]
    if kind == RESOURCE_GROUP:
        return [each.name for each in image.config_resources() if each.type is ConfigResourceType.GROUP]
    return []


API = ApiSpec(
    key=ApiKey.LIST_CONFIG_RESOURCES,
    versions=(0, 1),
    handle=handle,
    rights=(Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)
