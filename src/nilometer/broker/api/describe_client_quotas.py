"""DescribeClientQuotas: the quotas of the entities that a filter selects (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.broker.api.access import CLUSTER_DENIED, access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.client_quotas import FilterComponent, QuotaFilter
from nilometer.quotas.entity import QuotaEntity
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE_CONFIGS):
        return _refuse(request, ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)
    body = request.body
    components = [FilterComponent(each.entity_type, each.match_type, each.match) for each in body.components]
    try:
        wanted = QuotaFilter(components, strict=body.strict)
    except KafkaError as error:
        return _refuse(request, error.code, error.message)
    found = [each for each in services.image.client_quotas.items() if wanted.matches(each[0])]
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
        error_message=None,
        entries=LazySequence(lambda each: _entry(request, *each), found),
    )


def _refuse(request: Request, error: ErrorCode, message: str) -> Reply:
    return request.respond(throttle_time_ms=0, error_code=error, error_message=message, entries=None)


def _entry(request: Request, entity: QuotaEntity, values: Mapping[str, float]) -> Message:
    return request.make(
        "EntryData",
        entity=tuple(request.make("EntityData", entity_type=kind, entity_name=name) for kind, name in entity),
        values=tuple(request.make("ValueData", key=key, value=value) for key, value in values.items()),
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
    versions=(0, 1),
    handle=handle,
    rights=(Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
)
