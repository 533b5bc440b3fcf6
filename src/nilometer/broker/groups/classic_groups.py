"""The classic protocol of groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from msgspec.structs import asdict

from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message
from nilometer.broker.groups.group_coordinator import GroupCoordinator, client_host, client_id
from nilometer.broker.responses import Response
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinGroupProtocol,
    JoinGroupResult,
    LeaveGroup,
    LeaveGroupMember,
    LeaveGroupMemberResult,
    LeaveGroupResult,
    SyncGroup,
    SyncGroupAssignment,
    SyncGroupResult,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import milliseconds
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division


class Parts(msgspec.Struct, frozen=True):
    groups: GroupCoordinator


# JoinGroup: become, or stay, a member of a classic group. The response comes when all members have joined.
#
# Versions: 0 has no rebalance timeout; 4 gives a client without a member id one, with which it must join
# again (KIP-394); 5 has static members (KIP-345); 7 returns the protocol type; 8 takes a reason; 9 lets a
# leader skip the assignment (KIP-814).

FIRST_WITH_KNOWN_MEMBERS = 4
FIRST_WITH_PROTOCOL_TYPE = 7
FIRST_SKIPPING_ASSIGNMENT = 9


def handle_join_group(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    body = request.body
    session_timeout_ms = milliseconds(body.session_timeout)
    rebalance_timeout = request.field("rebalance_timeout")
    asked = of_message(
        JoinGroup,
        body,
        protocols=tuple(JoinGroupProtocol(each.name, bytes(each.metadata)) for each in body.protocols),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            session_timeout_ms if rebalance_timeout is None else milliseconds(rebalance_timeout)
        ),
        reason=request.field("reason") or "",
        client_id=client_id(request),
        client_host=client_host(request),
        requires_known_member_id=request.version >= FIRST_WITH_KNOWN_MEMBERS,
        supports_skipping_assignment=request.version >= FIRST_SKIPPING_ASSIGNMENT,
    )
    return parts.groups.ask_group(
        request,
        Operation.READ,
        asked,
        JoinGroupResult,
        lambda result: _respond_join_group(request, result),
    )


def _respond_join_group(request: Request, result: JoinGroupResult) -> Response:
    protocol_name = result.protocol_name
    if protocol_name is None and request.version < FIRST_WITH_PROTOCOL_TYPE:
        protocol_name = ""
    members = tuple(request.make("JoinGroupResponseMember", **asdict(member)) for member in result.members)
    return request.respond(**(asdict(result) | {"protocol_name": protocol_name, "members": members}))


# SyncGroup: the leader sends the assignments of a generation, and each member's response has its own.
#
# Versions: 3 has static members; 5 requires protocol type and name.

FIRST_WITH_PROTOCOL = 5


def handle_sync_group(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    assignments = tuple(
        SyncGroupAssignment(each.member_id, bytes(each.assignment)) for each in request.body.assignments
    )
    asked = of_message(SyncGroup, request.body, assignments=assignments)
    lacks_protocol = asked.protocol_type is None or asked.protocol_name is None
    if request.version >= FIRST_WITH_PROTOCOL and lacks_protocol:
        return request.respond(**asdict(SyncGroupResult(ErrorCode.inconsistent_group_protocol)))
    return parts.groups.ask_group(
        request,
        Operation.READ,
        asked,
        SyncGroupResult,
        lambda result: request.respond(**asdict(result)),
    )


# Heartbeat: renews the session of a classic group's member; REBALANCE_IN_PROGRESS makes it join again.


def handle_heartbeat(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    return parts.groups.ask_group(
        request,
        Operation.READ,
        of_message(Heartbeat, request.body),
        HeartbeatResult,
        lambda result: request.respond(error_code=result.error_code),
    )


# LeaveGroup: members leave at once, rather than when their session expires.
#
# Versions: 3 takes many members, also by their instance id; before, the response's error is that of its only
# member; 5 takes reasons.

FIRST_WITH_MANY_MEMBERS = 3


def handle_leave_group(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    asked = LeaveGroup(request.body.group_id, _members(request))
    return parts.groups.ask_group(
        request,
        Operation.READ,
        asked,
        LeaveGroupResult,
        lambda result: _respond_leave_group(request, result),
    )


def _members(request: Request) -> tuple[LeaveGroupMember, ...]:
    if request.version < FIRST_WITH_MANY_MEMBERS:
        return (LeaveGroupMember(request.body.member_id),)
    return tuple(
        LeaveGroupMember(each.member_id, each.group_instance_id, getattr(each, "reason", None) or "")
        for each in request.body.members
    )


def _respond_leave_group(request: Request, result: LeaveGroupResult) -> Response:
    error, answered = result.error_code, result.members
    if request.version < FIRST_WITH_MANY_MEMBERS:
        if error is ErrorCode.none and result.members:
            error = result.members[0].error_code
        return request.respond(error_code=error)
    if error is ErrorCode.unknown_member_id:
        # There is no such group: the response has the error at each member.
        answered = tuple(
            LeaveGroupMemberResult(one.member_id, one.group_instance_id, error) for one in _members(request)
        )
        error = ErrorCode.none
    members = tuple(request.make("MemberResponse", **asdict(member)) for member in answered)
    return request.respond(error_code=error, members=members)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.JOIN_GROUP,
            versions=(0, 9),
            handle=partial(handle_join_group, parts),
            rights=(Right(Operation.READ, ResourceType.GROUP),),
        ),
        ApiSpec(
            key=ApiKey.SYNC_GROUP,
            versions=(0, 5),
            handle=partial(handle_sync_group, parts),
            rights=(Right(Operation.READ, ResourceType.GROUP),),
        ),
        ApiSpec(
            key=ApiKey.HEARTBEAT,
            versions=(0, 4),
            handle=partial(handle_heartbeat, parts),
            rights=(Right(Operation.READ, ResourceType.GROUP),),
        ),
        ApiSpec(
            key=ApiKey.LEAVE_GROUP,
            versions=(0, 5),
            handle=partial(handle_leave_group, parts),
            divisions=(Division(("members",), ("members",)),),
            rights=(Right(Operation.READ, ResourceType.GROUP),),
        ),
    )
