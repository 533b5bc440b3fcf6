"""Brokers that connect to each other by TLS and SASL, and rolling changes on a live cluster: to that
listener, and from the cluster's secret to the users of that listener."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.broker.settings.broker_authentication import AUTHENTICATION
from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.security.sasl import PLAIN_MODULE
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.authority import Authority
from support.authorization.prepared import AUTHORIZED, create_acls, delete_acl
from support.brokers.broker_identity import Identity, ask_proof
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.ports import HOST, free_ports
from support.wire.wire_peer import ConnectionEnded, WirePeer

BROKERS = (1, 2)
REFUSED = ErrorCode.cluster_authorization_failed


class Settings:
    """The settings of brokers with the listeners PLAINTEXT and INTERNAL."""

    def __init__(self, folder: Path, protocol: str) -> None:
        self.authority = Authority(folder / "authority")
        self.protocol = protocol
        ports = free_ports(2 * len(BROKERS))
        self.plain = dict(zip(BROKERS, ports[: len(BROKERS)], strict=True))
        self.internal = dict(zip(BROKERS, ports[len(BROKERS) :], strict=True))

    def of(self, broker_id: int, between: str = "INTERNAL", password: str = "secret") -> dict[str, str]:
        plain, internal = self.plain[broker_id], self.internal[broker_id]
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{plain},INTERNAL://{HOST}:{internal}",
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,INTERNAL:{self.protocol}",
            "inter.broker.listener.name": between,
            "ssl.keystore.location": str(self.authority.issue(f"broker-{broker_id}", f"/CN=b{broker_id}")),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.client.auth": "required",
        }
        if self.protocol.startswith("SASL"):
            settings["sasl.enabled.mechanisms"] = settings["sasl.mechanism.inter.broker.protocol"] = "PLAIN"
            settings["listener.name.internal.plain.sasl.jaas.config"] = (
                f'{PLAIN_MODULE} required username="brokers" password="{password}" user_brokers="secret";'
            )
        return settings


def make_cluster(folder: Path, own: dict[int, dict[str, str]], settings: Settings) -> NilometerCluster:
    cluster = NilometerCluster(folder / "cluster", len(BROKERS), own_overrides=own)
    for broker_id, broker in cluster.brokers.items():
        broker.port = settings.plain[broker_id]
    return cluster


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_brokers_replicate_and_forward_over_each_protocol(tmp_path: Path, protocol: str) -> None:
    settings = Settings(tmp_path, protocol)
    own = {broker_id: settings.of(broker_id) for broker_id in BROKERS}
    with make_cluster(tmp_path, own, settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2), 1: (2, 1)})
        cluster.wait_full_isr("replicated")


def test_a_broker_with_a_wrong_password_does_not_replicate(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "SASL_PLAINTEXT")
    own = {1: settings.of(1), 2: settings.of(2, password="wrong")}
    with make_cluster(tmp_path, own, settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2)})
        leader = cluster.brokers[1]
        eventually(lambda: "Authentication failed: " in leader.output, "the leader refuses it", 60)
        assert "wrong" not in leader.output + cluster.brokers[2].output


def test_a_cluster_changes_to_tls_and_sasl_one_broker_at_a_time(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "SASL_SSL")
    own = {broker_id: settings.of(broker_id, between="PLAINTEXT") for broker_id in BROKERS}
    with make_cluster(tmp_path, own, settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2), 1: (2, 1)})
        cluster.wait_full_isr("replicated")
        for broker_id in BROKERS:
            cluster.stop(broker_id)
            cluster.brokers[broker_id]._settings["inter.broker.listener.name"] = "INTERNAL"
            cluster.start(broker_id)
            cluster.wait_full_isr("replicated")


# ── brokers that are known by their user instead of the secret ──────────────────────────────────────


def own_users(protocol: str) -> list[str]:
    return [f"User:CN=b{broker_id}" if protocol == "SSL" else "User:brokers" for broker_id in BROKERS]


def allocate_ids(peer: WirePeer, as_broker: int) -> ErrorCode:
    """Send a request that only a broker may send."""
    return peer.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=as_broker, broker_epoch=-1).error_code


def with_users(settings: Settings) -> dict[int, dict[str, str]]:
    users = {"super.users": ";".join(own_users(settings.protocol))}
    return {broker_id: settings.of(broker_id) | users for broker_id in BROKERS}


def test_brokers_are_known_by_their_certificates(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "SSL")
    own = {each: given | {AUTHENTICATION: "listener"} for each, given in with_users(settings).items()}
    with make_cluster(tmp_path, own, settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2), 1: (2, 1)})
        cluster.wait_full_isr("replicated")
        check_users(cluster, settings)


def test_the_listener_replaces_the_secret_one_broker_at_a_time(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "SASL_SSL")
    with make_cluster(tmp_path, with_users(settings), settings) as cluster:
        cluster.create_topic("replicated", assignments={0: (1, 2), 1: (2, 1)})
        cluster.wait_full_isr("replicated")
        for how in ("listener-or-secret", "listener"):
            for broker_id in BROKERS:
                cluster.stop(broker_id)
                cluster.brokers[broker_id]._settings[AUTHENTICATION] = how
                cluster.start(broker_id)
                cluster.wait_full_isr("replicated")
        check_users(cluster, settings)


def check_users(cluster: NilometerCluster, settings: Settings) -> None:
    """Each broker knows the other one by its user, and the secret is worth nothing."""
    for broker_id, user in zip(BROKERS, own_users(settings.protocol), strict=True):
        assert f"is broker {broker_id}, by its user {user}" in cluster.brokers[3 - broker_id].output
    identity = Identity.of_store(cluster.folder / "coordination")
    with WirePeer(cluster.brokers[1].bootstrap) as peer:
        answer = ask_proof(peer, **identity.hello(2, 1))
        assert answer.error_code == REFUSED
        assert not answer.proof
        assert allocate_ids(peer, 2) == REFUSED
        with pytest.raises(ConnectionEnded):
            ask_proof(peer, proof=b"\0" * 32)


def test_a_broker_that_requires_the_secret_refuses_one_that_does_not_use_it(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "SASL_PLAINTEXT")
    own = with_users(settings)
    own[1][AUTHENTICATION] = "listener"
    with make_cluster(tmp_path, own, settings) as cluster:
        for leader, follower in (BROKERS, BROKERS[::-1]):
            cluster.create_topic(f"of-{leader}", assignments={0: (leader, follower)})
        by_user, by_secret = cluster.brokers.values()
        refused = "it requires a proof by the cluster's secret"
        eventually(lambda: refused in by_user.output, "the one with a user says why", 60)
        refused = "authenticates brokers otherwise than this one"
        eventually(lambda: refused in by_secret.output, "so does the one with the secret", 60)
        assert "PLAIN over SASL_PLAINTEXT does not authenticate the broker" in by_user.output


PASSWORDS = {"brokers": "secret", "other": "secret-2", "alice": "secret-3"}
BROKER_ACL = Acl(
    ResourceType.CLUSTER,
    "kafka-cluster",
    PatternType.LITERAL,
    "User:other",
    "*",
    Operation.CLUSTER_ACTION,
    Permission.ALLOW,
)


def log_in(bootstrap: str, user: str) -> WirePeer:
    peer = WirePeer(bootstrap)
    assert peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == ErrorCode.none
    message = f"\0{user}\0{PASSWORDS[user]}".encode()
    assert peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message).error_code == ErrorCode.none
    return peer


@pytest.fixture
def by_users(tmp_path: Path) -> Iterator[tuple[NilometerCluster, Settings]]:
    """A broker that accepts the user ``brokers``, and clients that have not authenticated as super users."""
    settings = Settings(tmp_path, "SASL_PLAINTEXT")
    listed = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    jaas = f'{PLAIN_MODULE} required username="brokers" password="secret" {listed};'
    own = {
        **settings.of(1),
        **AUTHORIZED,
        AUTHENTICATION: "listener",
        "super.users": "User:brokers;User:ANONYMOUS",
        "listener.name.internal.plain.sasl.jaas.config": jaas,
    }
    cluster = NilometerCluster(tmp_path / "cluster", 1, own_overrides={1: own})
    cluster.brokers[1].port = settings.plain[1]
    with cluster:
        yield cluster, settings


def test_users_are_brokers_by_super_users_or_by_an_acl(
    by_users: tuple[NilometerCluster, Settings],
) -> None:
    cluster, settings = by_users
    clients, internal = (f"{HOST}:{ports[1]}" for ports in (settings.plain, settings.internal))
    hello = Identity.of_store(cluster.folder / "coordination").hello(2, 1) | {"nonce": b""}

    def outcome(peer: WirePeer) -> ErrorCode:
        return ErrorCode(ask_proof(peer, **hello).error_code)

    with log_in(internal, "brokers") as peer:
        assert allocate_ids(peer, 2) == REFUSED, "it has not said yet which broker it is"
        assert outcome(peer) is ErrorCode.none
        assert allocate_ids(peer, 2) != REFUSED
        assert allocate_ids(peer, 3) == REFUSED
        assert outcome(peer) is ErrorCode.invalid_request, "a connection has one attempt"
    with log_in(internal, "alice") as peer:
        assert outcome(peer) is REFUSED
        assert allocate_ids(peer, 2) == REFUSED
    with WirePeer(clients) as peer:
        assert outcome(peer) is REFUSED, "a super user of another listener is no broker"
    admin = Side("admin", clients)
    create_acls(admin, [BROKER_ACL])

    def is_accepted() -> bool:
        with log_in(internal, "other") as peer:
            return outcome(peer) is ErrorCode.none

    eventually(is_accepted, "the ACL takes effect")
    with log_in(internal, "other") as peer:
        assert outcome(peer) is ErrorCode.none
        assert allocate_ids(peer, 2) != REFUSED
        delete_acl(admin, BROKER_ACL)
        assert peer.is_ended()
    admin.hang_up()
    assert "User:alice is not in super.users" in cluster.brokers[1].output
