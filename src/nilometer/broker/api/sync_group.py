"""SyncGroup: the leader sends the assignments of a generation, and each member's response has its own.

Versions: 3 has static members; 5 requires protocol type and name.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.group_access import ask_group
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import SyncGroup, SyncGroupAssignment, SyncGroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

FIRST_WITH_PROTOCOL = 5


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    asked = SyncGroup(
        group_id=body.group_id,
        generation_id=body.generation_id,
        member_id=body.member_id,
        group_instance_id=request.field("group_instance_id"),
        protocol_type=request.field("protocol_type"),
        protocol_name=request.field("protocol_name"),
        assignments=tuple(
            SyncGroupAssignment(each.member_id, bytes(each.assignment)) for each in body.assignments
        ),
    )
    lacks_protocol = asked.protocol_type is None or asked.protocol_name is None
    if request.version >= FIRST_WITH_PROTOCOL and lacks_protocol:
        return _respond(request, SyncGroupReply(ErrorCode.inconsistent_group_protocol))
    return ask_group(
        services,
        request,
        Operation.READ,
        asked.group_id,
        asked,
        SyncGroupReply,
        lambda reply: _respond(request, reply),
    )


def _respond(request: Request, reply: SyncGroupReply) -> Reply:
    return request.respond(
        throttle_time_ms=0,
        error_code=reply.error_code,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


API = ApiSpec(
    key=ApiKey.SYNC_GROUP,
    versions=(0, 5),
    handle=handle,
    rights=(Right(Operation.READ, ResourceType.GROUP),),
)
