"""A request for logs in two directories, of which one fails: it is answered, for each log by itself."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.network.connection import Connection
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.disk import DiskUser
from nilometer.simulation.world import World
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, api

FAILING, WHOLE = 1, 0
RECORDS = 8


async def fetch(connection: Connection) -> dict[int, ErrorCode]:
    codec = api(ApiKey.FETCH, 12)
    parts = [
        codec.make_request(
            "FetchPartition",
            partition=index,
            current_leader_epoch=-1,
            fetch_offset=2,
            last_fetched_epoch=-1,
            log_start_offset=0,
            partition_max_bytes=1 << 20,
        )
        for index in (FAILING, WHOLE)
    ]
    topic = codec.make_request("FetchTopic", topic="t", partitions=tuple(parts))
    answer = await connection.send(
        codec.request(replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=(topic,))
    )
    return {each.partition_index: ErrorCode(each.error_code) for each in answer.responses[0].partitions}


async def look_up_by_time(connection: Connection) -> dict[int, ErrorCode]:
    codec = api(ApiKey.LIST_OFFSETS, 5)
    parts = [
        codec.make_request("ListOffsetsPartition", partition_index=each, current_leader_epoch=-1, timestamp=1)
        for each in (FAILING, WHOLE)
    ]
    topic = codec.make_request("ListOffsetsTopic", name="t", partitions=tuple(parts))
    answer = await connection.send(codec.request(replica_id=-1, isolation_level=0, topics=(topic,)))
    return {each.partition_index: ErrorCode(each.error_code) for each in answer.topics[0].partitions}


async def delete_records(connection: Connection) -> dict[int, ErrorCode]:
    codec = api(ApiKey.DELETE_RECORDS, 2)
    parts = [
        codec.make_request("DeleteRecordsPartition", partition_index=each, offset=2)
        for each in (FAILING, WHOLE)
    ]
    topic = codec.make_request("DeleteRecordsTopic", name="t", partitions=tuple(parts))
    answer: Message = await connection.send(codec.request(topics=(topic,), timeout_ms=5_000))
    return {each.partition_index: ErrorCode(each.error_code) for each in answer.topics[0].partitions}


Ask = Callable[[Connection], Awaitable[dict[int, ErrorCode]]]


@pytest.mark.parametrize(
    ("ask", "cold"), [(fetch, 0.0), (fetch, 1.0), (look_up_by_time, 0.0), (delete_records, 0.0)]
)
def test_only_the_log_whose_directory_failed_is_answered_an_error(ask: Ask, cold: float) -> None:
    answers: list[dict[int, ErrorCode]] = []

    async def scenario(world: World) -> BrokerNode:
        cluster = Cluster(world, brokers=1, folders=(2,))
        await cluster.set_up()
        node = cluster.nodes[1]

        async def fill(runtime: Runtime) -> None:
            servers = {"bootstrap.servers": cluster.bootstrap_servers}
            async with Admin(runtime, servers) as admin:
                await admin.create_topic(NewTopic("t", 2, 1))
            async with Producer(runtime, servers) as producer:
                for number in range(RECORDS):
                    await producer.send_and_wait("t", b"%d" % number, partition=number % 2)

        await world.host("clients").start("fill", fill).exited
        (place,) = node.places_of(f"t-{FAILING}")
        assert node.places_of(f"t-{WHOLE}") != [place]
        node.host.disk.cold = cold
        node.host.disk.strike = lambda process, verb, path: fail_in(place, process, verb, path)

        async def ask_both(runtime: Runtime) -> None:
            connection = await Connection.open(
                runtime, node.host.name, node.port, client_id="test", request_timeout_ms=10_000
            )
            answers.append(await ask(connection))
            connection.close()

        client = world.host("clients").start("client", ask_both)
        await client.exited
        assert client.exited.result() is None
        await asyncio.sleep(1)
        assert node.failed_folders == [place.rpartition("/")[0]]
        return node

    World(5).run(scenario)
    assert answers == [{FAILING: ErrorCode.kafka_storage_error, WHOLE: ErrorCode.none}]


def fail_in(place: str, process: DiskUser, verb: str, path: str) -> None:
    if path.startswith(f"{place}/"):
        raise OSError(errno.EIO, "Input/output error", path)
