"""GetTelemetrySubscriptions and PushTelemetry (KIP-714): no metrics are requested from clients.

A client gets an id for itself, which its application may write to its own logs, and the instruction to repeat
the request after five minutes. Its subscription is empty, so a client should push nothing. As in Kafka, the
APIs are not advertised by a broker that collects no metrics.
"""

from __future__ import annotations

from nilometer.broker.api.spec import NO_RIGHTS, ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

PUSH_INTERVAL_MS = 300_000
TELEMETRY_MAX_BYTES = 1_048_576
SUBSCRIPTION_ID = 0
ACCEPTED_COMPRESSION = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy; what a client would prefer first."""


def get_subscriptions(services: Services, request: Request) -> Reply:
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
        client_instance_id=request.body.client_instance_id or services.runtime.entropy.uuid(),
        subscription_id=SUBSCRIPTION_ID,
        accepted_compression_types=ACCEPTED_COMPRESSION,
        push_interval_ms=PUSH_INTERVAL_MS,
        telemetry_max_bytes=TELEMETRY_MAX_BYTES,
        delta_temporality=True,
        requested_metrics=(),
    )


def push(services: Services, request: Request) -> Reply:
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
    return request.respond(throttle_time_ms=0, error_code=error)


GET_SUBSCRIPTIONS = ApiSpec(
    key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    versions=(0, 0),
    handle=get_subscriptions,
    hidden=True,
    rights=NO_RIGHTS,
)
PUSH = ApiSpec(
    key=ApiKey.PUSH_TELEMETRY,
    versions=(0, 0),
    handle=push,
    hidden=True,
    rights=NO_RIGHTS,
)
