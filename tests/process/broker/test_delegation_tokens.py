"""Delegation tokens of a cluster of two brokers: forwarded requests, logins at both, restarts, removal, and
what is written about them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import nilometer
from nilometer.cli.main import run
from nilometer.security.sasl import SCRAM_MODULE
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import milliseconds
from support.authorization.prepared import AUTHORIZER
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.token_requests import (
    SECRET_KEY,
    create,
    describe,
    expire,
    hmac_of,
    log_in,
    log_in_by_token,
    renew,
    token_settings,
)
from support.command_line import Outcome
from support.eventually import eventually
from support.ports import HOST, free_ports
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

USERS = {name: f"{name}-password" for name in ("alice", "bob", "root")}
CHECK_MS = 200
FAILED = ErrorCode.sasl_authentication_failed


class TokenCluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(4)
        self.sasl = [f"{HOST}:{port}" for port in ports[2:]]
        self.brokers: list[NilometerBroker] = []
        for node, (plain, sasl) in enumerate(zip(ports[:2], ports[2:], strict=True), start=1):
            settings = {
                **token_settings(USERS),
                "listeners": f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{sasl}",
                "inter.broker.listener.name": "PLAINTEXT",
                "nilometer.coordination": f"local:{folder / 'coordination'}",
                "authorizer.class.name": AUTHORIZER,
                "super.users": "User:ANONYMOUS;User:root",
                "delegation.token.expiry.check.interval.ms": str(CHECK_MS),
            }
            self.brokers.append(
                NilometerBroker(folder / f"broker-{node}", settings, port=plain, node_id=node)
            )

    def peer(self, number: int = 0, user: str | None = None) -> WirePeer:
        """Connect to a broker, and log in as ``user``."""
        peer = WirePeer(self.sasl[number])
        return peer if user is None else log_in(peer, user, USERS[user])

    def has_token(self, token_id: str) -> bool:
        """Return whether both brokers have the token."""
        shown: list[bool] = []
        for number in range(2):
            with self.peer(number, "root") as root:
                shown.append(token_id in {token.token_id for token in describe(root).tokens})
        return all(shown)

    def issue(self, user: str = "alice", number: int = 0, **fields: object) -> tuple[str, bytes]:
        """Create a token at a broker, and wait until both have it."""
        with self.peer(number, user) as peer:
            answer = create(peer, **fields)  # type: ignore[arg-type]
        assert answer.error_code == ErrorCode.none, answer
        eventually(lambda: self.has_token(answer.token_id), "both brokers have the token")
        return answer.token_id, answer.hmac

    def written(self) -> bytes:
        """Return all that the brokers have written: data, metadata, audit logs, output."""
        return b"".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenCluster]:
    cluster = TokenCluster(tmp_path_factory.mktemp("tokens"))
    try:
        for broker in cluster.brokers:
            broker.start()
        yield cluster
    finally:
        for broker in cluster.brokers:
            broker.kill()
    assert not any("Traceback" in broker.output for broker in cluster.brokers)


def is_served(peer: WirePeer) -> bool:
    try:
        return bool(peer.ask(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False).brokers)
    except ConnectionEnded:
        return False


def test_a_token_of_any_broker_is_a_login_at_all_of_them(cluster: TokenCluster) -> None:
    """One of the two brokers is not the controller: it forwards the request with the client's principal."""
    for number in range(2):
        token_id, token = cluster.issue(number=number, renewers=("User:bob",))
        assert token == hmac_of(token_id)
        for other in range(2):
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                with cluster.peer(other) as peer:
                    answer = log_in_by_token(peer, token_id, token, mechanism)
                    assert answer.error_code == ErrorCode.none
                    assert 0 < milliseconds(answer.session_lifetime) <= 86_400_000
                    assert is_served(peer)
                    assert create(peer).error_code == ErrorCode.delegation_token_request_not_allowed
        for other in range(2):
            with cluster.peer(other, "bob") as bob:
                renewed = renew(bob, token, 1_000_000)
                assert renewed.error_code == ErrorCode.none, "a renewer, also if it is forwarded"
            with cluster.peer(other, "root") as root:
                assert renew(root, token).error_code == ErrorCode.delegation_token_owner_mismatch


