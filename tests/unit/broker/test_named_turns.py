"""The watchdog names a turn after the request that it was about."""

from __future__ import annotations

from nilometer.broker.quorum.serving import QuorumService
from nilometer.broker.turns import Turns
from nilometer.identifiers import BrokerId
from nilometer.raft.voters import VoterKey
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey, api_name
from nilometer.wire.messages import api, encode_request
from support.brokers.quorum_nodes import KEY, settings_of


async def test_a_turn_at_the_listener_of_controllers_is_named_after_its_request() -> None:
    settings, runtime = settings_of(1, 9_093), Runtime.system()
    service = QuorumService(settings, runtime, KEY, VoterKey(BrokerId(1), "folder"), Turns(runtime.clock))
    connection = service.new_connection(settings.listeners[0])
    asked = api(ApiKey.API_VERSIONS, 0).request()
    service.dispatch(encode_request(1, "test", asked)[4:], connection)
    assert connection.kind == "ApiVersions"


def test_all_unknown_apis_have_one_name() -> None:
    """Each name is kept, with its longest turn."""
    names = {api_name(number) for number in range(-(2**15), 2**15)}
    assert len(names) < 200 and "unknown API" in names
