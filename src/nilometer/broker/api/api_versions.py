"""ApiVersions: which APIs are served, in which versions.

Also where a client introduces its software (KIP-511).
"""

from __future__ import annotations

import re

from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def handle(services: Services, request: Request) -> Reply:
    if request.version >= 3:
        name, version = request.body.client_software_name, request.body.client_software_version
        if not (_SOFTWARE.match(name) and _SOFTWARE.match(version)):
            return request.respond(error_code=ErrorCode.invalid_request, api_keys=(), throttle_time_ms=0)
        request.connection.client_software = (name, version)
    advertised = services.advertised_to_brokers if request.context.is_broker else services.advertised
    keys = tuple(
        request.make("ApiVersion", api_key=key, min_version=low, max_version=high)
        for key, (low, high) in advertised.items()
    )
    return request.respond(error_code=ErrorCode.none, api_keys=keys, throttle_time_ms=0)


API = ApiSpec(key=ApiKey.API_VERSIONS, versions=(0, 4), handle=handle)
