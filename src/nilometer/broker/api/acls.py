"""DescribeAcls, CreateAcls, DeleteAcls: there is no authorizer, as they all answer."""

from __future__ import annotations

from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

_WHY = "No Authorizer is configured: access is not controlled by ACLs."


def describe(services: Services, request: Request) -> Reply:
    return request.respond(
        throttle_time_ms=0, error_code=ErrorCode.security_disabled, error_message=_WHY, resources=()
    )


def create(services: Services, request: Request) -> Reply:
    result = request.make("AclCreationResult", error_code=ErrorCode.security_disabled, error_message=_WHY)
    return request.respond(throttle_time_ms=0, results=(result,) * len(request.body.creations))


def delete(services: Services, request: Request) -> Reply:
    result = request.make(
        "DeleteAclsFilterResult",
        error_code=ErrorCode.security_disabled,
        error_message=_WHY,
        matching_acls=(),
    )
    return request.respond(throttle_time_ms=0, filter_results=(result,) * len(request.body.filters))


DESCRIBE = ApiSpec(key=ApiKey.DESCRIBE_ACLS, versions=(1, 3), handle=describe)
CREATE = ApiSpec(key=ApiKey.CREATE_ACLS, versions=(1, 3), handle=create)
DELETE = ApiSpec(key=ApiKey.DELETE_ACLS, versions=(1, 3), handle=delete)
