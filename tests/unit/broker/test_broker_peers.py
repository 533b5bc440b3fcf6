"""Connecting to a broker of a version without proofs: refused where proofs are required, used where not."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.broker.control.broker_peers import BrokerPeers, PeerNotResponding
from nilometer.cluster.cluster_secret import KEY_BYTES, ClusterSecrets
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from support.brokers.broker_identity import Identity
from support.scripted.scripted_broker import HANG_UP, ScriptedBroker

IDENTITY = Identity("cluster", ClusterSecrets.first(b"k" * KEY_BYTES))


def old_broker() -> ScriptedBroker:
    """It ends connections on which it is asked what it does not know."""
    broker = ScriptedBroker()
    broker.handlers[NilometerApiKey.PROVE_BROKER] = lambda request, api: HANG_UP
    return broker


def peers(*, accept_unproved: bool) -> BrokerPeers:
    made = IDENTITY.peers(2, Runtime.system())
    made._accept_unproved = accept_unproved
    return made


def test_where_proofs_are_required_nothing_is_sent_to_it() -> None:
    async def connect() -> None:
        async with old_broker() as old:
            with pytest.raises(PeerNotResponding, match="authentication=accept"):
                await peers(accept_unproved=False).connect(1, old.host, old.port, client_id="new")
            assert [key for key, _ in old.requests] == [NilometerApiKey.PROVE_BROKER]

    asyncio.run(connect())


def test_where_they_are_not_it_is_used_without(caplog: pytest.LogCaptureFixture) -> None:
    async def connect() -> None:
        async with old_broker() as old:
            new = peers(accept_unproved=True)
            for _ in range(2):
                connection = await new.connect(1, old.host, old.port, client_id="new")
                assert ApiKey.METADATA in connection.versions
                connection.close()

    asyncio.run(connect())
    assert caplog.text.count("Continuing without a proof") == 1


def test_a_broker_that_is_not_there_is_no_broker_without_proofs() -> None:
    async def connect() -> None:
        async with old_broker() as old:
            address = old.host, old.port
        with pytest.raises(Exception, match="cannot connect") as refused:
            await peers(accept_unproved=True).connect(1, *address, client_id="new")
        assert not isinstance(refused.value, PeerNotResponding)

    asyncio.run(connect())
