"""Delegation tokens as Apache Kafka issues, renews, expires and describes them, and logs clients in by them.

Compared are whole answers, as plain data: ids get names, an HMAC is the one of its id or it is not, and times
are told by their distance from others, since the two brokers are asked at different moments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import milliseconds, milliseconds_since_epoch
from nilometer.wire.errors import ErrorCode
from support.authorization.prepared import AUTHORIZER, create_acls
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.token_requests import (
    create,
    describe,
    expire,
    hmac_of,
    log_in,
    log_in_by_token,
    renew,
    token_settings,
)
from support.brokers.two_brokers import Side, differences
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka
from support.ports import HOST, free_ports
from support.wire.wire_peer import ConnectionEnded, WirePeer

pytestmark = pytest.mark.java
USERS = {name: f"{name}-password" for name in ("alice", "bob", "carol", "dora", "root")}
MAX_MS, RENEWAL_MS = 3_600_000, 600_000
LONGEST = 2**63 // 1000 - 1
OVERRIDES = {
    **token_settings(USERS),
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS;User:root",
    "delegation.token.max.lifetime.ms": str(MAX_MS),
    "delegation.token.expiry.time.ms": str(RENEWAL_MS),
}
USER = ResourceType.USER
ACLS = [
    (USER, "User:alice", "bob", Operation.CREATE_TOKENS),
    (USER, "User:alice", "carol", Operation.DESCRIBE_TOKENS),
]
Told = Any
WAIT_S = 60.0
"""Kafka's brokers and its controller learn of a token after the answer, on a busy machine much later."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    eventually(condition, what, timeout_s=WAIT_S)


