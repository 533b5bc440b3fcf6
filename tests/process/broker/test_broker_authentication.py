"""What only brokers ask: served on a connection that proved to be that broker, and on no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from nilometer.broker.control.broker_peers import PeerNotProved
from nilometer.cluster.cluster_secret import (
    KEY_BYTES,
    ClusterSecret,
    ClusterSecrets,
    ProofExchange,
    Side,
    broker_proof,
)
from nilometer.runtime import Runtime
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.broker_identity import NONCE, Identity, ask_proof, prove
from support.brokers.nilometer_cluster import NilometerCluster
from support.scripted.scripted_broker import ScriptedBroker
from support.wire.wire_peer import ConnectionEnded, WirePeer, make

TOPIC = "guarded"
REFUSED = ErrorCode.cluster_authorization_failed
STRANGER = "forwarded-by-broker-2"
"""A client id that says it is a broker is worth nothing."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    with NilometerCluster(tmp_path_factory.mktemp("guarded"), 2) as cluster:
        cluster.create_topic(TOPIC, assignments={0: (1, 2)})
        cluster.wait_full_isr(TOPIC)
        yield cluster


@pytest.fixture(scope="module")
def identity(cluster: NilometerCluster) -> Identity:
    return Identity.of_store(cluster.folder / "coordination")


@pytest.fixture
def stranger(cluster: NilometerCluster) -> Iterator[WirePeer]:
    with WirePeer(cluster.brokers[1].bootstrap, STRANGER) as peer:
        yield peer


@pytest.fixture
def broker(cluster: NilometerCluster, identity: Identity) -> Iterator[WirePeer]:
    """A connection to broker 1 that has proved to be broker 2."""
    with WirePeer(cluster.brokers[1].bootstrap) as peer:
        prove(peer, identity, as_broker=2, to_broker=1)
        yield peer


def stop_broker(peer: WirePeer, broker_id: int) -> int:
    return peer.ask(
        ApiKey.BROKER_HEARTBEAT,
        1,
        broker_id=broker_id,
        broker_epoch=-1,
        current_metadata_offset=0,
        want_fence=False,
        want_shut_down=True,
    ).error_code


def shrink_isr(peer: WirePeer, broker_id: int) -> int:
    return peer.ask(ApiKey.ALTER_PARTITION, 3, broker_id=broker_id, broker_epoch=-1, topics=()).error_code


def allocate_ids(peer: WirePeer, broker_id: int) -> int:
    return peer.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=broker_id, broker_epoch=-1).error_code


def forfeit(peer: WirePeer, broker_id: int) -> int:
    return peer.ask(
        NilometerApiKey.FORFEIT_REPLICAS, 0, broker_id=broker_id, broker_epoch=-1, replicas=()
    ).error_code


def epoch_end(peer: WirePeer, broker_id: int) -> int:
    key, version = ApiKey.OFFSET_FOR_LEADER_EPOCH, 4
    asked = make(
        key, version, "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0
    )
    topic = make(key, version, "OffsetForLeaderTopic", topic=TOPIC, partitions=(asked,))
    answer = peer.ask(key, version, replica_id=broker_id, topics=(topic,))
    return answer.topics[0].partitions[0].error_code


def fetch(version: int) -> Callable[[WirePeer, int], int]:
    def asked(peer: WirePeer, broker_id: int) -> int:
        partition: dict[str, object] = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        if version >= 5:
            partition["log_start_offset"] = 0
        fields: dict[str, Any] = {"replica_id": broker_id}
        if version >= 15:
            state = make(ApiKey.FETCH, version, "ReplicaState", replica_id=broker_id, replica_epoch=-1)
            fields = {"replica_state": state}
        name = {"topic": TOPIC} if version < 13 else {"topic_id": UUID(int=7)}
        part = make(ApiKey.FETCH, version, "FetchPartition", **partition)
        topic = make(ApiKey.FETCH, version, "FetchTopic", **name, partitions=(part,))
        answer = peer.ask(
            ApiKey.FETCH, version, **fields, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=(topic,)
        )
        if version >= 7 and answer.error_code:
            return answer.error_code
        return answer.responses[0].partitions[0].error_code

    asked.__name__ = f"fetch version {version}"
    return asked


BETWEEN_BROKERS = [stop_broker, shrink_isr, allocate_ids, forfeit, epoch_end, *map(fetch, (4, 6, 7, 14, 18))]


