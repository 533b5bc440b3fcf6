"""The login before the pages: what is served without a session, cookies, failures, and foreign sites."""

from __future__ import annotations

import asyncio
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.types import ASGIApp

from nilometer.console.reading.cluster_access import CannotLogIn, check_login, settings_of_user
from nilometer.console.serving import Changes
from nilometer.console.web.guard import Guard, Served
from nilometer.console.web.live_page import Rendering
from nilometer.console.web.login import (
    FORM_BYTES_MAX,
    NAME_MAX,
    PASSWORD_MAX,
    WRONG,
    Credentials,
    LoginAttempts,
    LoginGate,
    Sessions,
    own_path,
)
from nilometer.security.sasl import parse_jaas
from nilometer.wire.errors import ErrorCode, KafkaError
from support.console.asgi_client import HOST, Answer, ask
from support.console.sessions import Clock, Opened, Sleeps

ORIGIN = ("origin", f"https://{HOST}")
COOKIE = "__Host-nilometer-8080"
JSON = ("accept", "application/json")
EVENTS = ("accept", "text/event-stream")


class Console:
    """A console whose brokers know alice."""

    def __init__(self) -> None:
        self.sleeps = Sleeps()
        self.opened: list[Opened] = []
        clock = Clock()
        self.sessions = Sessions(clock)
        attempts = LoginAttempts(clock, self.sleeps.sleep)
        gate = LoginGate(self.sessions, attempts, Rendering(changes=Changes.RECORDS), self._open, 8080)
        self.app: ASGIApp = Guard(gate, Served("https", None))

    async def _open(self, found: Credentials) -> Opened:
        if found.user == "no response":
            raise KafkaError(ErrorCode.network_exception, "no broker is known")
        if (found.user, found.password) != ("alice", "secret \u6c34"):
            raise KafkaError(ErrorCode.sasl_authentication_failed, f"127.0.0.1:9092 rejects {found}")
        self.opened.append(Opened(found.user))
        return self.opened[-1]

    def ask(self, target: str, *headers: tuple[str, str], token: str | None = None, **more: Any) -> Answer:
        cookie = [("cookie", f"{COOKIE}={token}")] if token is not None else []
        return ask(self.app, target, headers=[*headers, *cookie], **more)

    def log_in(
        self, user: str = "alice", password: str = "secret \u6c34", target: str = "/", **more: Any
    ) -> Answer:
        body = urlencode({"user": user, "password": password, "next": target}).encode()
        return self.ask("/login", ORIGIN, method="POST", body=body, **more)


def token_of(answer: Answer) -> str:
    return SimpleCookie(answer.headers["set-cookie"])[COOKIE].value


def test_without_a_session_there_is_the_login_only() -> None:
    console = Console()
    sent_on = console.ask("/topics?q=a%20b&page=2")
    assert (sent_on.status, sent_on.headers["location"]) == (
        303,
        "/login?next=%2Ftopics%3Fq%3Da%2520b%26page%3D2",
    )
    assert console.ask("/").headers["location"] == "/login"
    for target in ("/topics/t/0", "/topics/t/tail", "/replay", "/static", "/login/x", "/Login"):
        assert console.ask(target).status == 303, target
        assert console.ask(target, EVENTS).status == 401, target
        assert console.ask(target, JSON).status == 401, target
        assert console.ask(target, ORIGIN, method="POST").status == 401, target
    assert console.opened == []
    assert console.ask("/static/console.css").status == 200
    assert console.ask("/session", JSON).document == {"user": None}
    for guess in ("", "x" * 43, "\u00e9"):
        assert console.ask("/", token=guess).status == 303


def test_a_login_opens_the_pages_of_its_user() -> None:
    console = Console()
    form = console.ask("/login?next=/topics")
    assert (form.status, 'name="next" value="/topics"' in form.text) == (200, True)
    done = console.log_in(target="/topics?q=a")
    assert (done.status, done.headers["location"]) == (303, "/topics?q=a")
    flags = {part.strip().lower() for part in done.headers["set-cookie"].split(";")[1:]}
    assert flags == {"httponly", "path=/", "samesite=strict", "secure"}
    token = token_of(done)
    page = console.ask("/topics", token=token)
    assert (page.status, page.text) == (200, "pages of alice")
    assert page.headers["cache-control"] == "no-store"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert console.ask("/session", JSON, token=token).document == {"user": "alice"}
    again = console.ask("/login?next=/groups", token=token)
    assert (again.status, again.headers["location"]) == (303, "/groups")


