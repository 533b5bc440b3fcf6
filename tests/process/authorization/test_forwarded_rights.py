"""A change has the rights of the client that wants it, also where a broker forwards it to the controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.authorization.prepared import AUTHORIZER, create_acls
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.ports import HOST, free_ports
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer

PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
K = ApiKey


class Authenticated(Side):
    """A side that logs in with SASL/PLAIN; the password is the user's name."""

    def __init__(self, bootstrap: str, user: str) -> None:
        super().__init__(user, bootstrap)
        self._user = user

    @property
    def peer(self) -> WirePeer:
        if self._peer is None:
            self._peer = WirePeer(self.bootstrap)
            self._peer.ask(K.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            token = f"\0{self._user}\0{self._user}".encode()
            answer = self._peer.ask(K.SASL_AUTHENTICATE, 2, auth_bytes=token)
            assert answer.error_code is ErrorCode.none, answer
        return self._peer


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yield the SASL addresses of two brokers of one cluster."""
    ports = free_ports(4)
    brokers: list[NilometerBroker] = []
    for node, (plain, sasl) in enumerate(zip(ports[:2], ports[2:], strict=True), start=1):
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{sasl}",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{PLAIN_LOGIN} user_admin="admin" user_alice="alice";'
            ),
            "nilometer.coordination": f"local:{tmp_path / 'coordination'}",
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:admin",
        }
        brokers.append(NilometerBroker(tmp_path / f"broker-{node}", settings, port=plain, node_id=node))
    try:
        for broker in brokers:
            broker.start()
        yield f"{HOST}:{ports[2]}", f"{HOST}:{ports[3]}"
    finally:
        for broker in brokers:
            broker.kill()


def create(side: Side, *names: str) -> list[str]:
    topics = tuple(new_topic(name) for name in names)
    answer = side.message(K.CREATE_TOPICS, 7, topics=topics, timeout_ms=20_000)
    codes = {topic.name: topic.error_code.name for topic in answer.topics}
    return [codes[name] for name in names]


def test_the_controller_decides_for_the_client(listeners: tuple[str, str]) -> None:
    admin = Authenticated(listeners[0], "admin")
    create_acls(
        admin,
        [
            Acl(
                ResourceType.TOPIC,
                "alice-",
                PatternType.PREFIXED,
                "User:alice",
                "*",
                Operation.CREATE,
                Permission.ALLOW,
            )
        ],
    )
    for number, address in enumerate(listeners):
        alice = Authenticated(address, "alice")
        names = (f"alice-{number}", f"other-{number}")
        assert create(alice, *names) == ["none", "topic_authorization_failed"], address
        elected = alice.message(K.ELECT_LEADERS, 2, election_type=0, topic_partitions=None, timeout_ms=20_000)
        assert elected.error_code is ErrorCode.cluster_authorization_failed
        alice.hang_up()
        boss = Authenticated(address, "admin")
        assert create(boss, f"other-{number}") == ["none"], address
        boss.hang_up()
    admin.hang_up()
    with WirePeer(listeners[0]) as stranger:
        stranger.tell(K.METADATA, 12, topics=None)
        eventually(stranger.is_ended, "who has not logged in is not served")
