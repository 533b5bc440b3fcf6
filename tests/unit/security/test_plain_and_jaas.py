"""SASL/PLAIN, and the login modules that name its users."""

from __future__ import annotations

import pytest

from nilometer.security.sasl import (
    PLAIN_MODULE,
    InvalidJaas,
    PlainClient,
    PlainServer,
    SaslRejected,
    client_jaas,
    parse_jaas,
)

USERS = {"alice": "secret", "bob": "passwörd"}


def test_a_user_with_the_right_password_is_let_in() -> None:
    for user, password in USERS.items():
        accepting, client = PlainServer(USERS), PlainClient(user, password)
        assert client.respond(accepting.respond(client.begin())) is None
        assert client.is_complete
        assert accepting.user == user


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (b"\0alice\0other", "Invalid username or password"),
        (b"\0mallory\0secret", "Invalid username or password"),
        (b"\0mallory\0\0", "expected 3 tokens, got 4"),
        (b"alice", "expected 3 tokens, got 1"),
        (b"\0\0secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"bob\0alice\0secret", "an authorization id that is different from username"),
        (b"\0alice\0\xff", "not UTF-8"),
    ],
)
def test_others_are_not_and_nothing_they_sent_is_shown(message: bytes, shown: str) -> None:
    accepting = PlainServer(USERS)
    with pytest.raises(SaslRejected, match=shown) as rejected:
        accepting.respond(message)
    assert accepting.user is None
    assert "secret" not in f"{rejected.value} {rejected.value.shown}"


def test_an_authorization_id_may_repeat_the_user() -> None:
    accepting = PlainServer(USERS)
    accepting.respond(b"alice\0alice\0secret")
    assert accepting.user == "alice"


@pytest.mark.parametrize(
    "text", ["alice", "a b", 'say "x";', "back\\slash\\", "\\n", "line\nend", "=;,'", "é水", '\\"']
)
def test_any_user_and_password_are_read_as_they_were_written(text: str) -> None:
    assert parse_jaas(client_jaas(PLAIN_MODULE, text, text[::-1])).options == {
        "username": text,
        "password": text[::-1],
    }


def test_a_login_module_is_read_as_java_writes_it() -> None:
    module = parse_jaas(
        f'{PLAIN_MODULE} required\n  username="admin" password="a\\"b;=c"\n'
        "  user_alice=\"x y\" user_bob='z' ;\n"
    )
    assert module.name == PLAIN_MODULE
    assert module.options == {"username": "admin", "password": 'a"b;=c', "user_alice": "x y", "user_bob": "z"}
    assert module.users() == {"alice": "x y", "bob": "z"}
    assert "x y" not in repr(module)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "use MODULE required"),
        ("a.Module required", "semicolon"),
        ('a.Module always user="secret";', "required, requisite"),
        ('a.Module required user="secret" password;', "option 2 is not of the form"),
        ("a.Module required user=;", "option 1 is not of the form"),
        ('a.Module required user="secret', "quotation mark"),
        ("a.Module required; b.Module required;", "more than one"),
    ],
)
def test_another_text_is_refused_without_being_shown(text: str, why: str) -> None:
    with pytest.raises(InvalidJaas, match=why) as refused:
        parse_jaas(text)
    assert "secret" not in str(refused.value)