def test_a_new_login_and_a_logout_end_the_session() -> None:
    console = Console()
    first = token_of(console.log_in())
    second = token_of(console.log_in(token=first))
    assert first != second
    assert (console.ask("/", token=first).status, console.opened[0].closed) == (303, 1)
    assert console.ask("/logout", token=second).status == 405, "a link does not log out"
    assert console.ask("/logout", method="POST", token=second).status == 403
    assert console.ask("/", token=second).status == 200
    left = console.ask("/logout", ORIGIN, method="POST", token=second)
    assert (left.status, left.headers["location"]) == (303, "/login")
    assert f'{COOKIE}=""' in left.headers["set-cookie"]
    assert (console.ask("/", token=second).status, console.opened[1].closed) == (303, 1)


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "other"), ("mallory", "secret \u6c34"), ("alice ", "third-secret")]
)
def test_a_failed_login_is_delayed_and_says_nothing_more(
    user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    console = Console()
    answers = [console.log_in(user, password) for _ in range(3)]
    assert [answer.status for answer in answers] == [403] * 3
    assert all(WRONG in answer.text and "set-cookie" not in answer.headers for answer in answers)
    assert console.sleeps.seconds == [1, 2, 4]
    assert len(console.sessions) == 0
    assert password not in answers[0].text + caplog.text
    assert "A login from 127.0.0.1 failed" in caplog.text


def test_brokers_that_do_not_respond_are_no_failure_of_the_user() -> None:
    console = Console()
    answer = console.log_in("no response")
    assert (answer.status, "No broker verifies the user: no broker is known" in answer.text) == (503, True)
    assert console.sleeps.seconds == []


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("", "x"),
        ("alice", ""),
        ("x" * (NAME_MAX + 1), "x"),
        ("alice", "x" * (PASSWORD_MAX + 1)),
        ("a\0b", "x"),
    ],
)
def test_a_form_that_no_user_has_is_not_tried(user: str, password: str) -> None:
    console = Console()
    assert console.log_in(user, password).status == 400
    assert console.sleeps.seconds == []


def test_a_large_form_is_refused() -> None:
    console = Console()
    assert console.ask("/login", ORIGIN, method="POST", body=b"x" * (FORM_BYTES_MAX + 1)).status == 413


def test_what_was_entered_never_becomes_markup() -> None:
    hostile = '"><script>alert(1)</script>'
    answer = Console().log_in(hostile, hostile, hostile)
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;" in answer.text


def test_another_site_logs_no_user_in_or_out() -> None:
    console = Console()
    body = urlencode({"user": "alice", "password": "secret \u6c34"}).encode()
    for headers in (
        (),
        (("origin", "https://foreign.example"),),
        (("origin", "null"),),
        (ORIGIN, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")),
    ):
        assert console.ask("/login", *headers, method="POST", body=body).status == 403
        assert console.ask("/logout", *headers, method="POST").status == 403
    assert console.opened == []


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("/topics/t?x=1&y=/a//b", "/topics/t?x=1&y=/a//b"),
        ("/group?id=\u6c34", "/group?id=\u6c34"),
        ("//foreign.example", "/"),
        ("/\\foreign.example", "/"),
        ("/\t/foreign.example", "/"),
        ("/a\nSet-Cookie: x", "/"),
        ("https://foreign.example", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_the_own_pages_only(target: str, found: str) -> None:
    assert own_path(target) == found


def test_sessions_that_are_over_are_closed_while_others_go_on() -> None:
    console = Console()
    token = token_of(console.log_in())
    asyncio.run(console.sessions.end(token))
    assert console.ask("/", token=token).status == 303


# --- settings


@pytest.mark.parametrize(
    ("client", "why"),
    [
        ({}, "security.protocol=PLAINTEXT the brokers have none"),
        ({"security.protocol": "SSL"}, "security.protocol=SSL the brokers have none"),
        (
            {"security.protocol": "SASL_SSL"},
            "set sasl.mechanism to one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "set sasl.mechanism to one of"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": "…"},
            "remove sasl.jaas.config",
        ),
    ],
)
def test_settings_with_which_no_user_can_log_in_are_refused(client: dict[str, str], why: str) -> None:
    with pytest.raises(CannotLogIn, match=why):
        check_login(client)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_connects_with_the_own_password(mechanism: str) -> None:
    client = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "ssl.truststore.location": "ca.pem",
    }
    check_login(client)
    found = settings_of_user(client, 'al"ice', "p\\;=")
    module = parse_jaas(found.pop("sasl.jaas.config"))
    assert found == client
    assert module.options == {"username": 'al"ice', "password": "p\\;="}
    assert ("Plain" if mechanism == "PLAIN" else "Scram") in module.name
