"""The first roll of an upgrade: brokers that accept also those which cannot prove themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey, NilometerApiKey
from nilometer.wire.errors import ErrorCode
from support.authorization.prepared import AUTHORIZED, create_acls
from support.authorization.profiles import ADMIN_HOST, everything
from support.brokers.broker_identity import Identity, ask_proof, prove
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.brokers.two_brokers import Side
from support.eventually import eventually
from support.wire.wire_peer import ConnectionEnded, WirePeer

ACCEPT = {"nilometer.inter.broker.authentication": "accept"}
REFUSED = ErrorCode.cluster_authorization_failed


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerCluster]:
    """Broker 1 accepts, broker 2 requires: between the two rolls."""
    folder = tmp_path_factory.mktemp("rolling")
    with NilometerCluster(folder, 2, own_overrides={1: ACCEPT}) as cluster:
        cluster.create_topic("rolled", assignments={0: (1, 2)})
        cluster.create_topic("rolled-too", assignments={0: (2, 1)})
        yield cluster


def allocate(cluster: NilometerCluster, broker_id: int, as_broker: int) -> int:
    with WirePeer(cluster.brokers[broker_id].bootstrap, f"forwarded-by-broker-{as_broker}") as peer:
        key = ApiKey.ALLOCATE_PRODUCER_IDS
        return peer.ask(key, 0, broker_id=as_broker, broker_epoch=-1).error_code


def test_both_kinds_replicate_from_each_other(cluster: NilometerCluster) -> None:
    cluster.wait_full_isr("rolled")
    cluster.wait_full_isr("rolled-too")


def test_an_unproved_broker_is_served_by_who_accepts(cluster: NilometerCluster) -> None:
    assert allocate(cluster, 1, as_broker=2) != REFUSED
    assert allocate(cluster, 2, as_broker=1) == REFUSED


def test_old_brokers_find_advertised_what_they_ask(cluster: NilometerCluster) -> None:
    for broker_id, found in ((1, True), (2, False)):
        with WirePeer(cluster.brokers[broker_id].bootstrap) as peer:
            keys = {one.api_key for one in peer.ask(ApiKey.API_VERSIONS, 0).api_keys}
            assert (ApiKey.ALTER_PARTITION in keys) is found


def test_who_tries_to_prove_itself_must_succeed(cluster: NilometerCluster) -> None:
    identity = Identity.of_store(cluster.folder / "coordination")
    with WirePeer(cluster.brokers[1].bootstrap) as peer:
        ask_proof(peer, **identity.hello(2, 1))
        with pytest.raises(ConnectionEnded):
            ask_proof(peer, proof=b"\0" * 32)
    with WirePeer(cluster.brokers[1].bootstrap) as peer:
        prove(peer, identity, as_broker=2, to_broker=1)
        refused = peer.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=9, broker_epoch=-1)
        assert refused.error_code == REFUSED  # it proved to be another


def test_an_envelope_is_taken_from_proved_brokers_only(cluster: NilometerCluster) -> None:
    inner = messages.api(ApiKey.DELETE_TOPICS, 6).request(topics=(), timeout_ms=1000)
    with WirePeer(cluster.brokers[1].bootstrap, "forwarded-by-broker-2") as peer:
        told = peer.ask(
            NilometerApiKey.FORWARD_REQUEST,
            0,
            principal_type="User",
            principal_name="admin",
            client_address="",
            client_port=0,
            listener="PLAINTEXT",
            request=messages.encode_request(1, "old", inner)[4:],
        )
    assert told.error_code == REFUSED


def test_with_acls_an_unproved_broker_needs_a_right(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data", {**AUTHORIZED, **ACCEPT}) as broker:

        def is_served(host: str) -> bool:
            with WirePeer(broker.bootstrap, source=host) as peer:
                answer = peer.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=-1)
                return answer.error_code != REFUSED

        assert is_served("127.0.0.9"), "everyone has every right before the first ACL"
        admin = Side("admin", broker.bootstrap, ADMIN_HOST)
        create_acls(admin, everything(ADMIN_HOST))
        admin.hang_up()
        eventually(lambda: not is_served("127.0.0.9"), "the ACLs take effect")
        assert is_served(ADMIN_HOST)


def test_a_setting_that_is_neither_is_refused() -> None:
    from nilometer.broker.settings.config import BrokerConfig
    from nilometer.config import ConfigError

    with pytest.raises(ConfigError, match=r"nilometer\.inter\.broker\.authentication"):
        BrokerConfig({"node.id": "1", "nilometer.inter.broker.authentication": "maybe"})
