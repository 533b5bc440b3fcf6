"""ForwardRequest, Nilometer's own API: a client's request, forwarded to the controller with its context.

Between brokers. Like Kafka's Envelope (KIP-590), but with the client's listener, and with addresses as text.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nilometer.wire.api_keys import NilometerApiKey

KEY = NilometerApiKey.FORWARD_REQUEST


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    principal_type: str
    principal_name: str
    client_address: str
    client_port: int
    listener: str
    security_protocol: str = "PLAINTEXT"
    """The protocol of that listener; not sent by versions that have PLAINTEXT only."""
    request: bytes
    """The frame that the client sent, without its length; the client id is in its header."""


class ForwardedResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    error_code: int = 0
    """Why the request was not executed: NOT_CONTROLLER, CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST."""
    message: str = ""
    response: bytes = b""
    """The frame for the client, without its length."""