class TokenSide:
    """One of the two brokers. ``bootstrap``: of its SASL listener."""

    def __init__(self, name: str, open_bootstrap: str, bootstrap: str) -> None:
        self.name, self.open_bootstrap, self.bootstrap = name, open_bootstrap, bootstrap
        self._open = ExitStack()
        self._peers: dict[str, WirePeer] = {}
        self.names: dict[str, str] = {}
        """By id, the names of tokens."""
        self.tokens: dict[str, tuple[str, bytes]] = {}
        self.admin = Side(name, open_bootstrap)
        create_acls(
            self.admin,
            [
                Acl(kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW)
                for kind, name, user, operation in ACLS
            ],
        )
        wait_until(lambda: create(self.user("bob"), owner="User:alice").error_code == ErrorCode.none, name)
        self.forget_all()

    def connect(self) -> WirePeer:
        return self._open.enter_context(WirePeer(self.bootstrap))

    def user(self, name: str) -> WirePeer:
        if name not in self._peers:
            self._peers[name] = log_in(self.connect(), name, USERS[name])
        return self._peers[name]

    def forget_all(self) -> None:
        """Remove all tokens: those of each owner by the owner."""

        def has_none() -> bool:
            left = describe(self.user("root")).tokens
            for token in left:
                expire(self.user(token.principal_name), token.hmac)
            return not left

        wait_until(has_none, f"{self.name} has no tokens")
        self.tokens.clear()
        self.names.clear()

    def new(self, name: str, user: str, **fields: Any) -> Told:
        """Create a token and give it a name; return what was answered, once it is described."""
        answer = create(self.user(user), **fields)
        if answer.error_code == ErrorCode.none:
            self.names[answer.token_id] = name
            self.tokens[name] = (answer.token_id, answer.hmac)
            known = lambda: any(  # noqa: E731
                token.token_id == answer.token_id for token in describe(self.user("root")).tokens
            )
            wait_until(known, f"{self.name} knows {name}")
        return self.told_created(answer)

    def told_created(self, answer: Any) -> Told:
        times = [
            milliseconds_since_epoch(each) if each is not None else -1
            for each in (answer.issue_timestamp, answer.expiry_timestamp, answer.max_timestamp)
        ]
        told: Told = {
            "error": answer.error_code.name,
            "owner": (answer.principal_type, answer.principal_name),
            "id": len(answer.token_id),
            "hmac": answer.hmac == hmac_of(answer.token_id) if answer.hmac else "none",
            "times": [each - times[0] for each in times] if times[0] > 0 else times,
            "throttled": milliseconds(answer.throttle_time),
        }
        if hasattr(answer, "token_requester_principal_type"):
            told["requester"] = (answer.token_requester_principal_type, answer.token_requester_principal_name)
        return told

    def told_expiry(self, ask: Callable[[], Any], name: str | None = None) -> Told:
        """Tell the expiry as the maximum of the token ``name``, or as its distance from the request."""
        [until] = [
            token.max_timestamp
            for token in describe(self.user("root")).tokens
            if self.names.get(token.token_id) == name
        ] or [None]
        before = time.time_ns() // 1_000_000
        answer = ask()
        elapsed = time.time_ns() // 1_000_000 - before
        at = -1 if answer.expiry_timestamp is None else milliseconds_since_epoch(answer.expiry_timestamp)
        told: Told = at
        if at > 0:
            told = "the maximum" if at == until else self._period(at - before, elapsed)
        return {"error": answer.error_code.name, "expiry": told}

    @staticmethod
    def _period(found: int, elapsed: int) -> str:
        """Return the period that the expiry ``found``, counted from before the request, has."""
        known = (0, 1_000, 20_000, RENEWAL_MS)
        return next((f"{each} ms" for each in known if each <= found <= each + elapsed), f"{found} ms?")

    def told_tokens(self, answer: Any) -> Told:
        def told(token: Any) -> Told:
            shown: Told = {
                "name": self.names[token.token_id],
                "owner": (token.principal_type, token.principal_name),
                "renewers": [(each.principal_type, each.principal_name) for each in token.renewers],
                "hmac": token.hmac == hmac_of(token.token_id),
                "max": token.max_timestamp - token.issue_timestamp,
                "expiry": token.expiry_timestamp - token.issue_timestamp,
            }
            if hasattr(token, "token_requester_principal_type"):
                requester = (token.token_requester_principal_type, token.token_requester_principal_name)
                shown["requester"] = requester
            return shown

        tokens = sorted((told(token) for token in answer.tokens), key=lambda token: token["name"])
        return {"error": answer.error_code.name, "tokens": tokens}

    def has_expired(self, name: str) -> bool:
        """Return whether its expiry has passed: Kafka's controller uses a new one only after its answer."""
        tokens = describe(self.user("root")).tokens
        [expiry] = [each.expiry_timestamp for each in tokens if self.names.get(each.token_id) == name]
        return expiry < time.time_ns() // 1_000_000

    def hang_up(self) -> None:
        self._open.close()
        self.admin.hang_up()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenSide]:
    [port] = free_ports(1)
    apache = ApacheKafka(
        tmp_path_factory.mktemp("kafka-with-tokens"),
        overrides=OVERRIDES,
        more_listeners=[f"SASL_PLAINTEXT://{HOST}:{port}"],
    )
    try:
        apache.start()
        side = TokenSide("Apache Kafka", apache.bootstrap, f"{HOST}:{port}")
        yield side
        side.hang_up()
    finally:
        apache.kill()


@pytest.fixture(scope="module")
def nilometer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenSide]:
    folder: Path = tmp_path_factory.mktemp("with-tokens") / "data"
    open_port, port = free_ports(2)
    listeners = f"PLAINTEXT://{HOST}:{open_port},SASL_PLAINTEXT://{HOST}:{port}"
    with NilometerBroker(folder, {**OVERRIDES, "listeners": listeners}, open_port) as broker:
        side = TokenSide("Nilometer", broker.bootstrap, f"{HOST}:{port}")
        yield side
        side.hang_up()
    assert "Traceback" not in broker.output


@pytest.fixture
def sides(kafka: TokenSide, nilometer: TokenSide) -> tuple[TokenSide, TokenSide]:
    for side in (kafka, nilometer):
        side.forget_all()
    return kafka, nilometer


