"""AlterClientQuotas: set and remove quotas of users, client ids and addresses (KIP-546)."""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.client_quotas import QuotaAlteration, decide_alter_client_quotas
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.image import ClusterImage
from nilometer.quotas.entity import QuotaEntity, entity_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message

Outcomes = dict[QuotaEntity, Outcome]


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    alterations = [
        QuotaAlteration(
            _entity(entry),
            [(change.key, None if change.remove else change.value) for change in entry.ops],
        )
        for entry in request.body.entries
    ]

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        return decide_alter_client_quotas(image, alterations, validate_only=request.body.validate_only)

    return on_controller(services, request, decide, _respond, _refuse, needs=Operation.ALTER_CONFIGS)


def _entity(entry: Message) -> QuotaEntity:
    """Return the entity that an entry names; of a type that it names twice, the last name counts."""
    return entity_of({each.entity_type: each.entity_name for each in entry.entity})


def _respond(services: Services, request: Request, outcomes: Outcomes) -> Reply:
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
    return request.respond(throttle_time_ms=0, entries=entries)


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    outcome = Outcome(error, message)
    return _respond(services, request, {_entity(entry): outcome for entry in request.body.entries})


API = ApiSpec(
    key=ApiKey.ALTER_CLIENT_QUOTAS,
    versions=(0, 1),
    handle=handle,
    forwardable=True,
    divisions=(Division(("entries",), ("entries",), repeated=Repeated.TOGETHER, key=("entity",)),),
    rights=(Right(Operation.ALTER_CONFIGS, ResourceType.CLUSTER),),
)
