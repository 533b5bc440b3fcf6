"""What is wrong with a request is said as Apache Kafka says it, to who has all rights and to who has none.

`tests/compatibility/as_kafka` compares more of it with Apache Kafka itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from nilometer.cli.main import run
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.sasl_broker import PASSWORDS, SaslBroker, sasl_broker
from support.brokers.two_brokers import Side
from support.wire.wire_peer import WirePeer, make

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC, BROKER = 2, 4
RETENTION = "log.retention.ms"
BAD_NAMES = ("a b", "x" * 250)
ALTERING = ((ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    with sasl_broker(tmp_path_factory.mktemp("malformed") / "data", AUTHORIZER) as running:
        yield running


@pytest.fixture
def peer(broker: SaslBroker) -> Iterator[WirePeer]:
    """A client with all rights."""
    with WirePeer(broker.open_bootstrap) as one:
        yield one


@contextmanager
def logged_in(broker: SaslBroker, user: str) -> Iterator[WirePeer]:
    with WirePeer(broker.bootstrap) as one:
        assert one.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == ErrorCode.none
        login = f"\0{user}\0{PASSWORDS[user]}".encode()
        assert one.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=login).error_code == ErrorCode.none
        yield one


@pytest.fixture
def stranger(broker: SaslBroker) -> Iterator[WirePeer]:
    """A client without any right."""
    with logged_in(broker, "alice") as one:
        yield one


@pytest.fixture
def reader(broker: SaslBroker) -> Iterator[WirePeer]:
    """A client that may describe every topic, and create none."""
    allowed = ("--principal", "User:bob", "--operation", "describe", "--topic", "*")
    assert run(["acl", "add", "allow", *allowed, "--bootstrap-server", broker.open_bootstrap]) == 0
    with logged_in(broker, "bob") as one:
        yield one


def metadata(peer: WirePeer, version: int, *topics: dict[str, Any], create: bool = False) -> list[Any]:
    """Return (name, error) of each topic in the response."""
    asked = tuple(make(ApiKey.METADATA, version, "MetadataRequestTopic", **one) for one in topics)
    more = {"allow_auto_topic_creation": create} if version >= 4 else {}
    found = peer.ask(ApiKey.METADATA, version, topics=asked, **more).topics
    return [(one.name, ErrorCode(one.error_code)) for one in found]


def alter(
    peer: WirePeer, api: tuple[ApiKey, int], kind: int, name: str, *settings: tuple[str, Any]
) -> ErrorCode:
    key, version = api
    more = {"config_operation": 0} if key is ApiKey.INCREMENTAL_ALTER_CONFIGS else {}
    configs = tuple(
        make(key, version, "AlterableConfig", name=one, value=value, **more) for one, value in settings
    )
    resource = make(
        key, version, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs
    )
    (response,) = peer.ask(key, version, resources=(resource,), validate_only=True).responses
    return ErrorCode(response.error_code)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_states_of_transactions_that_do_not_exist(peer: WirePeer, version: int) -> None:
    """Also where no transaction is coordinated: a client would take a wrong name for an empty list."""
    found = peer.ask(
        ApiKey.LIST_TRANSACTIONS, version, state_filters=("Ongoing", "Sleeping"), producer_id_filters=()
    )
    assert found.error_code == ErrorCode.none
    assert list(found.unknown_state_filters) == ["Sleeping"]


@pytest.mark.parametrize("api", ALTERING)
def test_malformed_alterations_of_who_may_alter_nothing(
    peer: WirePeer, stranger: WirePeer, api: tuple[ApiKey, int]
) -> None:
    for kind, name in ((BROKER, "1"), (BROKER, ""), (TOPIC, "missing")):
        setting = "retention.ms" if kind == TOPIC else RETENTION
        for malformed in (((setting, "1"), (setting, "2")), ((setting, None),)):
            assert alter(stranger, api, kind, name, *malformed) is ErrorCode.invalid_request
            assert alter(peer, api, kind, name, *malformed) is ErrorCode.invalid_request
        denied = alter(stranger, api, kind, name, (setting, "1"))
        assert denied in (ErrorCode.cluster_authorization_failed, ErrorCode.topic_authorization_failed)


@pytest.mark.parametrize("api", ALTERING)
@pytest.mark.parametrize("name", ["nowhere", "7", "-1"])
def test_settings_of_a_broker_that_does_not_exist(
    peer: WirePeer, stranger: WirePeer, api: tuple[ApiKey, int], name: str
) -> None:
    """Who may alter nothing is not told which brokers there are."""
    assert alter(peer, api, BROKER, "1", (RETENTION, "1")) is ErrorCode.none
    assert alter(peer, api, BROKER, name, (RETENTION, "1")) is ErrorCode.invalid_request
    assert alter(stranger, api, BROKER, name, (RETENTION, "1")) is ErrorCode.cluster_authorization_failed


@pytest.mark.parametrize("version", [0, 3, 12])
def test_topics_with_names_that_no_topic_may_have(
    peer: WirePeer, reader: WirePeer, stranger: WirePeer, version: int
) -> None:
    for name in BAD_NAMES:
        for create in (False, True):
            found = metadata(peer, version, {"name": name}, create=create)
            assert found == [(name, ErrorCode.invalid_topic_exception)]
            found = metadata(stranger, version, {"name": name}, create=create)
            assert found == [(name, ErrorCode.topic_authorization_failed)]
            ((_, error),) = metadata(reader, version, {"name": name}, create=create)
            is_created = create or version < 4  # the first versions cannot say that nothing is to be created
            assert (error is ErrorCode.topic_authorization_failed) is is_created


@pytest.mark.parametrize("version", [10, 11, 12])
def test_topics_without_a_name_and_an_id(peer: WirePeer, version: int) -> None:
    found = metadata(peer, version, {"name": None, "topic_id": None}, {"name": "nowhere", "topic_id": None})
    assert sorted(found) == [("", ErrorCode.invalid_request), ("nowhere", ErrorCode.invalid_request)]


def test_topics_by_name_beside_topics_by_id(broker: SaslBroker, peer: WirePeer) -> None:
    side = Side("Nilometer", broker.open_bootstrap)
    named, other = side.create("named"), side.create("other")
    side.hang_up()
    by_id = {"name": None, "topic_id": side.topic_ids[other]}
    for topics in (({"name": named}, by_id), (by_id, {"name": named})):
        assert metadata(peer, 12, *topics) == [("other", ErrorCode.none)]
    unknown = {"name": None, "topic_id": UUID(int=7)}
    assert metadata(peer, 12, {"name": named}, unknown) == [(None, ErrorCode.unknown_topic_id)]
    assert metadata(peer, 12, {"name": named}) == [(named, ErrorCode.none)]
