"""DescribeClientQuotas: no client has a quota."""

from __future__ import annotations

from nilometer.broker.api.access import CLUSTER_DENIED, access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message

_ENTITY_TYPES = ("user", "client-id", "ip")
_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY = range(3)


def handle(services: Services, request: Request) -> Reply:
    refusals = [refused for each in request.body.components if (refused := _refusal(each)) is not None]
    error, why = refusals[0] if refusals else (ErrorCode.none, None)
    if not access_of(services, request).on_cluster(Operation.DESCRIBE_CONFIGS):
        error, why = ErrorCode.cluster_authorization_failed, CLUSTER_DENIED
    entries = () if error is ErrorCode.none else None
    return request.respond(throttle_time_ms=0, error_code=error, error_message=why, entries=entries)


def _refusal(component: Message) -> tuple[ErrorCode, str] | None:
    kind, how, name = component.entity_type, component.match_type, component.match
    if how not in (_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_ANY):
        return ErrorCode.invalid_request, f"Unknown match type {how}"
    if (how == _MATCH_EXACT) != (name is not None):
        return ErrorCode.invalid_request, f"Match type {how} {'with' if name else 'without'} a name"
    if kind not in _ENTITY_TYPES:
        return ErrorCode.unsupported_version, f"Unsupported entity type {kind}"
    return None


API = ApiSpec(
    key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    handle=handle,
    rights=(Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)
