"""FindCoordinator: which broker looks after a group or a transactional id.

Must be served for old librdkafka to use lz4 at all. While there are no coordinators, every key is answered
with COORDINATOR_NOT_AVAILABLE, which clients take as *try again later*. Version 4 asks for many keys at once.
"""

from __future__ import annotations

from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

_WHY = "This broker has no coordinators."


def handle(services: Services, request: Request) -> Reply:
    error = ErrorCode.coordinator_not_available
    if request.version < 4:
        return request.respond(
            throttle_time_ms=0, error_code=error, error_message=_WHY, node_id=-1, host="", port=-1
        )
    coordinators = tuple(
        request.make(
            "Coordinator", key=key, node_id=-1, host="", port=-1, error_code=error, error_message=_WHY
        )
        for key in request.body.coordinator_keys
    )
    return request.respond(throttle_time_ms=0, coordinators=coordinators)


API = ApiSpec(key=ApiKey.FIND_COORDINATOR, versions=(0, 6), handle=handle)