def same(sides: tuple[TokenSide, TokenSide], scenario: Callable[[TokenSide], Told]) -> Told:
    """Return what both sides tell, which must be equal."""
    expected, found = map(scenario, sides)
    lines = differences(expected, found)
    assert not lines, "\n".join(lines)
    return expected


@pytest.mark.parametrize("version", [1, 2, 3])
def test_tokens_are_created_as_in_kafka(sides: tuple[TokenSide, TokenSide], version: int) -> None:
    lifetimes = (-1, 0, 1_000, RENEWAL_MS + 5, MAX_MS, MAX_MS + 1, LONGEST, -7)

    def scenario(side: TokenSide) -> Told:
        told = [
            side.new(f"of {lifetime}", "alice", max_lifetime_ms=lifetime, version=version)
            for lifetime in lifetimes
        ]
        told.append(side.new("two", "alice", renewers=("User:bob", "User:bob", "User:"), version=version))
        told.append(side.new("bad", "alice", renewers=("User:bob", "Group:x"), version=version))
        told.append(side.told_tokens(describe(side.user("alice"), version=version)))
        return told

    told = same(sides, scenario)
    assert told[0]["times"] == [0, RENEWAL_MS, MAX_MS]
    assert told[-2]["error"] == "invalid_principal_type"
    assert len(told[-1]["tokens"]) == len(lifetimes) + 1


def test_owner_and_requester_are_those_of_kafka(sides: tuple[TokenSide, TokenSide]) -> None:
    """bob may create tokens for alice, carol may not; root is a super user."""

    def scenario(side: TokenSide) -> Told:
        return [
            side.new(f"by {user} for {owner}", user, owner=owner, renewers=renewers)
            for user, owner, renewers in (
                ("alice", None, ()),
                ("alice", "User:alice", ()),
                ("bob", "User:alice", ("User:carol",)),
                ("bob", "User:carol", ()),
                ("carol", "User:alice", ()),
                ("carol", "User:alice", ("Group:first the right",)),
                ("root", "User:dora", ("User:alice",)),
                ("root", "User:", ()),
            )
        ]

    told = same(sides, scenario)
    assert [each["error"] for each in told[3:6]] == ["delegation_token_authorization_failed"] * 3


def test_renewals_are_those_of_kafka(sides: tuple[TokenSide, TokenSide]) -> None:
    def scenario(side: TokenSide) -> Told:
        side.new("long", "bob", owner="User:alice", renewers=("User:carol",))
        side.new("short", "alice", max_lifetime_ms=60_000)
        told: list[Told] = []
        for name in ("long", "short"):
            _, token = side.tokens[name]
            for user, period in (
                ("alice", -1),
                ("alice", 0),
                ("alice", 20_000),
                ("alice", RENEWAL_MS + 1),
                ("alice", LONGEST),
                ("alice", -9),
                ("carol", -1),
                ("bob", -1),
                ("dora", -1),
                ("root", -1),
            ):
                for version in (1, 2):
                    peer = side.user(user)
                    ask = lambda: renew(peer, token, period, version)  # noqa: B023, E731
                    told.append([name, user, period, side.told_expiry(ask, name)])
        unknown = (b"", b"unknown", hmac_of("unknown"))
        told += [side.told_expiry(lambda each=each: renew(side.user("alice"), each)) for each in unknown]
        return told

    told = same(sides, scenario)
    outcomes = {str(each[-1]) for each in told[:-3]}
    assert len(outcomes) == 4, outcomes  # two periods, the maximum, and no right
    assert {each["error"] for each in told[-3:]} == {"delegation_token_not_found"}


