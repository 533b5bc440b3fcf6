"""SASL on a listener of controllers: who is let in by a login, and for how long."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nilometer.broker.process import ABOUT_CONNECTIONS, ABOUT_LOGINS
from nilometer.broker.quorum.links import QuorumLinks
from nilometer.broker.settings.quorum import Admittance
from nilometer.client.admin.security_admin import AclAdmin
from nilometer.client.network.connection import Connection
from nilometer.cluster.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from nilometer.coordination.quorum.peers import PeerUnavailable
from nilometer.identifiers import BrokerId
from nilometer.raft.voter_changes import DONE, ChangeResult, RemoveVoter
from nilometer.raft.voters import VoterKey
from support.authority import Authority
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.quorum_brokers import QuorumBrokers
from support.brokers.quorum_clients import produce, texts_in
from support.brokers.quorum_nodes import (
    JAAS,
    LET_IN,
    links_of,
    listening,
    login,
    refusal_of,
    settings_of,
    tls_of,
    voter,
)
from support.eventually import eventually
from support.issuer import AUDIENCE, ISSUER, claims, jwks, rsa_key, signed
from support.ports import HOST, free_ports

TIMEOUT_S = 60.0


async def outcomes(port: int, *nodes: Mapping[str, str]) -> list[bool]:
    """Return which of the nodes are let in."""
    found: list[bool] = []
    for number, settings in enumerate(nodes, 11):
        with links_of(number, settings) as links:
            found.append(await refusal_of(links, voter(2, port)) == LET_IN)
    return found


def test_a_user_of_super_users_is_let_in_and_others_only_by_an_acl(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port, authority = free_ports(1)[0], Authority(tmp_path / "authority")
    tls = {**tls_of(authority, "/CN=node"), "listener.security.protocol.map": ""}
    node, other, wrong = (
        {**tls, **login(*who, protocol="SASL_SSL")} for who in (("node",), ("other",), ("node", "wrong"))
    )

    async def run() -> None:
        settings = settings_of(2, port, more=node)
        assert settings.admittance is Admittance.LOGIN
        async with listening(settings) as service:
            assert await outcomes(port, node, other, wrong) == [True, False, False]
            asked: list[str] = []
            service.may_act = lambda context: asked.append(str(context.principal)) is None
            assert await outcomes(port, other, wrong) == [True, False]
            assert asked == ["User:other"]
            with links_of(4, node) as links:
                assert (await links.standing(HOST, port)).node_id == 2

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
    said = [(one.name, one.getMessage()) for one in caplog.records if one.name.startswith("nilometer")]
    assert {name for name, _ in said} <= {*ABOUT_CONNECTIONS, *ABOUT_LOGINS}, "their lines are bounded"
    assert [text for _, text in said if "its user, 'User:other', is none of super.users" in text]
    assert [text for _, text in said if "mechanism PLAIN: Invalid username or password" in text]
    assert not [text for _, text in said if "of-node" in text or "wrong" in text]


def test_with_a_key_a_login_alone_is_not_enough() -> None:
    port = free_ports(1)[0]
    both = {**login(), "nilometer.quorum.secret.file": "/etc/quorum.key"}

    async def run() -> None:
        async with listening(settings_of(2, port, more=both)):
            assert await outcomes(port, both, login(), {**both, **login("node", "wrong")}) == [
                True,
                False,
                False,
            ]

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_a_node_logs_in_again_and_one_that_does_not_is_served_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_ports(1)[0]
    short = {**login(), "listener.name.controller.plain.connections.max.reauth.ms": "300"}

    async def asked_twice(links: QuorumLinks) -> tuple[str, bool]:
        """Return what the second request is told, after the session, and whether its connection was new."""
        assert await refusal_of(links, voter(2, port)) == LET_IN
        before = set(open_connections(links))
        await asyncio.sleep(0.4)
        return await refusal_of(links, voter(2, port)), not before & set(open_connections(links))

    async def run() -> None:
        async with listening(settings_of(2, port, more=short)):
            with links_of(3, short) as links:
                assert await asked_twice(links) == (LET_IN, False)
            monkeypatch.setattr("nilometer.client.network.connection.LOGIN_WINDOW", (100.0, 100.0))
            with links_of(4, short) as links:
                told, _ = await asked_twice(links)
                assert told != LET_IN

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def open_connections(links: QuorumLinks) -> list[Connection]:
    return [one for held in vars(links).values() if isinstance(held, dict) for one in held.values()]


def test_a_node_logs_in_by_a_token(tmp_path: Path) -> None:
    port, key = free_ports(1)[0], rsa_key()
    (tmp_path / "keys").write_bytes(jwks(one=key))
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"

    def bearer(name: str, **changed: object) -> dict[str, str]:
        token = tmp_path / f"{name}.token"
        token.write_text(signed(key, claims(**changed)))
        urls = [f"file://{tmp_path / 'keys'}", f"file://{token}"]
        of_listener = "listener.name.controller."
        return {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "sasl.mechanism.controller.protocol": "OAUTHBEARER",
            f"{of_listener}sasl.enabled.mechanisms": "OAUTHBEARER",
            f"{of_listener}oauthbearer.sasl.jaas.config": module,
            f"{of_listener}oauthbearer.sasl.server.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
            "sasl.oauthbearer.jwks.endpoint.url": urls[0],
            "sasl.oauthbearer.token.endpoint.url": urls[1],
            "org.apache.kafka.sasl.oauthbearer.allowed.urls": ",".join(urls),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "super.users": "User:node",
        }

    node, other = bearer("node", sub="node"), bearer("other", sub="other")
    late = bearer("late", sub="node", exp=1_000)

    async def run() -> None:
        async with listening(settings_of(2, port, more=node)):
            assert await outcomes(port, node, other, late) == [True, False, False]

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


def test_a_password_is_not_sent_to_another_machine_without_tls() -> None:
    async def run() -> None:
        elsewhere = "is on another machine, where this node logs in by TLS"
        with links_of(1, login()) as links, pytest.raises(PeerUnavailable, match=elsewhere):
            await links.standing("192.0.2.1", 9_093)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


async def remove(cluster: QuorumBrokers, leader: int, other: int) -> ChangeResult:
    """Remove a voter by the leader's listener of controllers, as a tool does."""
    with links_of(9, login()) as links:
        links.cluster_id = None
        key = VoterKey(BrokerId(other), cluster.directory_id(other))
        return await links.ask(voter(leader, cluster.controllers[leader]), RemoveVoter(key))


