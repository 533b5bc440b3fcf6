"""DescribeUserScramCredentials and AlterUserScramCredentials: the SCRAM credentials of users, never their
keys (KIP-554).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.access import (
    ScramAlteration,
    ScramDeletion,
    ScramUpsertion,
    decide_alter_scram_credentials,
)
from nilometer.cluster.controller.decision import Outcome, Steps
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    listings: Listings
    metadata: MetadataLog
    rights: Rights
    controller_requests: ControllerRequests


# DescribeUserScramCredentials: mechanisms and iterations of credentials, without the keys (KIP-554).


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE):
        denied = ErrorCode.cluster_authorization_failed
        refused = request.make(
            "DescribeUserScramCredentialsResult",
            user="",
            error_code=denied,
            error_message=CLUSTER_DENIED,
            credential_infos=(),
        )
        return request.respond(error_code=denied, error_message=CLUSTER_DENIED, results=(refused,))
    if not request.body.users:
        return parts.listings.answer(request, partial(_describe_all, parts))
    asked = Counter(user.name for user in request.body.users)
    return _respond_described(parts.metadata.image, request, list(asked.items()))


async def _describe_all(parts: Parts, request: Request, work: LongWork) -> Response:
    image, found = parts.metadata.image, list[tuple[str, int]]()
    for name in image.scram_users.names():
        found.append((name, 1))
        await work.step(1)
    return _respond_described(image, request, found)


def _respond_described(image: ClusterImage, request: Request, asked: list[tuple[str, int]]) -> Response:
    """``asked``: the names of users, and how often each was named."""
    return request.respond(
        error_message=None, results=LazySequence(lambda each: _result(image, request, *each), asked)
    )


def _result(image: ClusterImage, request: Request, name: str, times: int) -> Message:
    credentials = image.scram_users.of(name)
    error, why = ErrorCode.none, None
    if times > 1:
        error = ErrorCode.duplicate_resource
        why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    elif not credentials:
        error = ErrorCode.resource_not_found
        why = f"Attempt to describe a user credential that does not exist: {name}"
    shown = () if why is not None else sorted(credentials.items(), key=lambda item: item[0].number)
    return request.make(
        "DescribeUserScramCredentialsResult",
        user=name,
        error_code=error,
        error_message=why,
        credential_infos=tuple(
            request.make("CredentialInfo", mechanism=mechanism.number, iterations=credential.iterations)
            for mechanism, credential in shown
        ),
    )


# AlterUserScramCredentials: set and delete the credentials of users (KIP-554).
#
# The client computes the salted password; only the keys derived from it are kept.

Outcomes = dict[str, Outcome]


def handle_alter(parts: Parts, request: Request) -> asyncio.Future[Response]:
    def decide(image: ClusterImage) -> Steps[Outcomes]:
        return decide_alter_scram_credentials(image, _alterations(request))

    return parts.controller_requests.decide(request, decide, _respond, _refuse, needs=Operation.ALTER)


def _alterations(request: Request) -> list[ScramAlteration]:
    deletions = [ScramDeletion(each.name, each.mechanism) for each in request.body.deletions]
    upsertions = [
        ScramUpsertion(each.name, each.mechanism, each.iterations, each.salt, each.salted_password)
        for each in request.body.upsertions
    ]
    return [*deletions, *upsertions]


def _respond(request: Request, outcomes: Outcomes) -> Response:
    return request.respond(
        results=LazySequence(lambda each: _altered(request, *each), list(outcomes.items()))
    )


def _altered(request: Request, user: str, outcome: Outcome) -> Message:
    return request.make(
        "AlterUserScramCredentialsResult",
        user=user,
        error_code=outcome.error,
        error_message=outcome.message,
    )


def _refuse(request: Request, error: ErrorCode, message: str) -> Response:
    changes = (*request.body.deletions, *request.body.upsertions)
    return _respond(request, dict.fromkeys((each.name for each in changes), Outcome(error, message)))


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            versions=(0, 0),
            handle=partial(handle_describe, parts),
            divisions=(Division(("users",), ("results",), repeated=Repeated.TOGETHER),),
            rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            versions=(0, 0),
            handle=partial(handle_alter, parts),
            forwardable=True,
            rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
        ),
    )