def test_tokens_outlive_every_broker(cluster: TokenCluster) -> None:
    token_id, token = cluster.issue()
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        broker.start()
    for number in range(2):
        with cluster.peer(number) as peer:
            assert log_in_by_token(peer, token_id, token).error_code == ErrorCode.none
            assert is_served(peer)


def test_an_expired_token_is_removed_and_ends_its_logins(cluster: TokenCluster) -> None:
    token_id, token = cluster.issue()
    peers = [cluster.peer(number) for number in range(2)]
    try:
        for peer in peers:
            assert log_in_by_token(peer, token_id, token).error_code == ErrorCode.none
            assert is_served(peer)
        with cluster.peer(1, "alice") as alice:
            assert expire(alice, token, 1).error_code == ErrorCode.none
        for peer in peers:
            eventually(lambda peer=peer: not is_served(peer), "the login has ended")
        eventually(lambda: not cluster.has_token(token_id), "the controller has removed the token")
        with cluster.peer() as late:
            assert log_in_by_token(late, token_id, token).error_code == FAILED
        with cluster.peer(0, "alice") as alice:
            assert renew(alice, token).error_code == ErrorCode.delegation_token_not_found
    finally:
        for peer in peers:
            peer.close()
    said = "".join(broker.output for broker in cluster.brokers)
    assert "the delegation token of its login has expired or was removed" in said
    assert "because they have expired" in said


def test_a_removed_token_ends_its_logins_at_once(cluster: TokenCluster) -> None:
    token_id, token = cluster.issue()
    with cluster.peer(1) as peer, cluster.peer(0, "alice") as alice:
        assert log_in_by_token(peer, token_id, token).error_code == ErrorCode.none
        assert expire(alice, token).error_code == ErrorCode.none
        eventually(lambda: not is_served(peer), "the login has ended")


def test_another_hmac_or_a_user_in_place_of_the_token_is_refused(cluster: TokenCluster) -> None:
    token_id, token = cluster.issue()
    for user, password in ((token_id, b"x"), ("alice", token), ("none", hmac_of("none")), (token_id, b"")):
        with cluster.peer() as peer:
            assert log_in_by_token(peer, user, password).error_code == FAILED


def test_a_login_by_token_has_the_rights_of_its_owner(cluster: TokenCluster) -> None:
    """root is a super user, alice has no right."""
    asked = {"users": None}
    expected = {"root": ErrorCode.none, "alice": ErrorCode.cluster_authorization_failed}
    for owner, error in expected.items():
        token_id, token = cluster.issue(owner)
        with cluster.peer() as peer:
            assert log_in_by_token(peer, token_id, token).error_code == ErrorCode.none
            assert peer.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, **asked).error_code == error


# ── our clients


def jaas(token_id: str, token: bytes) -> dict[str, str]:
    password = base64.b64encode(token).decode()
    module = f'{SCRAM_MODULE} required username="{token_id}" password="{password}" tokenauth="true";'
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": module,
    }


def test_our_client_logs_in_by_a_token(cluster: TokenCluster) -> None:
    token_id, token = cluster.issue("root")

    async def topics(settings: dict[str, str]) -> list[str]:
        async with nilometer.connect(cluster.sasl[0], settings=settings) as kafka:
            await kafka.send("by-token", b"a record")
            return list(await kafka.admin.topics())

    assert "by-token" in asyncio.run(topics(jaas(token_id, token)))
    with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        asyncio.run(topics(jaas(token_id, token + b"x")))