def test_brokers_log_in_to_each_other_and_one_more_by_an_acl(tmp_path: Path) -> None:
    shared = {
        **login(),
        "super.users": "User:node;User:ANONYMOUS",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    with QuorumBrokers(tmp_path / "cluster", overrides=shared, has_key=False) as cluster:
        cluster.create_topic("t")
        produce(cluster, "t", ["a"])
        voters = ",".join(f"{one}@{HOST}:{at}" for one, at in cluster.controllers.items())
        observer = {
            "nilometer.coordination": "quorum",
            "process.roles": "broker",
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            **shared,
            JAAS: login("other")[JAAS],
        }
        broker = NilometerBroker(tmp_path / "observer", observer, node_id=4)
        broker.launch()
        try:
            eventually(
                lambda: "'User:other', is none of super.users" in cluster.output(), "refused", TIMEOUT_S
            )
            assert "Ready" not in broker.output
            names = (ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:other", WILDCARD)
            acl = Acl(*names, Operation.CLUSTER_ACTION, Permission.ALLOW)
            cluster.operate(lambda admin: AclAdmin(admin.client, 30_000).create_acls([acl]))
            broker.wait_ready()
        finally:
            broker.kill()
        leader = cluster.controller()
        assert leader is not None
        other = next(one for one in cluster.controllers if one != leader)
        audit = cluster.brokers[leader].data_dir / ".audit" / "audit.log"
        removed = asyncio.run(remove(cluster, leader, other))
        assert removed == DONE

        def noted() -> list[dict[str, Any]]:
            lines = audit.read_text().splitlines() if audit.exists() else []
            return [found for found in map(json.loads, lines) if found["api"] == "REMOVE_RAFT_VOTER"]

        eventually(lambda: noted() != [], "it is noted", TIMEOUT_S)
        (line,) = noted()
        assert (line["kind"], line["principal"], line["listener"]) == ("changed", "User:node", "CONTROLLER")
        assert line["changes"] == [{"voter": f"{other}-{cluster.directory_id(other)}"}]
        assert texts_in(cluster, "t", 1, 1) == ["a"]
