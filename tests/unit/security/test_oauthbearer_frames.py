"""SASL/OAUTHBEARER: the frames of RFC 7628, and what each side makes of them."""

from __future__ import annotations

import pytest

from nilometer.security.oauthbearer import (
    BearerToken,
    InvalidToken,
    OAuthBearerClient,
    OAuthBearerServer,
    parse_client_first,
)
from nilometer.security.sasl import SaslRejected, session_lifetime_ms

TOKEN = BearerToken("alice", 5_000)


def validate(text: str) -> BearerToken:
    if text != "good.to-ken_1":
        raise InvalidToken("it is another one")
    return TOKEN


def test_the_client_and_the_server_agree() -> None:
    client, server = OAuthBearerClient("good.to-ken_1"), OAuthBearerServer(validate)
    assert client.begin() == b"n,,\x01auth=Bearer good.to-ken_1\x01\x01"
    answer = server.respond(client.begin())
    assert (answer, server.user, server.expires_ms, server.failure) == (b"", "alice", 5_000, None)
    assert client.respond(answer) is None
    assert client.is_complete
    with pytest.raises(SaslRejected, match="complete"):
        server.respond(client.begin())


def test_an_invalid_token_is_described_and_fails_when_the_client_has_acknowledged() -> None:
    client, server = OAuthBearerClient("other"), OAuthBearerServer(validate)
    answer = server.respond(client.begin())
    assert answer == b'{"status":"invalid_token"}'
    assert (server.user, server.failure) == (None, "it is another one")
    acknowledgement = client.respond(answer)
    assert acknowledgement == b"\x01"
    with pytest.raises(SaslRejected, match="another one") as rejected:
        server.respond(acknowledgement)
    assert rejected.value.shown == '{"status":"invalid_token"}'
    assert not client.is_complete
    with pytest.raises(SaslRejected):
        client.respond(b"")


def test_a_second_token_is_not_tried() -> None:
    server = OAuthBearerServer(validate)
    server.respond(OAuthBearerClient("other").begin())
    with pytest.raises(SaslRejected):
        server.respond(OAuthBearerClient("good.to-ken_1").begin())
    assert server.user is None


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=bEARER   t\x01\x01",
        b"n,a=alice,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer t\x01traceId=1 2\x01\x01",
        b"n,,\x01host=x\x01port=9092\x01auth=Bearer t\x01\x01",
    ],
)
def test_messages_that_rfc_7628_allows(message: bytes) -> None:
    assert parse_client_first(message).token == "t"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"y,,\x01auth=Bearer t\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Bearer t\x01\x01\x01",
        b"n,,\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a/b\x01\x01",
        b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
        b"n,,\x01auth=Bearer t\x01k\x01\x01",
        b"n,,\x01auth=Bearer t\xff\x01\x01",
        "n,,\x01auth=Bearer ť\x01\x01".encode(),
        b"n,," + b"a" * 100_000,
        b"n,,\x01auth=Bearer " + b"." * 100_000 + b"=\x01\x01",
    ],
)
def test_other_messages_are_rejected_without_a_word_of_them(message: bytes) -> None:
    with pytest.raises(SaslRejected) as rejected:
        OAuthBearerServer(validate).respond(message)
    assert rejected.value.shown is None
    assert len(str(rejected.value)) < 80


def test_the_user_is_the_tokens_subject_and_no_other() -> None:
    assert OAuthBearerServer(validate).respond(b"n,a=alice,\x01auth=Bearer good.to-ken_1\x01\x01") == b""
    server = OAuthBearerServer(validate)
    with pytest.raises(SaslRejected) as rejected:
        server.respond(b"n,a=root,\x01auth=Bearer good.to-ken_1\x01\x01")
    assert "different from the token's principal name (alice)" in (rejected.value.shown or "")
    assert server.user is None


@pytest.mark.parametrize("token", ["", "a b", "a\x01b", "a,b", "ä"])
def test_the_client_sends_no_token_that_would_break_the_frame(token: str) -> None:
    with pytest.raises(SaslRejected):
        OAuthBearerClient(token)


@pytest.mark.parametrize(
    ("expires_ms", "max_reauth_ms", "lifetime_ms"),
    [(None, 0, None), (None, 500, 500), (1_700, 0, 700), (1_700, 500, 500), (1_700, 900, 700), (900, 500, 0)],
)
def test_the_lifetime_of_a_session(
    expires_ms: int | None, max_reauth_ms: int, lifetime_ms: int | None
) -> None:
    assert session_lifetime_ms(expires_ms, 1_000, max_reauth_ms) == lifetime_ms
