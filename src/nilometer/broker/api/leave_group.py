"""LeaveGroup: members leave at once, rather than when their session expires.

Versions: 3 takes many members, also by their instance id; before, the response's error is that of its only
member; 5 takes reasons.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.group_access import ask_group
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import LeaveGroup, LeaveGroupMember, LeaveGroupMemberReply, LeaveGroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division

FIRST_WITH_MANY_MEMBERS = 3


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    asked = LeaveGroup(request.body.group_id, _members(request))
    return ask_group(
        services,
        request,
        Operation.READ,
        asked.group_id,
        asked,
        LeaveGroupReply,
        lambda reply: _respond(request, reply),
    )


def _members(request: Request) -> tuple[LeaveGroupMember, ...]:
    if request.version < FIRST_WITH_MANY_MEMBERS:
        return (LeaveGroupMember(request.body.member_id),)
    return tuple(
        LeaveGroupMember(each.member_id, each.group_instance_id, getattr(each, "reason", None) or "")
        for each in request.body.members
    )


def _respond(request: Request, reply: LeaveGroupReply) -> Reply:
    error, answered = reply.error_code, reply.members
    if request.version < FIRST_WITH_MANY_MEMBERS:
        if error is ErrorCode.none and reply.members:
            error = reply.members[0].error_code
        return request.respond(throttle_time_ms=0, error_code=error)
    if error is ErrorCode.unknown_member_id:
        # There is no such group: the response has the error at each member.
        answered = tuple(
            LeaveGroupMemberReply(one.member_id, one.group_instance_id, error) for one in _members(request)
        )
        error = ErrorCode.none
    members = tuple(
        request.make(
            "MemberResponse",
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=member.error_code,
        )
        for member in answered
    )
    return request.respond(throttle_time_ms=0, error_code=error, members=members)


API = ApiSpec(
    key=ApiKey.LEAVE_GROUP,
    versions=(0, 5),
    handle=handle,
    divisions=(Division(("members",), ("members",)),),
    rights=(Right(Operation.READ, ResourceType.GROUP),),
)
