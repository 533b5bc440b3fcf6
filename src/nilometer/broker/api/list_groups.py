"""ListGroups: the groups that this broker coordinates. Versions: 4 returns and filters by state; 5 by
type."""

from __future__ import annotations

import asyncio
from functools import partial

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import ListedGroup, ListGroups, ListGroupsReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    return spawn(services, _list(services, request), "ListGroups")


async def _list(services: Services, request: Request) -> Reply:
    """Make one response from the replies of all coordinator partitions led here.

    An error, such as groups that are still being loaded, is the error of the whole response. NOT_COORDINATOR
    is not: those groups have moved, and their new coordinator lists them.
    """
    asked = ListGroups(
        states_filter=frozenset(state.lower() for state in request.field("states_filter", ())),
        types_filter=frozenset(group_type.lower() for group_type in request.field("types_filter", ())),
    )
    access = access_of(services, request)
    sees_all = access.is_full or access.on_cluster(Operation.DESCRIBE, report=False)
    work = LongWork(services.turns)
    shown: list[ListedGroup] = []
    for answer in services.groups.answer_all(asked):
        reply = await answer
        assert isinstance(reply, ListGroupsReply)
        if reply.error_code not in (ErrorCode.none, ErrorCode.not_coordinator):
            return request.respond(throttle_time_ms=0, error_code=reply.error_code, groups=())
        await work.step(len(reply.groups))
        for group in reply.groups:
            if not sees_all:
                await work.step(1)
                if not access.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id, report=False):
                    continue
            shown.append(group)
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
        groups=LazySequence(partial(_group, request), shown),
    )


def _group(request: Request, group: ListedGroup) -> Message:
    return request.make(
        "ListedGroup",
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        group_state=group.group_state,
        group_type=group.group_type,
    )


API = ApiSpec(
    key=ApiKey.LIST_GROUPS,
    versions=(0, 5),
    handle=handle,
    rights=(
        Right(Operation.DESCRIBE, ResourceType.CLUSTER),
        Right(Operation.DESCRIBE, ResourceType.GROUP),
    ),
)
