"""JoinGroup: become, or stay, a member of a classic group. The response comes when all members have joined.

Versions: 0 has no rebalance timeout; 4 gives a client without a member id one, with which it must join again
(KIP-394); 5 has static members (KIP-345); 7 returns the protocol type; 8 takes a reason; 9 lets a leader skip
the assignment (KIP-814).
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.group_access import ask_group
from nilometer.broker.api.group_client import client_host, client_id
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import JoinGroup, JoinGroupProtocol, JoinGroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import milliseconds

FIRST_WITH_KNOWN_MEMBERS = 4
FIRST_WITH_PROTOCOL_TYPE = 7
FIRST_SKIPPING_ASSIGNMENT = 9


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    session_timeout_ms = milliseconds(body.session_timeout)
    rebalance_timeout = request.field("rebalance_timeout")
    asked = JoinGroup(
        group_id=body.group_id,
        member_id=body.member_id,
        protocol_type=body.protocol_type,
        protocols=tuple(JoinGroupProtocol(each.name, bytes(each.metadata)) for each in body.protocols),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=(
            session_timeout_ms if rebalance_timeout is None else milliseconds(rebalance_timeout)
        ),
        group_instance_id=request.field("group_instance_id"),
        reason=request.field("reason") or "",
        client_id=client_id(request),
        client_host=client_host(request),
        requires_known_member_id=request.version >= FIRST_WITH_KNOWN_MEMBERS,
        supports_skipping_assignment=request.version >= FIRST_SKIPPING_ASSIGNMENT,
    )
    return ask_group(
        services,
        request,
        Operation.READ,
        asked.group_id,
        asked,
        JoinGroupReply,
        lambda reply: _respond(request, reply),
    )


def _respond(request: Request, reply: JoinGroupReply) -> Reply:
    protocol_name = reply.protocol_name
    if protocol_name is None and request.version < FIRST_WITH_PROTOCOL_TYPE:
        protocol_name = ""
    return request.respond(
        throttle_time_ms=0,
        error_code=reply.error_code,
        generation_id=reply.generation_id,
        protocol_type=reply.protocol_type,
        protocol_name=protocol_name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=tuple(
            request.make(
                "JoinGroupResponseMember",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in reply.members
        ),
    )


API = ApiSpec(
    key=ApiKey.JOIN_GROUP,
    versions=(0, 9),
    handle=handle,
    rights=(Right(Operation.READ, ResourceType.GROUP),),
)
