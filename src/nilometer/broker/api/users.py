"""DescribeUserScramCredentials and AlterUserScramCredentials: the SCRAM credentials of users, never their
keys (KIP-554).
"""

from __future__ import annotations

import asyncio
from collections import Counter

from nilometer.broker.api.access import CLUSTER_DENIED, access_of
from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.replies import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.credentials import (
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

# DescribeUserScramCredentials: mechanisms and iterations of credentials, without the keys (KIP-554).


def handle_describe(services: Services, request: Request) -> Reply:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE):
        denied = ErrorCode.cluster_authorization_failed
        refused = request.make(
            "DescribeUserScramCredentialsResult",
            user="",
            error_code=denied,
            error_message=CLUSTER_DENIED,
            credential_infos=(),
        )
        return request.respond(error_code=denied, error_message=CLUSTER_DENIED, results=(refused,))
    image = services.image
    asked = Counter(user.name for user in request.body.users or ()) or Counter(image.scram_users.names())
    return request.respond(
        error_message=None,
        results=LazySequence(lambda each: _result(image, request, *each), list(asked.items())),
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


DESCRIBE = ApiSpec(
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    handle=handle_describe,
    divisions=(Division(("users",), ("results",), repeated=Repeated.TOGETHER),),
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)


# AlterUserScramCredentials: set and delete the credentials of users (KIP-554).
#
# The client computes the salted password; only the keys derived from it are kept.

Outcomes = dict[str, Outcome]


def handle_alter(services: Services, request: Request) -> asyncio.Future[Reply]:
    alterations = _alterations(request)

    def decide(image: ClusterImage) -> Steps[Outcomes]:
        return decide_alter_scram_credentials(image, alterations)

    return on_controller(services, request, decide, _respond, _refuse, needs=Operation.ALTER)


def _alterations(request: Request) -> list[ScramAlteration]:
    deletions = [ScramDeletion(each.name, each.mechanism) for each in request.body.deletions]
    upsertions = [
        ScramUpsertion(each.name, each.mechanism, each.iterations, each.salt, each.salted_password)
        for each in request.body.upsertions
    ]
    return [*deletions, *upsertions]


def _respond(services: Services, request: Request, outcomes: Outcomes) -> Reply:
    results = tuple(
        request.make(
            "AlterUserScramCredentialsResult",
            user=user,
            error_code=outcome.error,
            error_message=outcome.message,
        )
        for user, outcome in outcomes.items()
    )
    return request.respond(results=results)


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    users = dict.fromkeys(each.user for each in _alterations(request))
    return _respond(services, request, {user: Outcome(error, message) for user in users})


ALTER = ApiSpec(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    handle=handle_alter,
    forwardable=True,
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
