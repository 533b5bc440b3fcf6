"""Which clients may send requests for delegation tokens (KIP-48)."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api.delegation_tokens import describe, may_request_tokens
from nilometer.broker.api.spec import Request
from nilometer.broker.request_context import RequestContext
from nilometer.broker.turns import Turns
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import DelegationTokenChanged
from nilometer.runtime.runtime import SystemClock
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.principal import ANONYMOUS, Principal, SecurityProtocol
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of
from support.brokers.listings_at_once import ListingsAtOnce

ALICE = Principal("User", "alice")


@pytest.mark.parametrize("protocol", SecurityProtocol)
@pytest.mark.parametrize("principal", [ANONYMOUS, ALICE])
@pytest.mark.parametrize("by_token", [False, True])
def test_only_authenticated_clients_may_and_not_by_a_token(
    protocol: SecurityProtocol, principal: Principal, by_token: bool
) -> None:
    """SASL may have a user ANONYMOUS; on an SSL listener that is a client without a certificate."""
    is_allowed = not by_token and (
        protocol.has_sasl or (protocol is SecurityProtocol.SSL and principal == ALICE)
    )
    context = RequestContext(principal=principal, security_protocol=protocol, by_token=by_token)
    assert may_request_tokens(context) is is_allowed


def test_many_owners_and_many_tokens_take_no_step_for_each_pair() -> None:
    """A request may name hundreds of thousands of owners: nothing else would be served meanwhile."""
    image, codec, count = ClusterImage(), api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3), 300
    for number in range(count):
        token = DelegationToken(
            owner=f"User:{number}", requester="User:alice", issued_ms=0, max_ms=9, expires_ms=9
        )
        image.tokens.apply(DelegationTokenChanged(id=f"id {number}", token=token))
    owners = tuple(
        codec.make_request("DescribeDelegationTokenOwner", principal_type="User", principal_name=name)
        for name in ("7", *(f"other {number}" for number in range(count)))
    )
    context = RequestContext(principal=ALICE, security_protocol=SecurityProtocol.SASL_SSL)
    header = RequestHeader(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, 1, "test", 0)
    request = Request(header, codec.request(owners=owners), codec, cast(Any, None), context)
    parts = SimpleNamespace(
        metadata=SimpleNamespace(image=image),
        tokens=SimpleNamespace(hmac_of=lambda _: b"hmac"),
        rights=rights_of(),
        listings=ListingsAtOnce(Turns(SystemClock())),
    )
    steps = 0

    async def ask() -> Any:
        return await cast(Any, describe(cast(Any, parts), request))

    def count_step(*_: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count_step)
    try:
        reply = asyncio.run(ask())
    finally:
        sys.setprofile(None)
    assert reply is not None and steps < count * count
    answer = decode_response(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, b"".join(map(bytes, reply))[4:])[1]
    assert [token.token_id for token in answer.tokens] == ["id 7"]
