"""The watchdog names a turn after the request that it was about; requests between controllers are small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nilometer.broker.connection import ServedConnection
from nilometer.broker.quorum.serving import REQUEST_BYTES_MAX, QuorumService
from nilometer.broker.responses import CloseConnection
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.turns import Turns
from nilometer.identifiers import BrokerId
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey, api_name
from nilometer.wire.messages import api, encode_request


def service_of() -> tuple[QuorumService, ServedConnection]:
    config = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    }
    settings, runtime = BrokerConfig(config).quorum, Runtime.system()
    assert settings is not None
    service = QuorumService(settings, runtime, None, VoterKey(BrokerId(1), "folder"), Turns(runtime.clock))
    return service, service.new_connection(settings.listeners[0])


async def test_a_turn_at_the_listener_of_controllers_is_named_after_its_request() -> None:
    service, connection = service_of()
    asked = api(ApiKey.API_VERSIONS, 0).request()
    service.dispatch(encode_request(1, "test", asked)[4:], connection)
    assert connection.kind == "ApiVersions"


async def test_a_request_at_the_listener_of_controllers_names_few_partitions() -> None:
    """A million held the event loop of a node for two seconds."""
    service, connection = service_of()
    connection.context = replace(connection.context, broker_id=2)
    codec = api(ApiKey.DESCRIBE_QUORUM, 2)
    topic = codec.make_request("TopicData", topic_name="", partitions=())
    asked = codec.request(topics=(topic,) * (REQUEST_BYTES_MAX // 3))
    with pytest.raises(CloseConnection, match="at most 8192"):
        service.dispatch(encode_request(1, "test", asked)[4:], connection)


def test_all_unknown_apis_have_one_name() -> None:
    """Each name is kept, with its longest turn."""
    names = {api_name(number) for number in range(-(2**15), 2**15)}
    assert len(names) < 200 and "unknown API" in names
