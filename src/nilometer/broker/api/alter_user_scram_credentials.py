"""AlterUserScramCredentials: set and delete the credentials of users (KIP-554).

The client computes the salted password; only the keys derived from it are kept.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.credentials import (
    ScramAlteration,
    ScramDeletion,
    ScramUpsertion,
    decide_alter_scram_credentials,
)
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

Outcomes = dict[str, Outcome]


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    alterations = _alterations(request)

    def decide(image: ClusterImage) -> Decision[Outcomes]:
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
    return request.respond(throttle_time_ms=0, results=results)


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    users = dict.fromkeys(each.user for each in _alterations(request))
    return _respond(services, request, {user: Outcome(error, message) for user in users})


API = ApiSpec(
    key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    handle=handle,
    forwardable=True,
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
