"""ApiVersions: which APIs are served, in which versions, and which features (KIP-584).

Versions: 3 has features, and the request names the client's software and its version (KIP-511); 4 lists
features with a lowest level of 0 too, on which clients of version 3 fail (KAFKA-17011).
"""

from __future__ import annotations

import re
from functools import lru_cache

from nilometer.broker.api.spec import NO_RIGHTS, ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, Message

FIRST_WITH_FEATURES, FIRST_WITH_LEVEL_0 = 3, 4

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


def handle(services: Services, request: Request) -> Reply:
    if request.version >= 3:
        name, version = request.body.client_software_name, request.body.client_software_version
        if not (_SOFTWARE.match(name) and _SOFTWARE.match(version)):
            return request.respond(error_code=ErrorCode.invalid_request, api_keys=(), throttle_time_ms=0)
        request.connection.client_software = (name, version)
    advertised = services.advertised_to_brokers if request.context.is_broker else services.advertised
    return request.respond(
        error_code=ErrorCode.none,
        api_keys=_listed(request.api, tuple(advertised.items())),
        throttle_time_ms=0,
        **_features(services.image, request),
    )


@lru_cache(maxsize=16)
def _listed(api: Api, advertised: tuple[tuple[int, tuple[int, int]], ...]) -> tuple[Message, ...]:
    """Made once: each new connection asks for these parts, and so does each probe of a leader."""
    return tuple(
        api.make("ApiVersion", api_key=key, min_version=low, max_version=high)
        for key, (low, high) in advertised
    )


def _features(image: ClusterImage, request: Request) -> dict[str, object]:
    if request.version < FIRST_WITH_FEATURES:
        return {}
    return {
        "supported_features": tuple(
            request.make(
                "SupportedFeatureKey", name=feature.name, min_version=feature.low, max_version=feature.high
            )
            for feature in SUPPORTED_FEATURES
            if feature.low > 0 or request.version >= FIRST_WITH_LEVEL_0
        ),
        "finalized_features_epoch": image.number,
        "finalized_features": tuple(
            request.make("FinalizedFeatureKey", name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(image.finalized_features.items())
            if level > 0
        ),
    }


API = ApiSpec(
    key=ApiKey.API_VERSIONS,
    versions=(0, 4),
    handle=handle,
    rights=NO_RIGHTS,
)
