"""DescribeCluster: the brokers, the controller, the cluster's id.

Version 2 lists fenced brokers too if the request wants them.
"""

from __future__ import annotations

from nilometer.broker.api.access import access_of
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

ENDPOINT_TYPE_BROKERS, ENDPOINT_TYPE_CONTROLLERS = 1, 2


def handle(services: Services, request: Request) -> Reply:
    endpoint_type = request.field("endpoint_type", ENDPOINT_TYPE_BROKERS)
    if endpoint_type != ENDPOINT_TYPE_BROKERS:
        known = endpoint_type == ENDPOINT_TYPE_CONTROLLERS
        return request.respond(
            throttle_time_ms=0,
            error_code=ErrorCode.mismatched_endpoint_type if known else ErrorCode.unsupported_endpoint_type,
            error_message="The controller is one of the brokers; there are no separate controller endpoints.",
            cluster_id=services.cluster_id,
            brokers=(),
        )
    fenced_too = request.field("include_fenced_brokers", False)
    brokers = tuple(
        request.make(
            "DescribeClusterBroker",
            broker_id=broker.id,
            host=endpoint.host,
            port=endpoint.port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker in services.image.brokers()
        if (fenced_too or not broker.fenced)
        and (endpoint := broker.endpoint(request.context.listener)) is not None
    )
    operations = OPERATIONS_NOT_ASKED
    if request.body.include_cluster_authorized_operations:
        operations = access_of(services, request).cluster_operations()
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=ENDPOINT_TYPE_BROKERS,
        cluster_id=services.cluster_id,
        controller_id=services.image.controller_id,
        brokers=brokers,
        cluster_authorized_operations=operations,
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    handle=handle,
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
