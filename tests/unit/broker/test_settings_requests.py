"""ListConfigResources and DescribeConfigs: which resources have settings, and which settings they have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api import configs
from nilometer.broker.api.spec import Request
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.turns import Turns
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.records import ConfigResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, RequestHeader, api, decode_response
from support.brokers.fake_rights import rights_of
from support.brokers.listings_at_once import ListingsAtOnce
from support.step_clock import StepClock

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
GIVEN = {
    (ConfigResourceType.BROKER, ""): {"message.max.bytes": "2000"},
    (ConfigResourceType.BROKER, "1"): {"message.max.bytes": "3000"},
    (ConfigResourceType.TOPIC, "t"): {"max.message.bytes": "4000"},
    (ConfigResourceType.GROUP, "g"): {"share.session.timeout.ms": "50000"},
}
IMAGE = SimpleNamespace(
    topics=lambda: [SimpleNamespace(name="t"), SimpleNamespace(name="u")],
    topic=lambda name: SimpleNamespace(name=name) if name in ("t", "u") else None,
    live_brokers=lambda: [SimpleNamespace(id=1)],
    config_resources=lambda: [ConfigResource(*one) for one in GIVEN],
    config=lambda kind, name: GIVEN.get((kind, name), {}),
)


def send(
    key: ApiKey,
    version: int,
    handle: Callable[[Any, Request], Response | asyncio.Future[Response]],
    body: Message,
) -> Message:
    config = BrokerConfig({"node.id": "1"})
    listings = ListingsAtOnce(Turns(StepClock()))
    metadata = SimpleNamespace(image=IMAGE)
    parts = SimpleNamespace(rights=rights_of(), metadata=metadata, config=config, listings=listings)
    header = RequestHeader(key, version, 1, "test", 0)
    request = Request(header, body, api(key, version), cast(Any, None), RequestContext())

    async def answered() -> Any:
        response = cast(Any, handle(parts, request))
        return await response if isinstance(response, asyncio.Future) else response

    frame = b"".join(map(bytes, asyncio.run(answered())))
    return decode_response(key, version, frame[4:])[1]


def listed(version: int, **fields: object) -> tuple[ErrorCode, set[tuple[int, str]]]:
    key = ApiKey.LIST_CONFIG_RESOURCES
    response = send(key, version, configs.handle_list, api(key, version).request(**fields))
    return response.error_code, {
        (getattr(one, "resource_type", METRICS), one.resource_name) for one in response.config_resources
    }


def describe(kind: int, name: str, *keys: str) -> Message:
    key = ApiKey.DESCRIBE_CONFIGS
    codec = api(key, 4)
    resource = codec.make_request(
        "DescribeConfigsResource",
        resource_type=kind,
        resource_name=name,
        configuration_keys=keys or None,
    )
    body = codec.request(resources=(resource,), include_synonyms=False, include_documentation=False)
    (result,) = send(key, 4, configs.handle_describe, body).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def described(kind: int, name: str, *keys: str) -> tuple[ErrorCode, dict[str, str]]:
    result = describe(kind, name, *keys)
    return result.error_code, {one.name: one.value for one in result.configs}


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


@pytest.mark.parametrize(
    ("kind", "name", "key", "value"),
    [
        (TOPIC, "t", "max.message.bytes", "4000"),
        (TOPIC, "u", "max.message.bytes", "3000"),
        (BROKER, "1", "message.max.bytes", "3000"),
        (BROKER, "", "message.max.bytes", "2000"),
        (GROUP, "g", "share.session.timeout.ms", "50000"),
        (GROUP, "another", "share.session.timeout.ms", "45000"),
    ],
)
def test_the_settings_that_are_in_force_are_described(kind: int, name: str, key: str, value: str) -> None:
    assert described(kind, name, key) == (ErrorCode.none, {key: value})


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "missing", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "a/b", ErrorCode.invalid_topic_exception),
        (BROKER, "2", ErrorCode.invalid_request),
        (LOGGER, "2", ErrorCode.invalid_request),
        (GROUP, "", ErrorCode.invalid_request),
        (METRICS, "", ErrorCode.invalid_request),
        (99, "t", ErrorCode.invalid_request),
    ],
)
def test_settings_of_what_is_not_here_are_refused(kind: int, name: str, error: ErrorCode) -> None:
    assert described(kind, name) == (error, {})


@pytest.mark.parametrize(
    ("kind", "name", "key", "is_read_only"),
    [
        (BROKER, "1", "node.id", True),
        (BROKER, "1", "message.max.bytes", False),
        (TOPIC, "t", "max.message.bytes", False),
        (GROUP, "g", "share.session.timeout.ms", False),
    ],
)
def test_only_what_a_broker_reads_at_its_start_cannot_be_altered(
    kind: int, name: str, key: str, is_read_only: bool
) -> None:
    (config,) = describe(kind, name, key).configs
    assert config.read_only is is_read_only
