"""The settings of a broker with an OAUTHBEARER listener, and logins by tokens."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.security.oauthbearer import OAuthBearerClient
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message

from ..issuer import AUDIENCE, ISSUER
from ..wire.wire_peer import WirePeer


def oauth_settings(keys_url: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what makes the listener SASL_PLAINTEXT accept the tokens of the test's issuer, beside PLAIN."""
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
        ),
        "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": keys_url,
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": keys_url,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": f"another,{AUDIENCE}",
        **(more or {}),
    }


def begin(peer: WirePeer, mechanism: str = "OAUTHBEARER") -> None:
    assert peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism).error_code == ErrorCode.none


def present(peer: WirePeer, token: str, version: int = 2) -> Message:
    """Send the token; return the broker's response."""
    begin(peer)
    return peer.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=OAuthBearerClient(token).begin())


def outcome(peer: WirePeer, token: str) -> ErrorCode:
    """Log in by the token, to the end of the exchange; return its error code."""
    answer = present(peer, token)
    if answer.error_code == ErrorCode.none and answer.auth_bytes:
        assert answer.auth_bytes == b'{"status":"invalid_token"}'
        answer = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\x01")
        assert answer.error_message == '{"status":"invalid_token"}'
    return answer.error_code


def is_served(peer: WirePeer) -> bool:
    return peer.ask(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False).controller_id == 1
