"""ListConfigResources: which resources with settings are listed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api import configs
from nilometer.broker.api.spec import Request
from nilometer.broker.request_context import RequestContext
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.records import ConfigResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of

KEY = ApiKey.LIST_CONFIG_RESOURCES
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
IMAGE = SimpleNamespace(
    topics=lambda: [SimpleNamespace(name="t"), SimpleNamespace(name="u")],
    live_brokers=lambda: [SimpleNamespace(id=1)],
    config_resources=lambda: [
        ConfigResource(ConfigResourceType.GROUP, "g"),
        ConfigResource(ConfigResourceType.TOPIC, "t"),
    ],
)


def listed(version: int, **fields: object) -> tuple[ErrorCode, set[tuple[int, str]]]:
    parts = cast(Any, SimpleNamespace(rights=rights_of(), metadata=SimpleNamespace(image=IMAGE)))
    codec = api(KEY, version)
    header = RequestHeader(KEY, version, 1, "test", 0)
    request = Request(header, codec.request(**fields), codec, cast(Any, None), RequestContext())
    frame = b"".join(map(bytes, cast(Any, configs.handle_list(parts, request))))
    response = decode_response(KEY, version, frame[4:])[1]
    return response.error_code, {
        (getattr(one, "resource_type", METRICS), one.resource_name) for one in response.config_resources
    }


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), {(TOPIC, "t"), (TOPIC, "u"), (BROKER, "1"), (LOGGER, "1"), (GROUP, "g")}),
        ((TOPIC,), {(TOPIC, "t"), (TOPIC, "u")}),
        ((GROUP, BROKER), {(GROUP, "g"), (BROKER, "1")}),
        ((METRICS,), set[tuple[int, str]]()),
    ],
)
def test_resources_of_the_types_in_the_request_are_listed_and_all_without_types(
    kinds: tuple[int, ...], expected: set[tuple[int, str]]
) -> None:
    assert listed(1, resource_types=kinds) == (ErrorCode.none, expected)


def test_an_unknown_type_is_refused() -> None:
    assert listed(1, resource_types=(TOPIC, 99)) == (ErrorCode.unsupported_version, set())


def test_the_first_version_lists_the_subscriptions_of_client_metrics_of_which_there_are_none() -> None:
    assert listed(0) == (ErrorCode.none, set())
