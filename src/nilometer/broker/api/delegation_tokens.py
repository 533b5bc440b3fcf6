"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48,
KIP-373).

A client that is not authenticated, or that logged in by a token, gets DELEGATION_TOKEN_REQUEST_NOT_ALLOWED:
so a stolen token cannot be exchanged for others. The broker that the client is connected to checks that,
before it forwards the request. The answers are those of Kafka, also in their times: -1 if a broker refuses,
0 if the controller does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import NO_RIGHTS, ApiSpec, Request, Right
from nilometer.broker.authorizer import Access
from nilometer.broker.connection import Response
from nilometer.broker.request_context import RequestContext
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.access import (
    TokenRequest,
    check_principals,
    decide_create_token,
    decide_expire_token,
    decide_renew_token,
)
from nilometer.cluster.controller.decision import Decision, Refusal
from nilometer.cluster.image import ClusterImage
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.principal import ANONYMOUS, Principal, SecurityProtocol
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, milliseconds

if TYPE_CHECKING:
    from nilometer.broker.authentication.known_tokens import KnownTokens
import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.runtime import Runtime


class Parts(msgspec.Struct, frozen=True):
    runtime: Runtime
    listings: Listings
    metadata: MetadataLog
    tokens: KnownTokens | None
    """None: there are no delegation tokens."""
    rights: Rights
    controller_requests: ControllerRequests


NO_TIME_MS = -1
_DISABLED = "Delegation tokens are not enabled: delegation.token.secret.key is not set."


def may_request_tokens(context: RequestContext) -> bool:
    """Return whether the client may send requests for tokens: it is authenticated, and not by a token."""
    if context.by_token or context.security_protocol is SecurityProtocol.PLAINTEXT:
        return False
    return context.security_protocol is not SecurityProtocol.SSL or context.principal != ANONYMOUS


def _enabled(parts: Parts) -> KnownTokens:
    """Return the tokens. Raises Refusal (DELEGATION_TOKEN_AUTH_DISABLED) if this broker has no key."""
    if parts.tokens is None:
        raise Refusal(ErrorCode.delegation_token_auth_disabled, _DISABLED)
    return parts.tokens


# ── create