@pytest.mark.parametrize("ask", BETWEEN_BROKERS, ids=lambda ask: ask.__name__)
def test_who_has_not_proved_it_is_no_broker(
    stranger: WirePeer, ask: Callable[[WirePeer, int], int], cluster: NilometerCluster
) -> None:
    for claimed in (1, 2, 9):
        assert ask(stranger, claimed) == REFUSED
    cluster.wait_full_isr(TOPIC)


@pytest.mark.parametrize("ask", BETWEEN_BROKERS, ids=lambda ask: ask.__name__)
def test_a_broker_speaks_for_itself_only(broker: WirePeer, ask: Callable[[WirePeer, int], int]) -> None:
    assert ask(broker, 2) != REFUSED
    for claimed in (1, 9):
        assert ask(broker, claimed) == REFUSED


@pytest.mark.parametrize("ask", [epoch_end, fetch(4), fetch(12)], ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("reader", [-1, -2])
def test_consumers_read_as_ever(stranger: WirePeer, ask: Callable[[WirePeer, int], int], reader: int) -> None:
    assert ask(stranger, reader) == ErrorCode.none


def test_what_is_between_brokers_is_advertised_to_brokers_only(stranger: WirePeer, broker: WirePeer) -> None:
    def advertised(peer: WirePeer) -> set[int]:
        return {one.api_key for one in peer.ask(ApiKey.API_VERSIONS, 0).api_keys}

    between = {
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALTER_PARTITION,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        NilometerApiKey.FORFEIT_REPLICAS,
        NilometerApiKey.FORWARD_REQUEST,
        NilometerApiKey.PROVE_BROKER,
    }
    assert advertised(stranger) & between == set()
    assert advertised(broker) - advertised(stranger) == between
    assert advertised(stranger) >= {NilometerApiKey.DESCRIBE_REPLICAS, NilometerApiKey.DESCRIBE_REBALANCES}


# ── forwarded requests ──────────────────────────────────────────────────────────────────────────────


def forwarded(request: messages.Message, /, **context: object) -> dict[str, object]:
    frame = messages.encode_request(77, "the client", request)[4:]
    told: dict[str, object] = {
        "principal_type": "User",
        "principal_name": "alice",
        "client_address": "192.0.2.1",
        "client_port": 4711,
        "listener": "PLAINTEXT",
        "request": frame,
    }
    return told | context


def delete_nothing() -> messages.Message:
    return messages.api(ApiKey.DELETE_TOPICS, 6).request(topics=(), timeout_ms=1000)


def test_a_forwarded_request_of_a_stranger_is_refused(stranger: WirePeer) -> None:
    told = stranger.ask(NilometerApiKey.FORWARD_REQUEST, 0, **forwarded(delete_nothing()))
    assert told.error_code == REFUSED
    assert not told.response


def test_a_forwarded_request_is_answered_in_the_frame_of_its_client(
    cluster: NilometerCluster, identity: Identity
) -> None:
    controller = cluster.controller()
    assert controller is not None
    with WirePeer(cluster.brokers[controller].bootstrap) as peer:
        prove(peer, identity, as_broker=3 - controller, to_broker=controller)
        told = peer.ask(NilometerApiKey.FORWARD_REQUEST, 0, **forwarded(delete_nothing()))
    assert told.error_code == 0
    correlation_id, answer = messages.decode_response(ApiKey.DELETE_TOPICS, 6, told.response)
    assert correlation_id == 77
    assert answer.responses == ()


def test_a_broker_that_is_not_controller_says_so_to_the_broker_that_asked(
    cluster: NilometerCluster, identity: Identity
) -> None:
    controller = cluster.controller()
    assert controller is not None
    other = 3 - controller
    with WirePeer(cluster.brokers[other].bootstrap) as peer:
        prove(peer, identity, as_broker=controller, to_broker=other)
        told = peer.ask(NilometerApiKey.FORWARD_REQUEST, 0, **forwarded(delete_nothing()))
    assert told.error_code == ErrorCode.not_controller


@pytest.mark.parametrize(
    "request_",
    [
        messages.api(ApiKey.ALTER_PARTITION, 3).request(broker_id=2, broker_epoch=-1, topics=()),
        messages.api(ApiKey.METADATA, 9).request(topics=None),
        messages.api(NilometerApiKey.FORWARD_REQUEST, 0).request(**forwarded(delete_nothing())),
    ],
    ids=["what only brokers ask", "what every broker answers", "another envelope"],
)
def test_only_what_the_controller_decides_for_clients_is_forwarded(
    broker: WirePeer, request_: messages.Message
) -> None:
    told = broker.ask(NilometerApiKey.FORWARD_REQUEST, 0, **forwarded(request_))
    assert told.error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("frame", [b"", b"\0" * 9, b"\0\x14\0\6" + b"\xff" * 20])
def test_a_forwarded_frame_that_cannot_be_read_harms_nothing(broker: WirePeer, frame: bytes) -> None:
    fields = forwarded(delete_nothing(), request=frame)
    assert broker.ask(NilometerApiKey.FORWARD_REQUEST, 0, **fields).error_code == ErrorCode.invalid_request
    assert shrink_isr(broker, 2) != REFUSED


# ── proofs ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_wrong_proof_ends_the_connection_and_is_logged(
    cluster: NilometerCluster, stranger: WirePeer, identity: Identity
) -> None:
    ask_proof(stranger, **identity.hello(2, 1))
    with pytest.raises(ConnectionEnded):
        ask_proof(stranger, proof=b"\0" * 32)
    assert "claims to be broker 2, but its proof is wrong" in cluster.brokers[1].output


