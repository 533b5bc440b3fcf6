"""Connecting to another broker: of a version without proofs, or one that accepts users."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.broker.control.broker_peers import BrokerPeers, PeerNotProved, PeerNotResponding
from nilometer.broker.settings.broker_authentication import BrokerAuthentication
from nilometer.cluster.cluster_secret import KEY_BYTES, ClusterSecrets
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.broker_identity import Identity
from support.scripted.scripted_broker import HANG_UP, ScriptedBroker

IDENTITY = Identity("cluster", ClusterSecrets.first(b"k" * KEY_BYTES))


def old_broker() -> ScriptedBroker:
    """It ends connections on which it is asked what it does not know."""
    broker = ScriptedBroker()
    broker.handlers[NilometerApiKey.PROVE_BROKER] = lambda request, api: HANG_UP
    return broker


def peers(how: BrokerAuthentication = BrokerAuthentication.SECRET) -> BrokerPeers:
    return IDENTITY.peers(2, Runtime.system(), how)


def test_where_proofs_are_required_nothing_is_sent_to_it() -> None:
    async def connect() -> None:
        async with old_broker() as old:
            with pytest.raises(PeerNotResponding, match="authentication=accept"):
                await peers().connect(1, old.host, old.port, client_id="new")
            assert [key for key, _ in old.requests] == [NilometerApiKey.PROVE_BROKER]

    asyncio.run(connect())


def test_where_they_are_not_it_is_used_without(caplog: pytest.LogCaptureFixture) -> None:
    async def connect() -> None:
        async with old_broker() as old:
            new = peers(BrokerAuthentication.SECRET_OR_NOTHING)
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
            await peers(BrokerAuthentication.SECRET_OR_NOTHING).connect(1, *address, client_id="new")
        assert not isinstance(refused.value, PeerNotResponding)

    asyncio.run(connect())


# ── a broker that accepts the user of the connection ────────────────────────────────────────────────


def answering(**fields: object) -> ScriptedBroker:
    broker = ScriptedBroker()
    broker.handlers[NilometerApiKey.PROVE_BROKER] = lambda request, api: api.response(**fields)
    return broker


async def connect_to(broker: ScriptedBroker, how: BrokerAuthentication) -> None:
    async with broker as other:
        connection = await peers(how).connect(1, other.host, other.port, client_id="new")
        connection.close()


def test_by_the_listener_nothing_is_made_with_the_secret() -> None:
    other = answering()
    asyncio.run(connect_to(other, BrokerAuthentication.LISTENER))
    first = next(request for key, request in other.requests if key == NilometerApiKey.PROVE_BROKER)
    assert (first.cluster_id, first.broker_id, first.expected_broker_id) == ("cluster", 2, 1)
    assert (first.nonce, first.proof, first.secret_number) == (b"", b"", -1)


def test_between_the_two_restarts_the_other_broker_chooses() -> None:
    other = answering()
    asyncio.run(connect_to(other, BrokerAuthentication.LISTENER_OR_SECRET))
    first = next(request for key, request in other.requests if key == NilometerApiKey.PROVE_BROKER)
    assert first.nonce, "it may require the secret"
    wrong = answering(nonce=b"n" * 32, proof=b"p" * 32, secret_number=0)
    with pytest.raises(PeerNotProved, match="its proof is wrong"):
        asyncio.run(connect_to(wrong, BrokerAuthentication.LISTENER_OR_SECRET))


@pytest.mark.parametrize(
    ("number", "said", "advice"),
    [
        (
            0,
            "is not broker 1 of this cluster: its proof is wrong",
            "Check the advertised.listeners of",
        ),
        (7, "broker 1 with number 7 of the cluster's secret, which", "must use the same coordination store"),
    ],
)
def test_a_wrong_proof_is_not_an_unknown_secret(
    number: int, said: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = answering(nonce=b"n" * 32, proof=b"p" * 32, secret_number=number)
    with pytest.raises(PeerNotProved, match=said):
        asyncio.run(connect_to(other, BrokerAuthentication.SECRET))
    assert said in caplog.text and advice in caplog.text
    assert [key for key, _ in other.requests] == [NilometerApiKey.PROVE_BROKER]


@pytest.mark.parametrize("how", [BrokerAuthentication.SECRET, BrokerAuthentication.SECRET_OR_NOTHING])
def test_where_the_secret_is_required_another_way_is_refused(
    how: BrokerAuthentication,
) -> None:
    other = answering()
    with pytest.raises(PeerNotProved, match="authenticates brokers otherwise"):
        asyncio.run(connect_to(other, how))
    assert [key for key, _ in other.requests] == [NilometerApiKey.PROVE_BROKER]


def test_a_proof_that_was_not_asked_for_is_not_believed() -> None:
    other = answering(nonce=b"n" * 32, proof=b"p" * 32)
    with pytest.raises(PeerNotProved, match="authenticates brokers otherwise"):
        asyncio.run(connect_to(other, BrokerAuthentication.LISTENER))
    assert [key for key, _ in other.requests] == [NilometerApiKey.PROVE_BROKER]


@pytest.mark.parametrize("how", BrokerAuthentication)
def test_a_broker_that_rejects_this_one_says_why(how: BrokerAuthentication) -> None:
    """Also one that accepts brokers without proofs does not go on without one then."""
    code = int(ErrorCode.cluster_authorization_failed)
    other = answering(error_code=code, message="User:b is not in super.users")
    with pytest.raises(PeerNotProved, match="does not accept this broker: User:b is not") as refused:
        asyncio.run(connect_to(other, how))
    assert not isinstance(refused.value, PeerNotResponding)
    assert [key for key, _ in other.requests] == [NilometerApiKey.PROVE_BROKER]