def test_expiries_are_those_of_kafka(sides: tuple[TokenSide, TokenSide]) -> None:
    def scenario(side: TokenSide) -> Told:
        side.new("token", "bob", owner="User:alice", renewers=("User:carol",))
        _, token = side.tokens["token"]
        told: list[Told] = []
        for user, period in (
            ("dora", 1_000),
            ("bob", 1_000),
            ("root", -1),
            ("alice", LONGEST),  # later than before: the maximum
            ("carol", 20_000),
            ("alice", 0),  # at once, but the token stays until it is removed
        ):
            ask = lambda: expire(side.user(user), token, period)  # noqa: B023, E731
            told.append([user, period, side.told_expiry(ask, "token")])
        wait_until(lambda: side.has_expired("token"), f"{side.name} has the expiry of 0 ms")
        for user, period in (("alice", 5), ("dora", 5), ("dora", -1)):
            told.append(side.told_expiry(lambda: expire(side.user(user), token, period)))  # noqa: B023
        told.append(side.told_expiry(lambda: renew(side.user("dora"), token)))
        told.append(side.told_expiry(lambda: expire(side.user("carol"), token, -5)))
        gone = lambda: not describe(side.user("root")).tokens  # noqa: E731
        wait_until(gone, f"{side.name} has removed it")
        told.append(side.told_expiry(lambda: expire(side.user("alice"), token)))
        return told

    told = same(sides, scenario)
    assert [each["error"] for each in told[-6:]] == [
        "delegation_token_expired",
        "delegation_token_owner_mismatch",
        "delegation_token_owner_mismatch",
        "delegation_token_expired",
        "none",
        "delegation_token_not_found",
    ]


