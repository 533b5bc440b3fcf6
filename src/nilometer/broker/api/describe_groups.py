"""DescribeGroups: state, protocol and members of classic groups.

Versions: 3 has the authorized operations; 4 instance ids; 6 reports an unknown group as GROUP_ID_NOT_FOUND,
earlier ones describe it as dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.groups.requests import DescribedGroup, DescribeGroups, DescribeGroupsReply
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message

FIRST_WITH_NOT_FOUND = 6
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""A bit set of ACL operations: read, delete, describe, describe and alter settings. There is no
authorization, so all of them are allowed."""
STATE_DEAD = "Dead"


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return services.groups.ask(
        [(group, DescribeGroups((group,))) for group in request.body.groups],
        lambda replies: _respond(request, replies),
    )


def _respond(request: Request, replies: Sequence[GroupReply]) -> Reply:
    described = [
        group for reply in replies if isinstance(reply, DescribeGroupsReply) for group in reply.groups
    ]
    return request.respond(throttle_time_ms=0, groups=tuple(_group(request, group) for group in described))


def _group(request: Request, group: DescribedGroup) -> Message:
    error, message, state = group.error_code, group.error_message, group.group_state
    if error is ErrorCode.group_id_not_found:
        state = STATE_DEAD
        if request.version < FIRST_WITH_NOT_FOUND:
            error, message = ErrorCode.none, None
    asked = request.field("include_authorized_operations", False) and error is ErrorCode.none
    return request.make(
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=group.group_id,
        group_state=state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_data,
        members=tuple(
            request.make(
                "DescribedGroupMember",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.member_metadata,
                member_assignment=member.member_assignment,
            )
            for member in group.members
        ),
        authorized_operations=GROUP_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    )


API = ApiSpec(key=ApiKey.DESCRIBE_GROUPS, versions=(0, 6), handle=handle)
