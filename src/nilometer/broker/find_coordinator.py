"""FindCoordinator: which broker coordinates a group, a transactional id, or the state of a share partition.

The first request for a group creates ``__consumer_offsets``, the first one for a transactional id
``__transaction_state``, and the first one for a share partition ``__share_group_state``.
Versions: 1 has key types and messages; 4 many keys at once; 6 has share partitions, for brokers (KIP-932).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.authorizer import Access
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.groups.group_coordinator import GroupCoordinator
from nilometer.broker.responses import Response
from nilometer.broker.sharing.share_coordinator import ShareCoordinator, parse_coordinator_key
from nilometer.broker.tasks import Tasks
from nilometer.broker.transactions.transaction_coordinator import TransactionCoordinator
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    metadata: MetadataLog
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_state: ShareCoordinator
    rights: Rights


KEY_GROUP, KEY_TRANSACTION, KEY_SHARE = 0, 1, 2
FIRST_WITH_MANY_KEYS = 4
FIRST_WITH_SHARE_PARTITIONS = 6


class _Found(NamedTuple):
    error: ErrorCode
    node_id: int = -1
    host: str = ""
    port: int = -1
    message: str | None = None


class _Kind(NamedTuple):
    """The internal topic that keeps the keys of one type: groups, transactional ids or share partitions."""

    may_find: Callable[[Access, str, bool], bool]
    """Whether the rights suffice for a key, and whether a denial is reported."""
    denied: ErrorCode
    topic: str
    partition_for: Callable[[str], int]
    ensure_topic: Callable[[], Awaitable[bool]]


def handle(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    many = request.version >= FIRST_WITH_MANY_KEYS
    keys: Sequence[str] = request.body.coordinator_keys if many else (request.body.key,)
    kind = _kind(parts, request)
    if kind is not None and parts.metadata.image.topic(kind.topic) is None:
        access = parts.rights.access(request)
        needed = any(kind.may_find(access, key, False) and _is_valid(kind, key) for key in keys)
    else:
        needed = False
    if kind is not None and needed:
        return parts.tasks.spawn(_create_then_respond(parts, request, keys, kind))
    return _respond(parts, request, keys)


def _kind(parts: Parts, request: Request) -> _Kind | None:
    """Return the kind of keys that the request has; None if it is not served in this version."""
    key_type = request.field("key_type", KEY_GROUP)
    if key_type == KEY_GROUP:
        groups = parts.groups
        return _Kind(
            _may_describe(ResourceType.GROUP),
            ErrorCode.group_authorization_failed,
            GROUP_METADATA_TOPIC,
            groups.partition_for,
            groups.ensure_topic,
        )
    if key_type == KEY_TRANSACTION:
        transactions = parts.transactions
        return _Kind(
            _may_describe(ResourceType.TRANSACTIONAL_ID),
            ErrorCode.transactional_id_authorization_failed,
            TRANSACTION_STATE_TOPIC,
            transactions.partition_for,
            transactions.ensure_topic,
        )
    if key_type == KEY_SHARE and request.version >= FIRST_WITH_SHARE_PARTITIONS:
        share_state = parts.share_state
        return _Kind(
            _may_act_as_broker,
            ErrorCode.cluster_authorization_failed,
            SHARE_GROUP_STATE_TOPIC,
            share_state.partition_for_text,
            share_state.ensure_topic,
        )
    return None


def _may_act_as_broker(access: Access, _key: str, report: bool) -> bool:
    return access.on_cluster(Operation.CLUSTER_ACTION, report=report)


def _may_describe(kind: ResourceType) -> Callable[[Access, str, bool], bool]:
    return lambda access, key, report: access.allows(Operation.DESCRIBE, kind, key, report=report)


def _is_valid(kind: _Kind, key: str) -> bool:
    """Whether the key is one of its type; all texts are, of groups and transactional ids."""
    if kind.topic != SHARE_GROUP_STATE_TOPIC:
        return True
    try:
        parse_coordinator_key(key)
    except ValueError:
        return False
    return True


async def _create_then_respond(parts: Parts, request: Request, keys: Sequence[str], kind: _Kind) -> Response:
    await kind.ensure_topic()
    return _respond(parts, request, keys)


def _respond(parts: Parts, request: Request, keys: Sequence[str]) -> Response:
    found = [(key, _find(parts, request, key)) for key in keys]
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


def _find(parts: Parts, request: Request, key: str) -> _Found:
    kind = _kind(parts, request)
    if kind is None:
        message = f"Key type {request.field('key_type', KEY_GROUP)} is not served in this version."
        return _Found(ErrorCode.invalid_request, message=message)
    if not kind.may_find(parts.rights.access(request), key, True):
        return _Found(kind.denied)
    if not _is_valid(kind, key):
        return _Found(
            ErrorCode.invalid_request, message="The key is not of the form group:topic id:partition."
        )
    image = parts.metadata.image
    state = image.partition(kind.topic, kind.partition_for(key))
    broker = image.broker(state.leader) if state is not None and state.has_leader else None
    endpoint = broker.endpoint(request.context.listener) if broker is not None and not broker.fenced else None
    if broker is None or endpoint is None:
        return _Found(ErrorCode.coordinator_not_available, message="The coordinator is not available.")
    return _Found(ErrorCode.none, broker.id, endpoint.host, endpoint.port)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.FIND_COORDINATOR,
            versions=(0, 6),
            handle=partial(handle, parts),
            divisions=(Division(("coordinator_keys",), ("coordinators",), repeated=Repeated.AT_MOST_TWICE),),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
                Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
            ),
        ),
    )
