"""Single nodes of a metadata quorum, without their brokers: a listener of controllers, connections to one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing

import pytest

from nilometer.broker.listening import OpenListeners
from nilometer.broker.quorum.key_file import QuorumKey
from nilometer.broker.quorum.links import QuorumLinks
from nilometer.broker.quorum.serving import QuorumService
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.quorum import QuorumSettings
from nilometer.broker.turns import Turns
from nilometer.coordination.quorum.peers import PeerUnavailable, ReadIndex
from nilometer.identifiers import BrokerId
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.security.sasl import PLAIN_MODULE
from nilometer.wire.own_apis import QuorumStanding

from ..authority import Authority
from ..ports import HOST

USERS = {"node": "of-node", "other": "of-other"}
JAAS = "listener.name.controller.plain.sasl.jaas.config"
KEY = QuorumKey.of(b"k" * 32)
NO_MORE: Mapping[str, str] = {}
LET_IN = "this is a node of cluster own"
"""What a connection that was let in is told if it asks for another cluster."""


def settings_of(
    node_id: int, port: int, listens_at: int | None = None, more: Mapping[str, str] = NO_MORE
) -> QuorumSettings:
    found = BrokerConfig(
        {
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"{node_id}@{HOST}:{port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{HOST}:9092,CONTROLLER://{HOST}:{listens_at or port}",
            **({} if "super.users" in more else {"nilometer.quorum.secret.file": "/etc/quorum.key"}),
            **more,
        }
    ).quorum
    assert found is not None
    return found


def key_of(settings: QuorumSettings) -> QuorumKey | None:
    return None if settings.secret_file is None else KEY


@asynccontextmanager
async def listening(settings: QuorumSettings) -> AsyncIterator[QuorumService]:
    runtime = Runtime.system()
    own = VoterKey(BrokerId(settings.node_id), f"folder-{settings.node_id}")
    service = QuorumService(settings, runtime, key_of(settings), own, Turns(runtime.clock))
    service.cluster_id = "own"
    standing = QuorumStanding(node_id=own.node_id, directory_id=own.directory_id, is_blank=True, voters=())
    service.standing = lambda: standing
    listeners = OpenListeners(settings.listeners, settings.tls)
    await listeners.bind(runtime, service)
    await listeners.start()
    try:
        yield service
    finally:
        listeners.close()
        service.close()


def links_of(node_id: int, more: Mapping[str, str] = NO_MORE) -> closing[QuorumLinks]:
    settings = settings_of(node_id, 9_093, more=more)
    links = QuorumLinks(settings, Runtime.system(), key_of(settings))
    links.cluster_id = "other"
    return closing(links)


def voter(node_id: int, port: int) -> VoterEntry:
    return VoterEntry(VoterKey(BrokerId(node_id), ""), (Endpoint("CONTROLLER", HOST, port),))


async def refusal_of(links: QuorumLinks, to: VoterEntry) -> str:
    with pytest.raises(PeerUnavailable) as caught:
        await links.ask(to, ReadIndex())
    return str(caught.value)


def tls_of(authority: Authority, subject: str) -> dict[str, str]:
    """Return the settings of a node whose listener of controllers has TLS: with a new certificate."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SSL",
        "ssl.keystore.location": str(authority.issue(subject.replace("/CN=", "of-"), subject)),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.truststore.type": "PEM",
    }


def login(
    user: str = "node", password: str | None = None, protocol: str = "SASL_PLAINTEXT"
) -> dict[str, str]:
    """Return the settings of a node that logs in by PLAIN, and knows all users."""
    known = " ".join(f'user_{name}="{text}"' for name, text in USERS.items())
    own = f'username="{user}" password="{password or USERS[user]}"'
    return {
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:{protocol}",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        JAAS: f"{PLAIN_MODULE} required {own} {known};",
        "super.users": "User:node" if user == "node" else f"User:node;User:{user}",
    }