def test_the_command_line_creates_shows_renews_and_expires_tokens(
    cluster: TokenCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "alice.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config="
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="alice" password="{USERS["alice"]}";\n'
    )
    by_token = tmp_path / "token.properties"

    def command(*arguments: str, config: Path = config) -> Outcome:
        code = run(
            ["token", *arguments, "--bootstrap-server", cluster.sasl[1], "--command-config", str(config)]
        )
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    created = command("create", "--renewer", "User:bob", "--max-lifetime", "PT1H", "--json").document
    assert (created["owner"], created["renewers"]) == ("User:alice", ["User:bob"])
    assert created["max_ms"] - created["issued_ms"] == 3_600_000
    token_id, token = created["id"], base64.b64decode(created["hmac"])
    assert token == hmac_of(token_id)
    eventually(lambda: cluster.has_token(token_id), "both brokers have the token")

    shown = command("describe", token_id)
    assert token_id in shown.out.replace("\n", "")
    assert created["hmac"] not in shown.out
    assert created["hmac"] in command("describe", token_id, "--show-hmac").out.replace("\n", "")
    [described] = command("describe", token_id, "--json", "--show-hmac").document["tokens"]
    assert described == created
    assert command("describe", "--owner", "User:none", "--json").document == {"tokens": []}

    renewed = command("renew", token_id, "--period", "PT10M", "--json").document
    assert renewed["expires_ms"] < created["expires_ms"]
    assert command("renew", token_id).out.startswith(f"Token {token_id} expires at 20")

    by_token.write_text("".join(f"{key}={value}\n" for key, value in jaas(token_id, token).items()))
    refused = command("create", config=by_token)
    assert refused.code == 1
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: only a user that logged in" in refused.err
    denied = command("create", "--owner", "User:bob")
    assert "DELEGATION_TOKEN_AUTHORIZATION_FAILED" in denied.err

    unsaid = command("expire", token_id)
    assert unsaid.code == 2 and f"token {token_id} of User:alice" in unsaid.err
    removed = command("expire", token_id, "--yes", "--json")
    assert removed.document["id"] == token_id
    eventually(lambda: not cluster.has_token(token_id), "the token is removed")
    missing = command("renew", token_id)
    assert (missing.code, "there is no token" in missing.err) == (1, True)
    for wrong in (("create", "--owner", "alice"), ("renew", "x", "--period", "1h"), ("expire",)):
        assert command(*wrong).code == 2


# ── secrets


def settings_of(cluster: TokenCluster) -> list[tuple[str, str | None, bool]]:
    """Return the settings of a broker for tokens, as it describes them: name, value, whether it is hidden."""
    key = ApiKey.DESCRIBE_CONFIGS
    broker = make(
        key, 4, "DescribeConfigsResource", resource_type=4, resource_name="1", configuration_keys=None
    )
    with cluster.peer(0, "root") as root:
        [result] = root.ask(key, 4, resources=(broker,), include_synonyms=True).results
    found = [(each.name, each.value, each.is_sensitive) for each in result.configs]
    return [each for each in found if each[0].startswith("delegation.")]


def test_the_key_is_a_password_of_the_broker(cluster: TokenCluster) -> None:
    assert sorted(settings_of(cluster)) == [
        ("delegation.token.expiry.check.interval.ms", str(CHECK_MS), False),
        ("delegation.token.expiry.time.ms", "86400000", False),
        ("delegation.token.max.lifetime.ms", "604800000", False),
        ("delegation.token.secret.key", None, True),
    ]


def test_no_hmac_and_no_key_is_written_anywhere(
    cluster: TokenCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in logs, data, metadata and audit logs, nor in what shows settings and metadata."""
    token_id, token = cluster.issue(renewers=("User:bob",))
    with cluster.peer(1) as peer:
        assert log_in_by_token(peer, token_id, token).error_code == ErrorCode.none
        assert create(peer).error_code == ErrorCode.delegation_token_request_not_allowed
    with cluster.peer() as peer:
        assert log_in_by_token(peer, token_id, hmac_of("another")).error_code == FAILED
    with cluster.peer(0, "bob") as bob:
        assert create(bob, owner="User:alice").error_code == ErrorCode.delegation_token_authorization_failed
        assert renew(bob, token).error_code == ErrorCode.none
        assert expire(bob, token, 10_000_000).error_code == ErrorCode.none
    capsys.readouterr()
    coordination = ["--coordination", f"local:{cluster.folder / 'coordination'}"]
    for what in (["dump"], ["dump", "--json"], ["image"]):
        assert run(["metadata", *what, *coordination]) == 0
    shown = capsys.readouterr().out + repr(settings_of(cluster))
    assert token_id in shown
    everything = cluster.written() + shown.encode()
    assert token_id.encode() in everything
    audited = [line for line in everything.splitlines() if b"CREATE_DELEGATION_TOKEN" in line]
    assert any(json.loads(line) for line in audited if line.startswith(b"{")), (
        "the audit log names the requests"
    )
    secrets = [SECRET_KEY.encode()]
    for known in (token, hmac_of("another")):
        secrets += [known, base64.b64encode(known), base64.urlsafe_b64encode(known), known.hex().encode()]
    assert [secret for secret in secrets if secret in everything] == []
