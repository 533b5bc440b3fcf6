"""AddRaftVoter and RemoveRaftVoter: change who votes in the metadata quorum, while it runs (KIP-853).

A client may ask any broker; the leader of the quorum decides. While there is none, the request waits and is
tried again. If the leader does not answer, the change may be made: the client is told so, and nothing is
tried again.

Without a metadata quorum nothing can be changed: UNSUPPORTED_VERSION, as in Kafka with ``kraft.version`` 0.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.access import CLUSTER_DENIED, access_of, audit_own_change
from nilometer.broker.api.controller_requests import RETRY_S, WAIT_MS_DEFAULT
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.replies import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import OutcomeUnknown, StoreUnavailable
from nilometer.raft.voter_changes import (
    CHANGE_VERSIONS,
    DONE,
    AddVoter,
    ChangeResult,
    VoterChange,
    other_cluster,
    read_change_request,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

NO_QUORUM = ChangeResult(
    ErrorCode.unsupported_version,
    "This cluster keeps its metadata in another coordination store: it has no quorum whose voters could be "
    "changed",
)


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if not access_of(services, request).on_cluster(Operation.ALTER):
        return _respond(request, ChangeResult(ErrorCode.cluster_authorization_failed, CLUSTER_DENIED))
    quorum = services.quorum
    if quorum is None:
        return _respond(request, NO_QUORUM)
    refused = other_cluster(request.body.cluster_id, quorum.cluster_id)
    if refused is not None:
        return _respond(request, refused)
    return spawn(services, _change(services, quorum, request))


async def _change(services: Services, quorum: QuorumStore, request: Request) -> Reply:
    change = read_change_request(ApiKey(request.api.key), request.body)
    result = await _decided(services, quorum, change)
    if result == DONE:
        voter = change.voter if isinstance(change.voter, tuple) else change.voter.key
        audit_own_change(services, request, voter=str(voter))
    return _respond(request, result)


async def _decided(services: Services, quorum: QuorumStore, change: VoterChange) -> ChangeResult:
    clock = services.runtime.clock
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


def _respond(request: Request, result: ChangeResult) -> Reply:
    return request.respond(error_code=result.error, error_message=result.message)


ADD_RAFT_VOTER = ApiSpec(
    key=ApiKey.ADD_RAFT_VOTER,
    versions=CHANGE_VERSIONS[ApiKey.ADD_RAFT_VOTER],
    handle=handle,
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
REMOVE_RAFT_VOTER = ApiSpec(
    key=ApiKey.REMOVE_RAFT_VOTER,
    versions=CHANGE_VERSIONS[ApiKey.REMOVE_RAFT_VOTER],
    handle=handle,
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
