"""Which clients may send requests for delegation tokens (KIP-48)."""

from __future__ import annotations

import pytest

from nilometer.broker.api.delegation_tokens import may_request_tokens
from nilometer.broker.request_context import RequestContext
from nilometer.security.principal import ANONYMOUS, Principal
from nilometer.security.protocol import SecurityProtocol

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