def test_a_reflected_proof_is_refused(stranger: WirePeer, identity: Identity) -> None:
    told = ask_proof(stranger, **identity.hello(2, 1))
    with pytest.raises(ConnectionEnded):
        ask_proof(stranger, proof=told.proof)


def test_a_replayed_proof_is_refused(cluster: NilometerCluster, identity: Identity) -> None:
    secret = identity.secrets.current
    with WirePeer(cluster.brokers[1].bootstrap) as first:
        told = ask_proof(first, **identity.hello(2, 1))
        seen = broker_proof(
            secret, Side.INITIATOR, ProofExchange(identity.cluster_id, 2, 1, NONCE, told.nonce)
        )
        assert ask_proof(first, proof=seen).error_code == 0
    with WirePeer(cluster.brokers[1].bootstrap) as second:
        assert ask_proof(second, **identity.hello(2, 1)).nonce != told.nonce
        with pytest.raises(ConnectionEnded):
            ask_proof(second, proof=seen)


def test_a_proof_without_a_beginning_ends_the_connection(stranger: WirePeer) -> None:
    with pytest.raises(ConnectionEnded):
        ask_proof(stranger, proof=b"\0" * 32)


def test_a_connection_proves_itself_once(broker: WirePeer, identity: Identity) -> None:
    assert ask_proof(broker, **identity.hello(9, 1)).error_code == ErrorCode.invalid_request
    assert shrink_isr(broker, 9) == REFUSED


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"expected_broker_id": 2}, ErrorCode.invalid_request),
        ({"broker_id": 1}, ErrorCode.invalid_request),
        ({"broker_id": -1}, ErrorCode.invalid_request),
        ({"nonce": b"short"}, ErrorCode.invalid_request),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_who_mistakes_the_broker_is_told_so_and_gets_no_proof(
    stranger: WirePeer, identity: Identity, change: dict[str, object], error: ErrorCode
) -> None:
    told = ask_proof(stranger, **(identity.hello(2, 1) | change))
    assert told.error_code == error
    assert told.message
    assert not told.proof


def test_a_broker_of_a_cluster_with_another_secret_is_refused(
    cluster: NilometerCluster, identity: Identity
) -> None:
    number = identity.secrets.current.number
    wrong = Identity(identity.cluster_id, ClusterSecrets(ClusterSecret(number, b"x" * KEY_BYTES)))
    host, port = cluster.brokers[1].host, cluster.brokers[1].port

    async def connect() -> None:
        await wrong.peers(2, Runtime.system()).connect(1, host, port, client_id="wrong")

    with pytest.raises(PeerNotProved, match="is not broker 1 of this cluster"):
        asyncio.run(connect())


def test_a_process_on_a_brokers_port_gets_nothing(identity: Identity) -> None:
    """It answers as a broker would, without the secret: it sees the first request and no other."""

    async def connect() -> None:
        async with ScriptedBroker() as fake:
            fake.handlers[NilometerApiKey.PROVE_BROKER] = lambda request, api: api.response(
                secret_number=request.secret_number, nonce=b"n" * 32, proof=b"p" * 32
            )
            peers = identity.peers(2, Runtime.system())
            with pytest.raises(PeerNotProved, match="its proof is wrong"):
                await peers.connect(1, fake.host, fake.port, client_id="deceived")
            ((key, request),) = fake.requests
            assert key == NilometerApiKey.PROVE_BROKER
            assert not request.proof

    asyncio.run(connect())
