"""DescribeUserScramCredentials: mechanisms and iterations of credentials, without the keys (KIP-554)."""

from __future__ import annotations

from collections import Counter

from nilometer.broker.api.access import CLUSTER_DENIED, access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE):
        denied = ErrorCode.cluster_authorization_failed
        refused = request.make(
            "DescribeUserScramCredentialsResult",
            user="",
            error_code=denied,
            error_message=CLUSTER_DENIED,
            credential_infos=(),
        )
        return request.respond(
            throttle_time_ms=0, error_code=denied, error_message=CLUSTER_DENIED, results=(refused,)
        )
    image = services.image
    asked = Counter(user.name for user in request.body.users or ()) or Counter(image.scram_users.names())
    return request.respond(
        throttle_time_ms=0,
        error_code=ErrorCode.none,
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


API = ApiSpec(
    key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions=(0, 0),
    handle=handle,
    divisions=(Division(("users",), ("results",), repeated=Repeated.TOGETHER),),
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