def test_each_principal_sees_the_tokens_that_it_sees_in_kafka(sides: tuple[TokenSide, TokenSide]) -> None:
    """carol may describe the tokens of alice, and dora one token by its id."""

    def scenario(side: TokenSide) -> Told:
        side.new("own", "alice")
        side.new("requested", "bob", owner="User:alice", renewers=("User:dora",))
        side.new("of carol", "carol", renewers=("User:bob",))
        one, _ = side.tokens["own"]
        literal, allow = PatternType.LITERAL, Permission.ALLOW
        create_acls(
            side.admin,
            [Acl(ResourceType.DELEGATION_TOKEN, one, literal, "User:dora", "*", Operation.DESCRIBE, allow)],
        )
        wait_until(lambda: len(describe(side.user("dora")).tokens) == 2, f"{side.name} has the ACL")
        owners = (
            None,
            (),
            ("User:alice",),
            ("User:bob",),
            ("User:dora", "User:carol"),
            ("User:eve",),
            ("Group:alice",),
        )
        return [
            [user, asked, side.told_tokens(describe(side.user(user), asked))]
            for user in USERS
            for asked in owners
        ]

    told = same(sides, scenario)
    assert {len(answer["tokens"]) for _, _, answer in told} == {0, 1, 2, 3}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_by_token_is_one_of_the_owner_with_its_lifetime(
    sides: tuple[TokenSide, TokenSide], mechanism: str
) -> None:
    def scenario(side: TokenSide) -> Told:
        side.new("token", "bob", owner="User:alice", renewers=("User:bob",))
        token_id, token = side.tokens["token"]
        peer = side.connect()
        answer = log_in_by_token(peer, token_id, token, mechanism)
        told: list[Told] = [
            answer.error_code.name,
            RENEWAL_MS - 60_000 < milliseconds(answer.session_lifetime) <= RENEWAL_MS,
        ]
        # no token for one that logged in by a token, and no change of one
        told.append(side.told_created(create(peer)))
        told.append(side.told_created(create(peer, owner="User:bob", renewers=("Group:x",))))
        told += [side.told_expiry(lambda ask=ask: ask(peer, token)) for ask in (renew, expire)]
        told.append(side.told_tokens(describe(peer)))
        # rights are those of the owner
        wanted = {"operation": 1, "permission_type": 1, "resource_type_filter": 1, "pattern_type_filter": 1}
        asked = {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
        told.append(peer.ask(ApiKey.DESCRIBE_ACLS, 3, **wanted, **asked).error_code.name)
        return told

    told = same(sides, scenario)
    assert told[2]["error"] == told[-2]["error"] == "delegation_token_request_not_allowed"


def test_logins_that_kafka_refuses_are_refused_with_its_words(sides: tuple[TokenSide, TokenSide]) -> None:
    def scenario(side: TokenSide) -> Told:
        side.new("token", "alice")
        token_id, token = side.tokens["token"]
        told: list[Told] = []
        for user, password in (
            (token_id, b"another"),
            ("unknown", token),
            ("alice", token),
            (token_id, hmac_of("another")),
        ):
            answer = log_in_by_token(side.connect(), user, password)
            told.append([answer.error_code.name, answer.error_message])
        peer = side.connect()
        assert expire(side.user("alice"), token).error_code == ErrorCode.none
        wait_until(lambda: not describe(side.user("root")).tokens, f"{side.name} has removed it")
        answer = log_in_by_token(peer, token_id, token)
        told.append([answer.error_code.name, answer.error_message])
        return told

    same(sides, scenario)


def test_without_authentication_there_are_no_tokens(sides: tuple[TokenSide, TokenSide]) -> None:
    def scenario(side: TokenSide) -> Told:
        with WirePeer(side.open_bootstrap) as peer:
            return [
                side.told_created(create(peer)),
                side.told_created(create(peer, owner="User:alice", version=3)),
                *(side.told_expiry(lambda ask=ask: ask(peer, b"any")) for ask in (renew, expire)),
                side.told_tokens(describe(peer)),
            ]

    told = same(sides, scenario)
    assert {each["error"] for each in told} == {"delegation_token_request_not_allowed"}


def test_without_a_key_they_are_disabled_as_in_kafka(tmp_path: Path) -> None:
    told: list[Told] = []
    without = {key: value for key, value in OVERRIDES.items() if key != "delegation.token.secret.key"}

    def scenario(open_bootstrap: str, port: int) -> None:
        side = TokenSide.__new__(TokenSide)
        side.names = {}
        with WirePeer(f"{HOST}:{port}") as peer:
            log_in(peer, "root", USERS["root"])
            answers = [
                side.told_created(create(peer, owner="User:alice")),
                side.told_created(create(peer, renewers=("Group:x",))),
                side.told_tokens(describe(peer)),
            ]
            answers += [
                {"error": answer.error_code.name, "expiry": answer.expiry_timestamp}
                for answer in (renew(peer, b"any"), expire(peer, b"any", -1))
            ]
            told.append(answers)
        with WirePeer(f"{HOST}:{port}") as peer:
            answer = log_in_by_token(peer, "id", b"any")
            answers.append([answer.error_code.name, answer.error_message])

    [port] = free_ports(1)
    apache = ApacheKafka(
        tmp_path / "kafka", overrides=without, more_listeners=[f"SASL_PLAINTEXT://{HOST}:{port}"]
    )
    try:
        apache.start()
        scenario(apache.bootstrap, port)
    finally:
        apache.kill()
    open_port, port = free_ports(2)
    listeners = f"PLAINTEXT://{HOST}:{open_port},SASL_PLAINTEXT://{HOST}:{port}"
    with NilometerBroker(tmp_path / "data", {**without, "listeners": listeners}, open_port) as broker:
        scenario(broker.bootstrap, port)
    assert not differences(*told), told
    assert told[0][0]["error"] == "delegation_token_auth_disabled"


def test_a_session_by_a_removed_token_ends_here_and_goes_on_in_kafka(
    sides: tuple[TokenSide, TokenSide],
) -> None:
    """A difference that is meant: who removes a token expects that it is of no use any more."""
    served: dict[str, bool] = {}
    for side in sides:
        side.new("token", "alice")
        token_id, token = side.tokens["token"]
        peer = side.connect()
        assert log_in_by_token(peer, token_id, token).error_code == ErrorCode.none
        assert expire(side.user("alice"), token).error_code == ErrorCode.none
        wait_until(lambda side=side: not describe(side.user("root")).tokens, f"{side.name} has removed it")
        try:
            describe(peer)
            served[side.name] = True
        except ConnectionEnded:
            served[side.name] = False
    assert served == {"Apache Kafka": True, "Nilometer": False}
