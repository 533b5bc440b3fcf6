"""FindCoordinator: which broker coordinates a group or a transactional id.

The first request for a group creates ``__consumer_offsets``, the first one for a transactional id
``__transaction_state``.
Versions: 1 has key types and messages; 4 many keys at once; 6 has share groups, which are not served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated

KEY_GROUP, KEY_TRANSACTION = 0, 1
FIRST_WITH_MANY_KEYS = 4


class _Found(NamedTuple):
    error: ErrorCode
    node_id: int = -1
    host: str = ""
    port: int = -1
    message: str | None = None


class _Kind(NamedTuple):
    """The internal topic that keeps the keys of one type, groups or transactional ids."""

    type: ResourceType
    denied: ErrorCode
    topic: str
    partition_for: Callable[[str], int]
    ensure_topic: Callable[[], Awaitable[bool]]


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    many = request.version >= FIRST_WITH_MANY_KEYS
    keys: Sequence[str] = request.body.coordinator_keys if many else (request.body.key,)
    kind = _kind(services, request.field("key_type", KEY_GROUP))
    if kind is not None and services.image.topic(kind.topic) is None:
        access = access_of(services, request)
        needed = any(access.allows(Operation.DESCRIBE, kind.type, key, report=False) for key in keys)
    else:
        needed = False
    if kind is not None and needed:
        return spawn(services, _create_then_respond(services, request, keys, kind))
    return _respond(services, request, keys)


def _kind(services: Services, key_type: int) -> _Kind | None:
    if key_type == KEY_GROUP:
        groups = services.groups
        denied = ErrorCode.group_authorization_failed
        return _Kind(
            ResourceType.GROUP, denied, GROUP_METADATA_TOPIC, groups.partition_for, groups.ensure_topic
        )
    if key_type == KEY_TRANSACTION:
        transactions = services.transactions
        return _Kind(
            ResourceType.TRANSACTIONAL_ID,
            ErrorCode.transactional_id_authorization_failed,
            TRANSACTION_STATE_TOPIC,
            transactions.partition_for,
            transactions.ensure_topic,
        )
    return None


async def _create_then_respond(
    services: Services, request: Request, keys: Sequence[str], kind: _Kind
) -> Reply:
    await kind.ensure_topic()
    return _respond(services, request, keys)


def _respond(services: Services, request: Request, keys: Sequence[str]) -> Reply:
    key_type = request.field("key_type", KEY_GROUP)
    found = [(key, _find(services, request, key_type, key)) for key in keys]
    if request.version < FIRST_WITH_MANY_KEYS:
        ((_, only),) = found
        return request.respond(
            error_code=only.error,
            error_message=only.message,
            node_id=only.node_id,
            host=only.host,
            port=only.port,
        )
    coordinators = tuple(
        request.make(
            "Coordinator",
            key=key,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
            error_code=one.error,
            error_message=one.message,
        )
        for key, one in found
    )
    return request.respond(coordinators=coordinators)


def _find(services: Services, request: Request, key_type: int, key: str) -> _Found:
    kind = _kind(services, key_type)
    if kind is None:
        return _Found(ErrorCode.invalid_request, message=f"Key type {key_type} is not served.")
    if not access_of(services, request).allows(Operation.DESCRIBE, kind.type, key):
        return _Found(kind.denied)
    image = services.image
    state = image.partition(kind.topic, kind.partition_for(key))
    broker = image.broker(state.leader) if state is not None and state.has_leader else None
    endpoint = broker.endpoint(request.context.listener) if broker is not None and not broker.fenced else None
    if broker is None or endpoint is None:
        return _Found(ErrorCode.coordinator_not_available, message="The coordinator is not available.")
    return _Found(ErrorCode.none, broker.id, endpoint.host, endpoint.port)


API = ApiSpec(
    key=ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    handle=handle,
    divisions=(Division(("coordinator_keys",), ("coordinators",), repeated=Repeated.AT_MOST_TWICE),),
    rights=(
        Right(Operation.DESCRIBE, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    ),
)
