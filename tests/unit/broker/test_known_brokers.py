"""How brokers authenticate each other: which settings go together, and who is a broker by the listener."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from nilometer.broker.audit_log import AuditLog
from nilometer.broker.authorizer import Authorizer, BrokerUsers
from nilometer.broker.connection import Connection
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.access_config_keys import STANDARD_AUTHORIZER
from nilometer.broker.settings.broker_authentication import AUTHENTICATION, BrokerAuthentication
from nilometer.broker.settings.config import BrokerConfig, warnings_at_start
from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.acl_table import AclIndex
from nilometer.config import ConfigError
from nilometer.security.principal import ANONYMOUS, Principal, SecurityProtocol
from nilometer.security.sasl import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE

BY_LISTENER = [BrokerAuthentication.LISTENER, BrokerAuthentication.LISTENER_OR_SECRET]
TLS = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.location": "/etc/broker.pem",
    "ssl.truststore.type": "PEM",
    "ssl.truststore.location": "/etc/authorities.pem",
}


def given(protocol: SecurityProtocol, how: str = "listener", **changes: str | None) -> BrokerConfig:
    texts: dict[str, str | None] = {
        "node.id": "1",
        "listeners": "CLIENTS://:9092,INSIDE://:9093",
        "listener.security.protocol.map": f"CLIENTS:PLAINTEXT,INSIDE:{protocol.value}",
        "inter.broker.listener.name": "INSIDE",
        "super.users": "User:admin;User:brokers",
        AUTHENTICATION: how,
    }
    if protocol.has_tls:
        texts |= TLS | {"ssl.client.auth": "required"}
    if protocol.has_sasl:
        texts |= {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "listener.name.inside.scram-sha-512.sasl.jaas.config": (
                f'{SCRAM_MODULE} required username="brokers" password="secret";'
            ),
        }
    return BrokerConfig({key: text for key, text in (texts | changes).items() if text is not None})


AUTHENTICATING = [SecurityProtocol.SSL, SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL]


@pytest.mark.parametrize("protocol", AUTHENTICATING)
@pytest.mark.parametrize("how", BY_LISTENER)
def test_a_listener_that_authenticates_is_taken(
    protocol: SecurityProtocol, how: BrokerAuthentication
) -> None:
    config = given(protocol, how.value)
    assert config.broker_authentication is how
    assert warnings_at_start(config) == []


def test_the_secret_is_the_default() -> None:
    assert given(SecurityProtocol.SASL_SSL, **{AUTHENTICATION: None}).broker_authentication is (
        BrokerAuthentication.SECRET
    )


@pytest.mark.parametrize(
    ("protocol", "changes", "key", "why"),
    [
        ("PLAINTEXT", {}, AUTHENTICATION, "INSIDE, is PLAINTEXT and authenticates no broker"),
        ("SSL", {"ssl.client.auth": "none"}, AUTHENTICATION, "listener.name.inside.ssl.client.auth=required"),
        ("SSL", {"super.users": None}, "super.users", "must name the user of the brokers"),
        ("SASL_SSL", {"super.users": None}, "super.users", "the user of the brokers, User:brokers"),
        ("SASL_SSL", {"super.users": "User:admin"}, "super.users", "the user of the brokers, User:brokers"),
        (
            "SASL_SSL",
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256"},
            "sasl.mechanism.inter.broker.protocol",
            "does not enable; add it to sasl.enabled.mechanisms: SCRAM-SHA-256",
        ),
        ("SASL_SSL", {AUTHENTICATION: "certificate"}, AUTHENTICATION, "certificate"),
    ],
)
@pytest.mark.parametrize("how", BY_LISTENER)
def test_what_would_authenticate_no_broker_is_refused_at_start(
    how: BrokerAuthentication, protocol: str, changes: dict[str, str | None], key: str, why: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        given(SecurityProtocol(protocol), how.value, **changes)
    assert refused.value.key == key
    assert why in str(refused.value)


def test_with_an_authorizer_the_right_may_come_from_an_acl() -> None:
    config = given(
        SecurityProtocol.SASL_SSL, **{"super.users": None, "authorizer.class.name": STANDARD_AUTHORIZER}
    )
    assert config.broker_authentication is BrokerAuthentication.LISTENER


def test_the_mechanism_between_brokers_is_enabled_whatever_authenticates_them() -> None:
    with pytest.raises(ConfigError, match="does not enable"):
        given(SecurityProtocol.SASL_SSL, "require", **{"sasl.enabled.mechanisms": "SCRAM-SHA-256"})


PLAIN = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.inside.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required username="brokers" password="secret" user_brokers="secret";'
    ),
}


def test_a_password_sent_to_any_process_on_a_brokers_port_is_warned_of() -> None:
    (warning,) = warnings_at_start(given(SecurityProtocol.SASL_PLAINTEXT, **PLAIN))
    assert "PLAIN over SASL_PLAINTEXT does not authenticate the broker" in warning
    assert warnings_at_start(given(SecurityProtocol.SASL_PLAINTEXT, "require", **PLAIN)) == []
    assert warnings_at_start(given(SecurityProtocol.SASL_SSL, **PLAIN)) == []
    unchecked = given(SecurityProtocol.SSL, **{"ssl.endpoint.identification.algorithm": ""})
    assert "ssl.endpoint.identification.algorithm is empty" in warnings_at_start(unchecked)[0]


def test_tokens_are_sent_as_passwords_are() -> None:
    keys = "file:///etc/keys.json"
    token = "file:///run/token"
    config = given(
        SecurityProtocol.SASL_PLAINTEXT,
        **{
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys,
            "sasl.oauthbearer.token.endpoint.url": token,
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": f"{keys},{token}",
            "listener.name.inside.oauthbearer.sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
        },
    )
    assert "OAUTHBEARER over SASL_PLAINTEXT" in warnings_at_start(config)[0]


# ── who is a broker ─────────────────────────────────────────────────────────────────────────────────


class Metadata:
    """Replaces a MetadataLog: has ACLs, and says when they changed."""

    def __init__(self, *acls: Acl) -> None:
        self.index = AclIndex()
        for acl in acls:
            self.index.add(acl)
        self.image = SimpleNamespace(acls=SimpleNamespace(index=self.index))
        self._subscribers: list[Callable[[object, object], None]] = []

    def subscribe(self, on_delta: Callable[[object, object], None], on_reload: object) -> None:
        self._subscribers.append(on_delta)

    def remove(self, acl: Acl) -> None:
        self.index.remove(acl)
        for subscriber in self._subscribers:
            subscriber(SimpleNamespace(acls=(acl,)), self.image)


class Link:
    """Replaces a connection."""

    def __init__(self, context: RequestContext) -> None:
        self.context = context
        self.closed = False
        self.reason = ""

    def abort(self, reason: str) -> None:
        self.closed, self.reason = True, reason


def acl(operation: Operation, principal: str = "User:b", host: str = "*", *, allow: bool = True) -> Acl:
    permission = Permission.ALLOW if allow else Permission.DENY
    name, literal = "kafka-cluster", PatternType.LITERAL
    return Acl(ResourceType.CLUSTER, name, literal, principal, host, operation, permission)


def users(metadata: Metadata, *, authorizer: bool = True) -> BrokerUsers:
    config = given(
        SecurityProtocol.SASL_SSL,
        **{
            "authorizer.class.name": STANDARD_AUTHORIZER if authorizer else None,
            "allow.everyone.if.no.acl.found": "true",
        },
    )
    log = cast(MetadataLog, metadata)
    judge = Authorizer(config, log, cast(AuditLog, None)) if authorizer else None
    return BrokerUsers(config, judge, log)


def client(user: str, listener: str = "INSIDE", address: str = "192.0.2.1") -> RequestContext:
    return RequestContext(principal=Principal("User", user), listener=listener, client_address=address)


def test_a_super_user_of_the_listener_between_brokers_is_a_broker() -> None:
    for authorizer in (True, False):
        found = users(Metadata(), authorizer=authorizer)
        assert found.why_not(client("brokers")) is None
        assert "INSIDE only, not by CLIENTS" in (found.why_not(client("brokers", "CLIENTS")) or "")
        assert "User:alice is not in super.users" in (found.why_not(client("alice")) or "")


@pytest.mark.parametrize(
    ("acls", "is_broker"),
    [
        ((), False),
        ((acl(Operation.CLUSTER_ACTION),), True),
        ((acl(Operation.ALL),), True),
        ((acl(Operation.CLUSTER_ACTION, "User:*"),), True),
        ((acl(Operation.ALTER),), False),
        ((acl(Operation.CLUSTER_ACTION, host="192.0.2.9"),), False),
        ((acl(Operation.CLUSTER_ACTION), acl(Operation.ALL, allow=False)), False),
    ],
)
def test_another_user_needs_an_acl_even_where_no_acl_means_everything(
    acls: tuple[Acl, ...], is_broker: bool
) -> None:
    assert (users(Metadata(*acls)).why_not(client("b")) is None) is is_broker


def test_a_connection_that_has_not_authenticated_is_no_brokers() -> None:
    found = users(Metadata(acl(Operation.ALL, "User:*")))
    anonymous = RequestContext(principal=ANONYMOUS, listener="INSIDE")
    assert "has not authenticated" in (found.why_not(anonymous) or "")


def test_a_login_by_a_delegation_token_is_no_brokers_even_of_a_super_user() -> None:
    by_token = replace(client("brokers"), by_token=True)
    assert "logged in by a delegation token" in (users(Metadata()).why_not(by_token) or "")


def test_a_broker_that_loses_the_right_loses_its_connections() -> None:
    allowed = acl(Operation.CLUSTER_ACTION)
    metadata = Metadata(allowed)
    found = users(metadata)
    by_acl, super_user = Link(client("b")), Link(client("brokers"))
    for link in (by_acl, super_user):
        found.accept(cast(Connection, link))
    other = acl(Operation.DESCRIBE, "User:else")
    metadata.index.add(other)
    metadata.remove(other)
    assert not by_acl.closed
    metadata.remove(allowed)
    assert "no ACL allows it CLUSTER_ACTION" in by_acl.reason
    assert not super_user.closed


def test_connections_that_ended_are_forgotten() -> None:
    found = users(Metadata())
    for _ in range(5):
        link = Link(client("brokers"))
        found.accept(cast(Connection, link))
        link.closed = True
    assert len(found._accepted) == 1
