"""DescribeUserScramCredentials: no user has a credential. Tools ask for them together with quotas."""

from __future__ import annotations

from collections import Counter

from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply:
    users = Counter(user.name for user in request.body.users or ())
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(_result(request, name, times) for name, times in users.items()),
    )


def _result(request: Request, name: str, times: int) -> Message:
    if times > 1:
        error, why = ErrorCode.duplicate_resource, "Cannot describe SCRAM credentials for the same user twice"
    else:
        error, why = ErrorCode.resource_not_found, "There is no SCRAM credential of this user"
    return request.make(
        "DescribeUserScramCredentialsResult",
        user=name,
        error_code=error,
        error_message=f"{why}: {name}",
        credential_infos=(),
    )


API = ApiSpec(key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0), handle=handle)
