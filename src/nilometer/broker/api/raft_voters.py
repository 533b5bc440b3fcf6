"""AddRaftVoter and RemoveRaftVoter: change who votes in the metadata quorum, while it runs (KIP-853).

A client may ask any broker; the leader of the quorum decides. While there is none, the request waits and is
tried again. If the leader does not answer, the change may be made: the client is told so, and nothing is
tried again.

Without a metadata quorum nothing can be changed: UNSUPPORTED_VERSION, as in Kafka with ``kraft.version`` 0.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.controller_requests import RETRY_S, WAIT_MS_DEFAULT
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import OutcomeUnknown, StoreUnavailable
from nilometer.raft.voter_changes import (
    CHANGE_VERSIONS,
    AddVoter,
    ChangeResult,
    VoterChange,
    audited,
    other_cluster,
    read_change_request,
)
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

NO_QUORUM = ChangeResult(
    ErrorCode.unsupported_version,
    "This cluster keeps its metadata in another coordination store: it has no quorum whose voters could be "
    "changed",
)


class Parts(msgspec.Struct, frozen=True):
    runtime: Runtime
    tasks: Tasks
    quorum: QuorumStore | None
    """None: the metadata is in another coordination store."""
    rights: Rights


def handle(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.ALTER):
        return _respond(request, ChangeResult(ErrorCode.cluster_authorization_failed, CLUSTER_DENIED))
    quorum = parts.quorum
    if quorum is None:
        return _respond(request, NO_QUORUM)
    refused = other_cluster(request.body.cluster_id, quorum.cluster_id)
    if refused is not None:
        return _respond(request, refused)
    return parts.tasks.spawn(_change(parts, quorum, request))


async def _change(parts: Parts, quorum: QuorumStore, request: Request) -> Response:
    change = read_change_request(ApiKey(request.api.key), request.body)
    result = await _decided(parts, quorum, change)
    noted = audited(change, result)
    if noted is not None:
        parts.rights.audit_own_change(request, **noted)
    return _respond(request, result)


async def _decided(parts: Parts, quorum: QuorumStore, change: VoterChange) -> ChangeResult:
    clock = parts.runtime.clock
    patience_ms = change.timeout_ms if isinstance(change, AddVoter) else WAIT_MS_DEFAULT
    deadline_ms = clock.monotonic_ms() + patience_ms
    while True:
        try:
            result = await quorum.change_voters(change)
        except OutcomeUnknown as error:
            return ChangeResult(
                ErrorCode.request_timed_out,
                f"{error}. Describe the quorum to see whether the change was made",
            )
        except StoreUnavailable as error:
            result = ChangeResult(ErrorCode.request_timed_out, str(error))
        else:
            if result.error is not ErrorCode.not_leader_or_follower:
                return result
        if clock.monotonic_ms() >= deadline_ms:
            return result
        await asyncio.sleep(RETRY_S)


def _respond(request: Request, result: ChangeResult) -> Response:
    return request.respond(error_code=result.error, error_message=result.message)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return tuple(
        ApiSpec(
            key=key,
            versions=CHANGE_VERSIONS[key],
            handle=partial(handle, parts),
            rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
        )
        for key in (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)
    )
