"""A topic that does not exist is an error at once; one that a broker does not know yet is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nilometer.client.admin.admin import Admin, ConfigChange, ResourceType
from nilometer.client.admin.group_admin import partitions_of
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api
from support.scripted.scripted_broker import ScriptedBroker

TIMEOUT_MS = 2_000
"""Long enough for many attempts, which follow each other within milliseconds."""


class Configs(ScriptedBroker):
    """Does not know a topic's configuration before it has been asked ``behind`` times."""

    def __init__(self, behind: int) -> None:
        super().__init__()
        self.behind = behind
        self.handlers |= {
            ApiKey.DESCRIBE_CONFIGS: self._describe,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._alter,
        }

    def _describe(self, request: Any, codec: Api) -> Any:
        (asked,) = request.resources
        is_behind = self.count(ApiKey.DESCRIBE_CONFIGS) <= self.behind
        result = codec.make(
            "DescribeConfigsResult",
            error_code=ErrorCode.unknown_topic_or_partition if is_behind else ErrorCode.none,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=(),
        )
        return codec.response(results=(result,))

    def _alter(self, request: Any, codec: Api) -> Any:
        (asked,) = request.resources
        result = codec.make(
            "AlterConfigsResourceResponse",
            error_code=ErrorCode.unknown_topic_or_partition,
            error_message=None,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
        return codec.response(responses=(result,))


def admin_of(broker: ScriptedBroker) -> Admin:
    keys = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "default.api.timeout.ms": TIMEOUT_MS}
    return Admin(Runtime.system(), {"bootstrap.servers": broker.address, **keys})


ASK: dict[int, Callable[[Admin], Awaitable[object]]] = {
    ApiKey.DESCRIBE_CONFIGS: lambda admin: admin.describe_configs(ResourceType.TOPIC, "none"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda admin: admin.incremental_alter_configs(
        ResourceType.TOPIC, "none", [ConfigChange("retention.ms", "1")]
    ),
}


@pytest.mark.parametrize("key", ASK, ids=lambda key: ApiKey(key).name)
async def test_the_configuration_of_no_topic_is_requested_once(key: int) -> None:
    async with Configs(behind=1_000_000) as broker, admin_of(broker) as admin:
        with pytest.raises(KafkaError, match="topic none does not exist") as failed:
            await ASK[key](admin)
        assert failed.value.code is ErrorCode.unknown_topic_or_partition
        assert broker.count(key) == 1


async def test_a_topic_that_only_the_controller_knows_yet_is_requested_again() -> None:
    async with Configs(behind=3) as broker, admin_of(broker) as admin:
        broker.topics["young"] = [(1, 0)]
        assert await admin.describe_configs(ResourceType.TOPIC, "young") == {}
        assert broker.count(ApiKey.DESCRIBE_CONFIGS) == 4


async def test_the_partitions_of_no_topic_are_requested_of_one_broker_and_the_controller() -> None:
    async with ScriptedBroker() as broker, admin_of(broker) as admin:
        before = broker.count(ApiKey.METADATA)
        with pytest.raises(KafkaError, match="topic none does not exist"):
            await partitions_of(admin.client, "none", [], TIMEOUT_MS)
        assert broker.count(ApiKey.METADATA) - before == 2


async def test_an_admin_that_has_ended_keeps_no_connection() -> None:
    async with ScriptedBroker() as broker:
        async with admin_of(broker) as admin:
            connection = await admin.client.connections.get(1)
            assert not connection.closed
        assert connection.closed
