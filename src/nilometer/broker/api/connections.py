"""What a client asks before, and besides, its work: ApiVersions, SASL after the authentication, and
telemetry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

import msgspec

from nilometer.broker.api.spec import NO_RIGHTS, ApiSpec, Request, ranges
from nilometer.broker.authentication.sasl import AUTHENTICATE_VERSIONS, HANDSHAKE_VERSIONS
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode


class Parts(msgspec.Struct, frozen=True):
    config: BrokerConfig
    runtime: Runtime
    metadata: MetadataLog
    cluster_id: str


# ApiVersions: which APIs are served, in which versions, and which features (KIP-584).
#
# Versions: 3 has features, and the request names the client's software and its version (KIP-511); 4 lists
# features with a lowest level of 0 too, on which clients of version 3 fail (KAFKA-17011); 5 may say which
# broker of which cluster the client means to reach: another one tells it to begin again with its bootstrap
# servers (KIP-1242).

FIRST_WITH_FEATURES, FIRST_WITH_LEVEL_0, FIRST_WITH_TARGET = 3, 4, 5

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?\Z")


class ApiVersions:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._to_clients: Mapping[int, tuple[int, int]] = {}
        self._to_brokers: Mapping[int, tuple[int, int]] = {}

    def list_apis(self, specs: Sequence[ApiSpec]) -> None:
        """``specs``: all APIs that this broker serves."""
        unproved = self._parts.config.accepts_unproved_brokers
        self._to_clients = ranges(specs, for_brokers=unproved)
        self._to_brokers = ranges(specs, for_brokers=True)

    def handle(self, request: Request) -> Response:
        if request.version >= 3:
            name, version = request.body.client_software_name, request.body.client_software_version
            if not (_SOFTWARE.match(name) and _SOFTWARE.match(version)):
                return request.respond(error_code=ErrorCode.invalid_request, api_keys=())
        parts = self._parts
        if request.version >= FIRST_WITH_TARGET:
            cluster_id, node_id = request.body.cluster_id, request.body.node_id
            if (cluster_id is None) != (node_id == -1):
                return request.respond(error_code=ErrorCode.invalid_request, api_keys=())
            meant = (parts.cluster_id, parts.config.node_id)
            if cluster_id is not None and (cluster_id, node_id) != meant:
                return request.respond(error_code=ErrorCode.rebootstrap_required, api_keys=())
        listed = self._to_brokers if request.context.is_broker else self._to_clients
        return request.respond(
            api_keys=_listed(request.api, tuple(listed.items())), **_features(parts.metadata.image, request)
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


# SaslHandshake and SaslAuthenticate on a connection that has authenticated, or whose listener has no SASL.
#
# Before that :mod:`nilometer.broker.authentication.sasl` processes them.


def handshake(request: Request) -> Response:
    return request.respond(error_code=ErrorCode.illegal_sasl_state, mechanisms=())


def authenticate(request: Request) -> Response:
    return request.respond(
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


# GetTelemetrySubscriptions and PushTelemetry (KIP-714): no metrics are requested from clients.
#
# A client gets an id for itself, which its application may write to its own logs, and the instruction to
# repeat the request after five minutes. Its subscription is empty, so a client should push nothing. As in
# Kafka, the APIs are not advertised by a broker that collects no metrics.

PUSH_INTERVAL_MS = 300_000
TELEMETRY_MAX_BYTES = 1_048_576
SUBSCRIPTION_ID = 0
ACCEPTED_COMPRESSION = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy; what a client would prefer first."""


def get_subscriptions(parts: Parts, request: Request) -> Response:
    return request.respond(
        client_instance_id=request.body.client_instance_id or parts.runtime.entropy.uuid(),
        subscription_id=SUBSCRIPTION_ID,
        accepted_compression_types=ACCEPTED_COMPRESSION,
        push_interval_ms=PUSH_INTERVAL_MS,
        telemetry_max_bytes=TELEMETRY_MAX_BYTES,
        delta_temporality=True,
        requested_metrics=(),
    )


def push(request: Request) -> Response:
    """Validate a push of metrics, which are not stored. The last push of a client that ends may be empty."""
    body = request.body
    if not body.client_instance_id:
        error = ErrorCode.invalid_request
    elif body.subscription_id != SUBSCRIPTION_ID:
        error = ErrorCode.unknown_subscription_id
    elif len(body.metrics) > TELEMETRY_MAX_BYTES:
        error = ErrorCode.telemetry_too_large
    else:
        error = ErrorCode.none
    return request.respond(error_code=error)


def apis(parts: Parts, others: Sequence[ApiSpec]) -> tuple[ApiSpec, ...]:
    """``others``: the APIs of all other subjects, which ApiVersions lists beside these."""
    versions = ApiVersions(parts)
    own = (
        ApiSpec(key=ApiKey.API_VERSIONS, versions=(0, 5), handle=versions.handle, rights=NO_RIGHTS),
        ApiSpec(key=ApiKey.SASL_HANDSHAKE, versions=HANDSHAKE_VERSIONS, handle=handshake, rights=NO_RIGHTS),
        ApiSpec(
            key=ApiKey.SASL_AUTHENTICATE,
            versions=AUTHENTICATE_VERSIONS,
            handle=authenticate,
            rights=NO_RIGHTS,
        ),
        ApiSpec(
            key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
            versions=(0, 0),
            handle=partial(get_subscriptions, parts),
            hidden=True,
            rights=NO_RIGHTS,
        ),
        ApiSpec(key=ApiKey.PUSH_TELEMETRY, versions=(0, 0), handle=push, hidden=True, rights=NO_RIGHTS),
    )
    versions.list_apis((*others, *own))
    return own
