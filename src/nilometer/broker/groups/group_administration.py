"""Groups as an administrator sees them: ListGroups, DescribeGroups, DeleteGroups, and Nilometer's own
DescribeRebalances.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.structs import asdict

from nilometer.broker.api.access import Rights
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.groups.group_coordinator import GroupCoordinator
from nilometer.broker.responses import CloseConnection, Response
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    DeleteGroups,
    DeleteGroupsResult,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroups,
    DescribeGroupsResult,
    GroupResult,
    ListedGroup,
    ListGroups,
    ListGroupsResult,
)
from nilometer.wire import own_apis as wire
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    turns: Turns
    listings: Listings
    groups: GroupCoordinator
    rights: Rights


# ListGroups: the groups that this broker coordinates. Versions: 4 returns and filters by state; 5 by
# type.


def handle_list(parts: Parts, request: Request) -> asyncio.Future[Response]:
    return parts.listings.answer(request, partial(_list, parts))


async def _list(parts: Parts, request: Request, work: LongWork) -> Response:
    """Make one response from the results of all coordinator partitions led here.

    An error, such as groups that are still being loaded, is the error of the whole response. NOT_COORDINATOR
    is not: those groups have moved, and their new coordinator lists them.
    """
    asked = ListGroups(
        states_filter=frozenset(state.lower() for state in request.field("states_filter", ())),
        types_filter=frozenset(group_type.lower() for group_type in request.field("types_filter", ())),
    )
    access = parts.rights.access(request)
    sees_all = access.is_full or access.on_cluster(Operation.DESCRIBE, report=False)
    shown: list[ListedGroup] = []
    for answer in parts.groups.answer_all(asked):
        result = await work.wait(answer)
        assert isinstance(result, ListGroupsResult)
        if result.error_code not in (ErrorCode.none, ErrorCode.not_coordinator):
            return request.respond(error_code=result.error_code, groups=())
        for group in () if result.groups is None else await work.go_through(result.groups):
            if not sees_all:
                await work.step(1)
                if not access.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id, report=False):
                    continue
            shown.append(group)
    return request.respond(groups=LazySequence(partial(_group_list, request), shown))


def _group_list(request: Request, group: ListedGroup) -> Message:
    return request.make("ListedGroup", **asdict(group))


# DescribeGroups: state, protocol and members of classic groups.
#
# Versions: 3 has the authorized operations; 4 instance ids; 6 reports an unknown group as GROUP_ID_NOT_FOUND,
# earlier ones describe it as dead.

FIRST_WITH_NOT_FOUND = 6
STATE_DEAD = "Dead"


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    return parts.groups.ask_groups(
        request,
        Operation.DESCRIBE,
        [(group, DescribeGroups((group,))) for group in request.body.groups],
        lambda results: _respond_describe(parts, request, results),
    )


def _respond_describe(parts: Parts, request: Request, results: Sequence[GroupResult]) -> Response:
    described = [
        group for result in results if isinstance(result, DescribeGroupsResult) for group in result.groups
    ]
    groups = tuple(_group_describe(parts, request, group) for group in described)
    return request.respond(groups=groups)


def _group_describe(parts: Parts, request: Request, group: DescribedGroup) -> Message:
    error, message, state = group.error_code, group.error_message, group.group_state
    if error is ErrorCode.group_id_not_found:
        state = STATE_DEAD
        if request.version < FIRST_WITH_NOT_FOUND:
            error, message = ErrorCode.none, None
    operations = OPERATIONS_NOT_ASKED
    if request.field("include_authorized_operations", False) and error is ErrorCode.none:
        operations = parts.rights.access(request).operations(ResourceType.GROUP, group.group_id)
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


# DeleteGroups: delete groups without members, with their offsets.


def handle_delete(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    return parts.tasks.spawn(_delete(parts, request), kind="DeleteGroups")


async def _delete(parts: Parts, request: Request) -> Response:
    """Delete each group slice by slice: all its offsets are removed at once."""
    groups = dict.fromkeys(request.body.groups_names)  # a group named twice is deleted once
    asked = [(group, DeleteGroups((group,))) for group in groups]
    results = await parts.groups.ask_groups_in_turns(request, Operation.DELETE, asked, LongWork(parts.turns))
    return _respond_delete(parts, request, results)


def _respond_delete(parts: Parts, request: Request, given: Sequence[GroupResult]) -> Response:
    deleted = [result for one in given if isinstance(one, DeleteGroupsResult) for result in one.results]
    for result in deleted:
        if result.error_code is ErrorCode.none:
            parts.rights.audit_own_change(request, group_id=result.group_id)
    results = tuple(
        request.make("DeletableGroupResult", group_id=result.group_id, error_code=result.error_code)
        for result in deleted
    )
    return request.respond(results=results)


# DescribeRebalances (Nilometer's own): the last rebalance of each group coordinated by this broker, and its
# cause.


REBALANCES_MAX = 10_000
"""Groups that a request may name, as elements of a request of Kafka's that is not divided."""


def handle_describe_rebalances(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE):
        denied = int(ErrorCode.cluster_authorization_failed)
        groups = request.body.groups
        refused = (wire.RebalanceState(group_id=group, error_code=denied) for group in groups)
        return request.respond(groups=tuple(refused))
    if len(request.body.groups) > REBALANCES_MAX:
        raise CloseConnection(f"more than {REBALANCES_MAX} groups in one request")
    return parts.tasks.spawn(_describe_rebalances(parts, request), kind="DescribeRebalances")


async def _describe_rebalances(parts: Parts, request: Request) -> Response:
    work = LongWork(parts.turns)
    asked = [(group, DescribeGroups((group,))) for group in request.body.groups]
    results = await parts.groups.ask_in_turns(asked, work)
    await work.step(1)
    return _respond_describe_rebalances(request, results)


def _respond_describe_rebalances(request: Request, results: Sequence[GroupResult]) -> Response:
    described = [
        group for result in results if isinstance(result, DescribeGroupsResult) for group in result.groups
    ]
    return request.respond(groups=tuple(map(_group_describe_rebalances, described)))


def _group_describe_rebalances(group: DescribedGroup) -> wire.RebalanceState:
    last = group.last_rebalance
    if last is None:
        return wire.RebalanceState(group_id=group.group_id, error_code=int(group.error_code))
    return wire.RebalanceState(group_id=group.group_id, **asdict(last))


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.LIST_GROUPS,
            versions=(0, 5),
            handle=partial(handle_list, parts),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.CLUSTER),
                Right(Operation.DESCRIBE, ResourceType.GROUP),
            ),
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_GROUPS,
            versions=(0, 6),
            handle=partial(handle_describe, parts),
            divisions=(
                Division(
                    ("groups",),
                    ("groups",),
                    repeated=Repeated.AT_MOST_TWICE,
                    elements_max=1,  # a group may have thousands of members
                ),
            ),
            rights=(Right(Operation.DESCRIBE, ResourceType.GROUP),),
        ),
        ApiSpec(
            key=ApiKey.DELETE_GROUPS,
            versions=(0, 3),
            handle=partial(handle_delete, parts),
            divisions=(Division(("groups_names",), ("results",), repeated=Repeated.AT_MOST_TWICE),),
            rights=(Right(Operation.DELETE, ResourceType.GROUP),),
        ),
        ApiSpec(
            key=wire.DESCRIBE_REBALANCES,
            versions=(0, 0),
            handle=partial(handle_describe_rebalances, parts),
            rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
        ),
    )
