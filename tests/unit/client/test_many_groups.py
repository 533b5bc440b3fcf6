"""Many groups are described with one request for each coordinator, and asked for again one by one failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nilometer.client.admin.admin import ADMIN_CONFIG_DEFINITION
from nilometer.client.admin.group_admin import GROUPS_AT_ONCE, GroupAdmin
from nilometer.client.admin.group_descriptions import GroupDescription
from nilometer.client.network.client import Client
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.settings import ClientSettings
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api
from support.scripted.scripted_broker import ScriptedBroker

GROUPS = [f"g-{number}" for number in range(GROUPS_AT_ONCE + 10)]


class Coordinators:
    """Two brokers: one coordinates groups of the consumer protocol, the other one classic groups."""

    def __init__(self, brokers: list[ScriptedBroker]) -> None:
        self.brokers = brokers
        self.faults: dict[tuple[int, str], list[ErrorCode]] = {}
        """By API key and group: the errors of the next responses."""
        for broker in brokers:
            broker.peers = brokers
            broker.handlers |= {
                ApiKey.FIND_COORDINATOR: self.find,
                ApiKey.CONSUMER_GROUP_DESCRIBE: lambda request, api, broker=broker: self.describe_consumers(
                    broker, request, api
                ),
                ApiKey.DESCRIBE_GROUPS: self.describe_classic,
                ApiKey.OFFSET_FETCH: self.fetch,
            }

    def of(self, group: str) -> ScriptedBroker:
        return self.brokers[int(group.rpartition("-")[2]) % 2]

    def fault(self, key: int, group: str) -> ErrorCode:
        faults = self.faults.get((key, group))
        return faults.pop(0) if faults else ErrorCode.none

    def find(self, request: Any, api: Api) -> Any:
        def found(key: str) -> dict[str, Any]:
            of = self.of(key)
            code = self.fault(ApiKey.FIND_COORDINATOR, key)
            return {"error_code": code, "node_id": of.node_id, "host": of.host, "port": of.port}

        if hasattr(request, "key"):
            return api.response(**found(request.key))
        keys = request.coordinator_keys
        return api.response(
            coordinators=tuple(api.make("Coordinator", key=key, **found(key)) for key in keys)
        )

    def describe_consumers(self, broker: ScriptedBroker, request: Any, api: Api) -> Any:
        def described(group: str) -> Any:
            code = self.fault(ApiKey.CONSUMER_GROUP_DESCRIBE, group)
            if code is ErrorCode.none and broker is not self.brokers[0]:
                code = ErrorCode.group_id_not_found
            return api.make(
                "DescribedGroup",
                group_id=group,
                error_code=code,
                group_state="Stable",
                group_epoch=3,
                assignment_epoch=3,
                assignor_name="uniform",
                members=(),
            )

        return api.response(groups=tuple(map(described, request.group_ids)))

    def describe_classic(self, request: Any, api: Api) -> Any:
        return api.response(
            groups=tuple(
                api.make("DescribedGroup", group_id=group, group_state="Empty", protocol_type="consumer")
                for group in request.groups
            )
        )

    def fetch(self, request: Any, api: Api) -> Any:
        part = {"partition_index": 1, "committed_leader_epoch": 0, "metadata": ""}
        if not hasattr(request, "groups"):
            offset = int(request.group_id.rpartition("-")[2])
            one = api.make("OffsetFetchResponsePartition", committed_offset=offset, **part)
            topic = api.make("OffsetFetchResponseTopic", name="t", partitions=(one,))
            return api.response(topics=(topic,), error_code=self.fault(ApiKey.OFFSET_FETCH, request.group_id))

        def fetched(group: str) -> Any:
            offset = int(group.rpartition("-")[2])
            one = api.make("OffsetFetchResponsePartitions", committed_offset=offset, **part)
            topic = api.make("OffsetFetchResponseTopics", name="t", partitions=(one,))
            code = self.fault(ApiKey.OFFSET_FETCH, group)
            return api.make("OffsetFetchResponseGroup", group_id=group, topics=(topic,), error_code=code)

        return api.response(groups=tuple(fetched(group.group_id) for group in request.groups))

    def count(self, key: int) -> int:
        return sum(broker.count(key) for broker in self.brokers)


def play(
    scenario: Callable[[Coordinators, GroupAdmin], Awaitable[None]],
    versions: dict[int, tuple[int, int]] | None = None,
    timeout_ms: int = 10_000,
) -> None:
    async def run() -> None:
        async with ScriptedBroker(1, versions) as first, ScriptedBroker(2, versions) as second:
            told = Coordinators([first, second])
            given = {"bootstrap.servers": first.address, "retry.backoff.ms": 1, "retry.backoff.max.ms": 5}
            settings = ClientSettings(ADMIN_CONFIG_DEFINITION, given)
            async with Client(Runtime.system(), settings) as client:
                await scenario(told, GroupAdmin(client, timeout_ms))

    asyncio.run(run())


def test_groups_are_described_with_a_request_for_some_of_each_coordinator() -> None:
    async def scenario(told: Coordinators, admin: GroupAdmin) -> None:
        described = await admin.describe(GROUPS)
        assert list(described) == GROUPS
        for number, group in enumerate(GROUPS):
            one = described[group]
            assert isinstance(one, GroupDescription)
            assert one.group_type == ("classic" if number % 2 else "consumer")
            assert one.coordinator_id == 1 + number % 2
        assert told.count(ApiKey.FIND_COORDINATOR) == 1
        assert told.count(ApiKey.CONSUMER_GROUP_DESCRIBE) == 2
        assert told.count(ApiKey.DESCRIBE_GROUPS) == 1

    play(scenario)


def test_no_request_names_more_groups_than_are_asked_for_at_once() -> None:
    async def scenario(told: Coordinators, admin: GroupAdmin) -> None:
        of_one = [f"g-{2 * number}" for number in range(GROUPS_AT_ONCE + 1)]
        assert len(await admin.committed_of(of_one)) == GROUPS_AT_ONCE + 1
        sizes = [
            len(request.groups) for key, request in told.brokers[0].requests if key == ApiKey.OFFSET_FETCH
        ]
        assert sorted(sizes) == [1, GROUPS_AT_ONCE]

    play(scenario)


def test_offsets_of_many_groups_are_those_of_each() -> None:
    async def scenario(told: Coordinators, admin: GroupAdmin) -> None:
        found = await admin.committed_of(GROUPS)
        offsets = []
        for group in GROUPS:
            one = found[group]
            assert not isinstance(one, KafkaError)
            offsets.append(one[TopicPartition("t", 1)].offset)
        assert offsets == list(range(len(GROUPS)))
        assert told.count(ApiKey.OFFSET_FETCH) == 2

    play(scenario)


def test_only_groups_whose_error_is_retriable_are_asked_for_again() -> None:
    async def scenario(told: Coordinators, admin: GroupAdmin) -> None:
        told.faults = {
            (ApiKey.OFFSET_FETCH, "g-0"): [ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress],
            (ApiKey.OFFSET_FETCH, "g-1"): [ErrorCode.group_authorization_failed],
            (ApiKey.FIND_COORDINATOR, "g-3"): [ErrorCode.coordinator_not_available],
        }
        found = await admin.committed_of(["g-0", "g-1", "g-2", "g-3"])
        failed = {group: error.code for group, error in found.items() if isinstance(error, KafkaError)}
        assert failed == {"g-1": ErrorCode.group_authorization_failed}
        asked = [
            [group.group_id for group in request.groups]
            for broker in told.brokers
            for key, request in broker.requests
            if key == ApiKey.OFFSET_FETCH
        ]
        assert asked == [["g-0", "g-2"], ["g-0"], ["g-0"], ["g-1"], ["g-3"]]
        assert told.count(ApiKey.FIND_COORDINATOR) == 2, "the second one for g-0, which has moved, and g-3"

    play(scenario)


def test_an_error_that_stays_is_that_of_its_group() -> None:
    async def scenario(told: Coordinators, admin: GroupAdmin) -> None:
        told.faults = {(ApiKey.OFFSET_FETCH, "g-0"): [ErrorCode.coordinator_load_in_progress] * 1_000}
        found = await admin.committed_of(["g-0", "g-2"])
        assert isinstance(found["g-0"], KafkaError)
        # It may time out within an attempt, and then names the last error.
        assert "COORDINATOR_LOAD_IN_PROGRESS" in str(found["g-0"])
        assert not isinstance(found["g-2"], KafkaError)

    play(scenario, timeout_ms=1_000)


def test_older_brokers_are_asked_for_one_group_at_a_time() -> None:
    async def scenario(told: Coordinators, admin: GroupAdmin) -> None:
        found = await admin.committed_of(GROUPS[:6])
        assert [isinstance(one, KafkaError) for one in found.values()] == [False] * 6
        assert told.count(ApiKey.FIND_COORDINATOR) == told.count(ApiKey.OFFSET_FETCH) == 6

    play(scenario, {ApiKey.FIND_COORDINATOR: (0, 3), ApiKey.OFFSET_FETCH: (0, 7)})