def create(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    wanted = _token_request(request)
    error = _why_not_create(parts, request, wanted)
    if error is not None:
        return _respond_refused(request, wanted, error, NO_TIME_MS)

    def decide(image: ClusterImage) -> Decision[tuple[str, DelegationToken]]:
        lifetimes, runtime = _enabled(parts).lifetimes, parts.runtime
        return decide_create_token(
            image, wanted, lifetimes, now_ms=runtime.clock.wall_ms(), chance=runtime.entropy
        )

    def refuse(request: Request, error: ErrorCode, _message: str) -> Response:
        return _respond_refused(request, wanted, error, 0)

    return parts.controller_requests.decide(request, decide, partial(_respond_created, parts), refuse)


def _token_request(request: Request) -> TokenRequest:
    body = request.body
    requester = request.context.principal
    name: str | None = request.field("owner_principal_name")
    owner = Principal(request.field("owner_principal_type") or "", name) if name else requester
    return TokenRequest(
        requester=requester,
        owner=owner,
        renewers=[Principal(each.principal_type, each.principal_name) for each in body.renewers],
        max_lifetime_ms=milliseconds(body.max_lifetime),
    )


def _why_not_create(parts: Parts, request: Request, wanted: TokenRequest) -> ErrorCode | None:
    if not may_request_tokens(request.context):
        return ErrorCode.delegation_token_request_not_allowed
    if wanted.owner != wanted.requester and not parts.rights.access(request).allows(
        Operation.CREATE_TOKENS, ResourceType.USER, str(wanted.owner)
    ):
        return ErrorCode.delegation_token_authorization_failed
    try:
        check_principals(wanted)
    except Refusal as refusal:
        return refusal.code
    return None


def _respond_created(parts: Parts, request: Request, created: tuple[str, DelegationToken]) -> Response:
    token_id, token = created
    owner, requester = _parts(token.owner), _parts(token.requester)
    return request.respond(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token_id,
        hmac=_enabled(parts).hmac_of(token_id),
    )


def _respond_refused(request: Request, wanted: TokenRequest, error: ErrorCode, time_ms: int) -> Response:
    return request.respond(
        error_code=error,
        principal_type=wanted.owner.type,
        principal_name=wanted.owner.name,
        token_requester_principal_type=wanted.requester.type,
        token_requester_principal_name=wanted.requester.name,
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
        token_id="",
        hmac=b"",
    )


# ── renew, expire


def renew(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not may_request_tokens(request.context):
        return _respond_expiry(request, ErrorCode.delegation_token_request_not_allowed, NO_TIME_MS)
    period_ms = milliseconds(request.body.renew_period)

    def decide(image: ClusterImage) -> Decision[int]:
        tokens, now_ms = _enabled(parts), parts.runtime.clock.wall_ms()
        token_id, requester = tokens.id_of(request.body.hmac), request.context.principal
        return decide_renew_token(image, token_id, requester, period_ms, tokens.lifetimes, now_ms=now_ms)

    return parts.controller_requests.decide(request, decide, _respond_expires, _refuse_expiry)


def expire(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not may_request_tokens(request.context):
        return _respond_expiry(request, ErrorCode.delegation_token_request_not_allowed, NO_TIME_MS)
    period_ms = milliseconds(request.body.expiry_time_period)

    def decide(image: ClusterImage) -> Decision[int]:
        token_id = _enabled(parts).id_of(request.body.hmac)
        now_ms = parts.runtime.clock.wall_ms()
        return decide_expire_token(image, token_id, request.context.principal, period_ms, now_ms=now_ms)

    return parts.controller_requests.decide(request, decide, _respond_expires, _refuse_expiry)


def _respond_expires(request: Request, expires_ms: int) -> Response:
    return _respond_expiry(request, ErrorCode.none, expires_ms)


def _refuse_expiry(request: Request, error: ErrorCode, _message: str) -> Response:
    return _respond_expiry(request, error, 0)


def _respond_expiry(request: Request, error: ErrorCode, expires_ms: int) -> Response:
    return request.respond(error_code=error, expiry_timestamp_ms=expires_ms)


# ── describe


def describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not may_request_tokens(request.context):
        return _respond_described(request, ErrorCode.delegation_token_request_not_allowed)
    if parts.tokens is None:
        return _respond_described(request, ErrorCode.delegation_token_auth_disabled)
    return parts.listings.answer(request, partial(_describe, parts, parts.tokens))


async def _describe(parts: Parts, tokens: KnownTokens, request: Request, work: LongWork) -> Response:
    access, principal = parts.rights.access(request), str(request.context.principal)
    wanted = _wanted_owners(request)
    shown: list[tuple[str, DelegationToken]] = []
    for token_id, token in parts.metadata.image.tokens.items():
        if (wanted is None or not wanted.isdisjoint(token.principals)) and (
            principal in token.principals or _may_describe(access, token_id, token)
        ):
            shown.append((token_id, token))
        await work.step(len(token.principals))
    described = LazySequence(lambda each: _described(request, *each, tokens), shown)
    return _respond_described(request, ErrorCode.none, described)


def _respond_described(request: Request, error: ErrorCode, described: Sequence[Message] = ()) -> Response:
    return request.respond(error_code=error, tokens=described)


def _wanted_owners(request: Request) -> frozenset[str] | None:
    """Return the principals whose tokens the client asks for; None: all."""
    owners = request.body.owners
    if owners is None:
        return None
    return frozenset(str(Principal(each.principal_type, each.principal_name)) for each in owners)


def _may_describe(access: Access, token_id: str, token: DelegationToken) -> bool:
    return access.allows(
        Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id, report=False
    ) or access.allows(Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, report=False)


def _described(request: Request, token_id: str, token: DelegationToken, tokens: KnownTokens) -> Message:
    owner, requester = _parts(token.owner), _parts(token.requester)
    return request.make(
        "DescribedDelegationToken",
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token_id,
        hmac=tokens.hmac_of(token_id),
        renewers=LazySequence(partial(_renewer, request), token.renewers),
    )


def _renewer(request: Request, renewer: str) -> Message:
    principal = _parts(renewer)
    return request.make(
        "DescribedDelegationTokenRenewer", principal_type=principal.type, principal_name=principal.name
    )


def _parts(principal: str) -> Principal:
    """Return the parts of a principal in the metadata; its name may be empty."""
    kind, _, name = principal.partition(":")
    return Principal(kind, name)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.CREATE_DELEGATION_TOKEN,
            versions=(1, 3),
            handle=partial(create, parts),
            forwardable=True,
            rights=(Right(Operation.CREATE_TOKENS, ResourceType.USER),),
        ),
        ApiSpec(
            key=ApiKey.RENEW_DELEGATION_TOKEN,
            versions=(1, 2),
            handle=partial(renew, parts),
            forwardable=True,
            rights=NO_RIGHTS,
        ),
        ApiSpec(
            key=ApiKey.EXPIRE_DELEGATION_TOKEN,
            versions=(1, 2),
            handle=partial(expire, parts),
            forwardable=True,
            rights=NO_RIGHTS,
        ),
        ApiSpec(
            key=ApiKey.DESCRIBE_DELEGATION_TOKEN,
            versions=(1, 3),
            handle=partial(describe, parts),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
                Right(Operation.DESCRIBE_TOKENS, ResourceType.USER),
            ),
        ),
    )
