"""SCRAM: the exchange of RFC 7677, and what each side refuses."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.security.sasl import SaslRejected
from nilometer.security.scram import (
    SALT_BYTES,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    placeholder_credential,
    salt_of,
    salted_password,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
NONCE = CLIENT_NONCE + SERVER_NONCE
CLIENT_FIRST = f"n,,n=user,r={CLIENT_NONCE}"
SERVER_FIRST = f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
CLIENT_FINAL = f"c=biws,r={NONCE},p={PROOF}"
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def credential(mechanism: ScramMechanism, password: str, iterations: int = 4096) -> ScramCredential:
    salted = salted_password(mechanism, password, SALT, iterations)
    return credential_of(mechanism, salted, SALT, iterations)


def server(mechanism: ScramMechanism = SHA_256, **passwords: str) -> ScramServer:
    users = {user: credential(mechanism, password) for user, password in passwords.items()}
    return ScramServer(mechanism, users.get, SERVER_NONCE, b"key")


def test_the_exchange_of_rfc_7677() -> None:
    client, accepting = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE), server(user="pencil")
    assert client.begin() == CLIENT_FIRST.encode()
    assert accepting.respond(client.begin()) == SERVER_FIRST.encode()
    assert client.respond(SERVER_FIRST.encode()) == CLIENT_FINAL.encode()
    assert accepting.user is None
    assert accepting.respond(CLIENT_FINAL.encode()) == SERVER_FINAL.encode()
    assert not client.is_complete
    assert client.respond(SERVER_FINAL.encode()) is None
    assert client.is_complete
    assert accepting.user == "user"


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "Größe ü"])
def test_users_with_any_name_authenticate_and_wrong_passwords_do_not(
    mechanism: ScramMechanism, user: str
) -> None:
    for password in ("pässword", "other"):
        accepting = server(mechanism, **{user: "pässword"})
        client = ScramClient(mechanism, user, password, "abc")
        final = client.respond(accepting.respond(client.begin()))
        assert final is not None
        if password == "pässword":
            client.respond(accepting.respond(final))
            assert client.is_complete
            assert accepting.user == user
        else:
            with pytest.raises(SaslRejected, match="unknown user or wrong password"):
                accepting.respond(final)
            assert accepting.user is None


def test_an_unknown_user_gets_the_same_salt_each_time_and_fails_at_the_last_message() -> None:
    firsts = set[bytes]()
    for _ in range(2):
        client, accepting = ScramClient(SHA_256, "mallory", "x", "abc"), server(user="pencil")
        first = accepting.respond(client.begin())
        firsts.add(first)
        final = client.respond(first)
        assert final is not None
        with pytest.raises(SaslRejected, match="unknown user or wrong password"):
            accepting.respond(final)
    assert len(firsts) == 1


def test_the_salt_of_an_unknown_user_has_the_form_of_others_and_depends_on_the_secret() -> None:
    salts = {
        placeholder_credential(mechanism, user, key).salt
        for mechanism in ScramMechanism
        for user in ("mallory", "eve")
        for key in (b"key", b"other")
    }
    assert len(salts) == 8
    assert all(salt.isalnum() and len(salt) <= len(salt_of(b"\xff" * SALT_BYTES)) for salt in salts)


def test_a_proof_of_zeros_is_not_that_of_an_unknown_user() -> None:
    accepting = server(user="pencil")
    accepting.respond(b"n,,n=mallory,r=abc")
    proof = base64.b64encode(bytes(32)).decode()
    with pytest.raises(SaslRejected):
        accepting.respond(f"c=biws,r=abc{SERVER_NONCE},p={proof}".encode())


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n=user,r=abc",
        b"y,,n=user,r=abc",  # channel binding, which is refused as in Kafka
        b"p=tls-unique,,n=user,r=abc",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=us=er,r=abc",
        b"n,,r=abc,n=user",
        b"n,,m=ext,n=user,r=abc",
        b"n,,n=user,r=a\xc3\xa4",
        b"n,a=admin,n=user,r=abc",
        b"\xff\xfe",
    ],
)
def test_a_first_message_that_is_not_valid_is_refused(first: bytes) -> None:
    with pytest.raises(SaslRejected):
        server(user="pencil").respond(first)


def test_the_id_of_a_token_is_no_user() -> None:
    accepting = server(user="pencil")
    assert accepting.respond(f"{CLIENT_FIRST},tokenauth=true".encode()) != SERVER_FIRST.encode()


@pytest.mark.parametrize(
    "final",
    [
        f"c=eSws,r={NONCE},p={PROOF}",
        f"c=biws,r={CLIENT_NONCE}other,p={PROOF}",
        f"c=biws,r={NONCE},p=",
        f"c=biws,r={NONCE},p={PROOF[4:]}",
        f"c=biws,r={NONCE},p=AAAA{PROOF}",
        f"c=biws,r={NONCE},x=y,p={PROOF}",
        f"c=biws,r={NONCE}",
        "",
    ],
)
def test_a_last_message_that_does_not_fit_is_refused(final: str) -> None:
    accepting = server(user="pencil")
    accepting.respond(CLIENT_FIRST.encode())
    with pytest.raises(SaslRejected):
        accepting.respond(final.encode())
    assert accepting.user is None


def test_a_recorded_exchange_does_not_work_again() -> None:
    accepting = ScramServer(SHA_256, {"user": credential(SHA_256, "pencil")}.get, "new", b"key")
    accepting.respond(CLIENT_FIRST.encode())
    with pytest.raises(SaslRejected, match="another nonce"):
        accepting.respond(CLIENT_FINAL.encode())


@pytest.mark.parametrize(
    "first",
    [
        SERVER_FIRST.replace(CLIENT_NONCE, "other"),
        SERVER_FIRST.replace(SERVER_NONCE, ""),
        SERVER_FIRST.replace("4096", "4095"),
        SERVER_FIRST.replace("4096", "1000001"),
        SERVER_FIRST.replace("i=4096", "i=x"),
        "e=other-error",
        "",
    ],
)
def test_a_client_refuses_such_a_first_answer(first: str) -> None:
    with pytest.raises(SaslRejected):
        ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE).respond(first.encode())


@pytest.mark.parametrize("final", [SERVER_FINAL.replace("6rri", "7rri"), "e=invalid-proof", "v=", ""])
def test_a_client_trusts_no_server_that_does_not_know_its_keys(final: str) -> None:
    client = ScramClient(SHA_256, "user", "pencil", CLIENT_NONCE)
    client.respond(SERVER_FIRST.encode())
    with pytest.raises(SaslRejected):
        client.respond(final.encode())
    assert not client.is_complete


def test_no_key_is_shown() -> None:
    assert repr(credential(SHA_512, "pencil", 8192)) == "ScramCredential(iterations=8192)"


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_refused_or_answered(first: bytes, final: bytes) -> None:
    accepting = server()
    for message in (first, CLIENT_FIRST.encode(), final):
        try:
            accepting.respond(message)
        except SaslRejected:
            continue
    assert accepting.user is None


def test_a_message_has_a_bound() -> None:
    """It comes before any login, and reading it holds the event loop."""
    longest = b"n,,n=user,r="
    accepting = server(user="pencil")
    assert accepting.respond(longest + b"a" * (16 * 1024 - len(longest)))
    with pytest.raises(SaslRejected, match="more than 16384 bytes"):
        server(user="pencil").respond(longest + b"a" * (16 * 1024 - len(longest) + 1))
