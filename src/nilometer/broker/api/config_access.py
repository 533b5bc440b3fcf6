"""Rights on settings: those of topics and groups by the resource, those of brokers by the cluster."""

from __future__ import annotations

from nilometer.broker.api.access import access_of
from nilometer.broker.api.config_resources import RESOURCE_GROUP, RESOURCE_TOPIC
from nilometer.broker.api.spec import Request, Right
from nilometer.broker.services import Services
from nilometer.cluster.acl import CLUSTER_NAME, Operation, ResourceType
from nilometer.cluster.controller.decision import Outcome
from nilometer.wire.errors import ErrorCode, KafkaError

DENIED = {
    ResourceType.TOPIC: (ErrorCode.topic_authorization_failed, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.group_authorization_failed, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.cluster_authorization_failed, "Cluster authorization failed."),
}
"""By the type of resource that the right is on."""


def rights_of(operation: Operation) -> tuple[Right, ...]:
    return tuple(Right(operation, kind) for kind in DENIED)


def check_configs(services: Services, request: Request, operation: Operation, kind: int, name: str) -> None:
    """Raise KafkaError unless ``operation`` is allowed on the settings of the resource.

    ``kind``: the type of the resource, in the numbers of requests about settings.
    """
    of = {RESOURCE_TOPIC: ResourceType.TOPIC, RESOURCE_GROUP: ResourceType.GROUP}.get(
        kind, ResourceType.CLUSTER
    )
    resource = CLUSTER_NAME if of is ResourceType.CLUSTER else name
    if not access_of(services, request).allows(operation, of, resource):
        raise KafkaError(*DENIED[of])


def denied_alterations(services: Services, request: Request) -> dict[tuple[int, str], Outcome]:
    """Return the errors of the resources of a request whose settings the client may not alter."""
    denied: dict[tuple[int, str], Outcome] = {}
    for resource in request.body.resources:
        key = resource.resource_type, resource.resource_name
        try:
            check_configs(services, request, Operation.ALTER_CONFIGS, *key)
        except KafkaError as error:
            denied[key] = Outcome(error.code, error.message)
    return denied
