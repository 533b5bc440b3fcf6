"""DescribeGroups: state, protocol and members of classic groups.

Versions: 3 has the authorized operations; 4 instance ids; 6 reports an unknown group as GROUP_ID_NOT_FOUND,
earlier ones describe it as dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from nilometer.broker.api.access import access_of
from nilometer.broker.api.group_access import ask_groups
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroups,
    DescribeGroupsReply,
)
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message

FIRST_WITH_NOT_FOUND = 6
STATE_DEAD = "Dead"


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return ask_groups(
        services,
        request,
        Operation.DESCRIBE,
        [(group, DescribeGroups((group,))) for group in request.body.groups],
        lambda replies: _respond(services, request, replies),
    )


def _respond(services: Services, request: Request, replies: Sequence[GroupReply]) -> Reply:
    described = [
        group for reply in replies if isinstance(reply, DescribeGroupsReply) for group in reply.groups
    ]
    groups = tuple(_group(services, request, group) for group in described)
    return request.respond(throttle_time_ms=0, groups=groups)


def _group(services: Services, request: Request, group: DescribedGroup) -> Message:
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
    return request.make(
        "DescribedGroupMember",
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.member_metadata,
        member_assignment=member.member_assignment,
    )


API = ApiSpec(
    key=ApiKey.DESCRIBE_GROUPS,
    versions=(0, 6),
    handle=handle,
    divisions=(Division(("groups",), ("groups",), repeated=Repeated.AT_MOST_TWICE),),
    rights=(Right(Operation.DESCRIBE, ResourceType.GROUP),),
)
