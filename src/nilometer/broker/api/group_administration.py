"""Groups as an administrator sees them: ListGroups, DescribeGroups, DeleteGroups, and Nilometer's own
DescribeRebalances.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from msgspec.structs import asdict

from nilometer.broker.api.access import access_of, audit_own_change
from nilometer.broker.api.group_access import ask_groups, ask_groups_in_turns
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.replies import CloseConnection, Reply
from nilometer.broker.services import Services
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    DeleteGroups,
    DeleteGroupsReply,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroups,
    DescribeGroupsReply,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
)
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire import own_apis as wire
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated

# ListGroups: the groups that this broker coordinates. Versions: 4 returns and filters by state; 5 by
# type.


def handle_list(services: Services, request: Request) -> asyncio.Future[Reply]:
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
            return request.respond(error_code=reply.error_code, groups=())
        await work.step(len(reply.groups))
        for group in reply.groups:
            if not sees_all:
                await work.step(1)
                if not access.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id, report=False):
                    continue
            shown.append(group)
    return request.respond(groups=LazySequence(partial(_group_list, request), shown))


def _group_list(request: Request, group: ListedGroup) -> Message:
    return request.make("ListedGroup", **asdict(group))


LIST = ApiSpec(
    key=ApiKey.LIST_GROUPS,
    versions=(0, 5),
    handle=handle_list,
    rights=(
        Right(Operation.DESCRIBE, ResourceType.CLUSTER),
        Right(Operation.DESCRIBE, ResourceType.GROUP),
    ),
)


# DescribeGroups: state, protocol and members of classic groups.
#
# Versions: 3 has the authorized operations; 4 instance ids; 6 reports an unknown group as GROUP_ID_NOT_FOUND,
# earlier ones describe it as dead.

FIRST_WITH_NOT_FOUND = 6
STATE_DEAD = "Dead"


def handle_describe(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return ask_groups(
        services,
        request,
        Operation.DESCRIBE,
        [(group, DescribeGroups((group,))) for group in request.body.groups],
        lambda replies: _respond_describe(services, request, replies),
    )


def _respond_describe(services: Services, request: Request, replies: Sequence[GroupReply]) -> Reply:
    described = [
        group for reply in replies if isinstance(reply, DescribeGroupsReply) for group in reply.groups
    ]
    groups = tuple(_group_describe(services, request, group) for group in described)
    return request.respond(groups=groups)


def _group_describe(services: Services, request: Request, group: DescribedGroup) -> Message:
    error, message, state = group.error_code, group.error_message, group.group_state
    if error is ErrorCode.group_id_not_found:
        state = STATE_DEAD
        if request.version < FIRST_WITH_NOT_FOUND:
            error, message = ErrorCode.none, None
    operations = OPERATIONS_NOT_ASKED
    if request.field("include_authorized_operations", False) and error is ErrorCode.none:
        operations = access_of(services, request).operations(ResourceType.GROUP, group.group_id)
    return request.make(
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=group.group_id,
        group_state=state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_data,
        members=LazySequence(partial(_member, request), group.members),
        authorized_operations=operations,
    )


def _member(request: Request, member: DescribedGroupMember) -> Message:
    return request.make("DescribedGroupMember", **asdict(member))


DESCRIBE = ApiSpec(
    key=ApiKey.DESCRIBE_GROUPS,
    versions=(0, 6),
    handle=handle_describe,
    divisions=(
        Division(
            ("groups",),
            ("groups",),
            repeated=Repeated.AT_MOST_TWICE,
            elements_max=1,  # a group may have thousands of members
        ),
    ),
    rights=(Right(Operation.DESCRIBE, ResourceType.GROUP),),
)


# DeleteGroups: delete groups without members, with their offsets.


def handle_delete(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return spawn(services, _delete(services, request), "DeleteGroups")


async def _delete(services: Services, request: Request) -> Reply:
    """Delete each group slice by slice: all its offsets are removed at once."""
    groups = dict.fromkeys(request.body.groups_names)  # a group named twice is deleted once
    asked = [(group, DeleteGroups((group,))) for group in groups]
    replies = await ask_groups_in_turns(services, request, Operation.DELETE, asked)
    return _respond_delete(services, request, replies)


def _respond_delete(services: Services, request: Request, replies: Sequence[GroupReply]) -> Reply:
    deleted = [
        result for reply in replies if isinstance(reply, DeleteGroupsReply) for result in reply.results
    ]
    for result in deleted:
        if result.error_code is ErrorCode.none:
            audit_own_change(services, request, group_id=result.group_id)
    results = tuple(
        request.make("DeletableGroupResult", group_id=result.group_id, error_code=result.error_code)
        for result in deleted
    )
    return request.respond(results=results)


DELETE = ApiSpec(
    key=ApiKey.DELETE_GROUPS,
    versions=(0, 3),
    handle=handle_delete,
    divisions=(Division(("groups_names",), ("results",), repeated=Repeated.AT_MOST_TWICE),),
    rights=(Right(Operation.DELETE, ResourceType.GROUP),),
)


# DescribeRebalances (Nilometer's own): the last rebalance of each group coordinated by this broker, and its
# cause.


REBALANCES_MAX = 10_000
"""Groups that a request may name, as elements of a request of Kafka's that is not divided."""


def handle_describe_rebalances(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE):
        denied = int(ErrorCode.cluster_authorization_failed)
        groups = request.body.groups
        refused = (wire.RebalanceState(group_id=group, error_code=denied) for group in groups)
        return request.respond(groups=tuple(refused))
    if len(request.body.groups) > REBALANCES_MAX:
        raise CloseConnection(f"more than {REBALANCES_MAX} groups in one request")
    return spawn(services, _describe_rebalances(services, request), "DescribeRebalances")


async def _describe_rebalances(services: Services, request: Request) -> Reply:
    work = LongWork(services.turns)
    asked = [(group, DescribeGroups((group,))) for group in request.body.groups]
    replies = await services.groups.ask_in_turns(asked, work)
    await work.step(1)
    return _respond_describe_rebalances(request, replies)


def _respond_describe_rebalances(request: Request, replies: Sequence[GroupReply]) -> Reply:
    described = [
        group for reply in replies if isinstance(reply, DescribeGroupsReply) for group in reply.groups
    ]
    return request.respond(groups=tuple(map(_group_describe_rebalances, described)))


def _group_describe_rebalances(group: DescribedGroup) -> wire.RebalanceState:
    last = group.last_rebalance
    if last is None:
        return wire.RebalanceState(group_id=group.group_id, error_code=int(group.error_code))
    return wire.RebalanceState(group_id=group.group_id, **asdict(last))


DESCRIBE_REBALANCES = ApiSpec(
    key=wire.DESCRIBE_REBALANCES,
    versions=(0, 0),
    handle=handle_describe_rebalances,
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
