"""DescribeClientQuotas and AlterClientQuotas: the quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.client_quotas import FilterComponent, QuotaFilter
from nilometer.cluster.controller.access import QuotaAlteration, decide_alter_client_quotas
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.image import ClusterImage
from nilometer.quotas import QuotaEntity, entity_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    listings: Listings
    metadata: MetadataLog
    rights: Rights
    controller_requests: ControllerRequests


# DescribeClientQuotas: the quotas of the entities that a filter selects (KIP-546).


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE_CONFIGS):
        return _refuse_describe(request, ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)
    body = request.body
    components = [FilterComponent(each.entity_type, each.match_type, each.match) for each in body.components]
    try:
        wanted = QuotaFilter(components, strict=body.strict)
    except KafkaError as error:
        return _refuse_describe(request, error.code, error.message)
    return parts.listings.answer(request, partial(_describe, parts, wanted))


async def _describe(parts: Parts, wanted: QuotaFilter, request: Request, work: LongWork) -> Response:
    found: list[tuple[QuotaEntity, Mapping[str, float]]] = []
    for entity, values in parts.metadata.image.client_quotas.items():
        if wanted.matches(entity):
            found.append((entity, values))
        await work.step(1)
    return request.respond(
        error_message=None, entries=LazySequence(lambda each: _entry(request, *each), found)
    )


def _refuse_describe(request: Request, error: ErrorCode, message: str) -> Response:
    return request.respond(error_code=error, error_message=message, entries=None)


def _entry(request: Request, entity: QuotaEntity, values: Mapping[str, float]) -> Message:
    return request.make(
        "EntryData",
        entity=tuple(request.make("EntityData", entity_type=kind, entity_name=name) for kind, name in entity),
        values=tuple(request.make("ValueData", key=key, value=value) for key, value in values.items()),
    )


# AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546).

Outcomes = dict[QuotaEntity, Outcome]


def handle_alter(parts: Parts, request: Request) -> asyncio.Future[Response]:
    alterations = [
        QuotaAlteration(
            _entity(entry),
            [(change.key, None if change.remove else change.value) for change in entry.ops],
        )
        for entry in request.body.entries
    ]

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        return decide_alter_client_quotas(image, alterations, validate_only=request.body.validate_only)

    return parts.controller_requests.decide(
        request, decide, _respond, _refuse_alter, needs=Operation.ALTER_CONFIGS
    )


def _entity(entry: Message) -> QuotaEntity:
    """Return the entity that an entry names; of a type that it names twice, the last name counts."""
    return entity_of({each.entity_type: each.entity_name for each in entry.entity})


def _respond(request: Request, outcomes: Outcomes) -> Response:
    entries = tuple(
        request.make(
            "EntryData",
            error_code=outcome.error,
            error_message=outcome.message,
            entity=tuple(
                request.make("EntityData", entity_type=kind, entity_name=name) for kind, name in entity
            ),
        )
        for entity, outcome in outcomes.items()
    )
    return request.respond(entries=entries)


def _refuse_alter(request: Request, error: ErrorCode, message: str) -> Response:
    outcome = Outcome(error, message)
    return _respond(request, {_entity(entry): outcome for entry in request.body.entries})


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.DESCRIBE_CLIENT_QUOTAS,
            versions=(0, 1),
            handle=partial(handle_describe, parts),
            rights=(Right(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.ALTER_CLIENT_QUOTAS,
            versions=(0, 1),
            handle=partial(handle_alter, parts),
            forwardable=True,
            divisions=(Division(("entries",), ("entries",), repeated=Repeated.TOGETHER, key=("entity",)),),
            rights=(Right(Operation.ALTER_CONFIGS, ResourceType.CLUSTER),),
        ),
    )
