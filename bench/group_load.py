"""Load on group coordinators and on connections: `python -m bench.group_load`, one asyncio program.

    rebalance  BOOTSTRAP MEMBERS SECONDS             all members of a stable group join again, over and over
    commits    BOOTSTRAP TOPIC GROUPS PERIOD SECONDS each group commits one offset in each period
    crowd      BOOTSTRAP TOPIC CONNECTIONS SECONDS   each connection produces one record in five seconds

It speaks the group protocol itself, with the same exchanges for both brokers and no client's timers in
between: what is timed is the coordinator. It says "ready" when all are connected, and goes on at a line of
input, so that memory and CPU can be looked at in between. Prints one line of JSON at the end.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from nilometer.client.group.group_exchange import (
    CoordinatorType,
    MemberIdentity,
    OffsetAndMetadata,
    commit_request,
    find_coordinator_request,
    heartbeat_request,
    join_request,
    read_commit,
    read_coordinators,
    read_joined,
    sync_request,
)
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.network.connection import Connection, MakeRequest
from nilometer.runtime import Runtime
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Api, Message
from nilometer.wire.records import BatchBuilder

RUNTIME = Runtime.system()
SESSION_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 60_000
COORDINATOR_PATIENCE_S = 30.0
SUBSCRIPTION = bytes.fromhex("0000000000010005") + b"bench" + bytes.fromhex("00000004")
"""To be followed by four bytes of the member's own."""
ASSIGNMENT = bytes.fromhex("0000") + bytes(8)
NOT_YET = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
)
"""From a broker that has been named as coordinator and does not know it yet."""
CROWD_PERIOD_S = 5.0
CROWD_RECORD_BYTES = 100
COMMIT_CONNECTIONS = 20

T = TypeVar("T")


async def connect(host: str, port: int) -> Connection:
    return await Connection.open(RUNTIME, host, port, request_timeout_ms=REQUEST_TIMEOUT_MS)


def _find(group_id: str) -> MakeRequest:
    return lambda api: find_coordinator_request(api, (group_id,), CoordinatorType.GROUP)


async def connect_to_coordinator(bootstrap: str, group_id: str) -> Connection:
    """Asks until there is one: the first look at groups creates their topic."""
    addresses = await addresses_of(bootstrap)
    asked = await connect(*next(iter(addresses.values())))
    try:
        until = time.monotonic() + COORDINATOR_PATIENCE_S
        while True:
            answer = await asked.request(ApiKey.FIND_COORDINATOR, _find(group_id), at_most=4)
            ((error, message, broker_id),) = read_coordinators(answer)
            if not error:
                connection = await connect(*addresses[broker_id])
                answer = await connection.request(
                    ApiKey.HEARTBEAT, lambda api: heartbeat_request(api, group_id, MemberIdentity())
                )
                if answer.error_code not in NOT_YET:
                    return connection
                connection.close()
                error = ErrorCode(answer.error_code)
            if time.monotonic() > until:
                raise SystemExit(f"no coordinator for {group_id}: {error.name} {message}")
            await asyncio.sleep(0.1)
    finally:
        asked.close()


async def addresses_of(bootstrap: str) -> dict[int, tuple[str, int]]:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    connection = await connect(host, int(port))
    response = await connection.request(
        ApiKey.METADATA, lambda api: api.request(topics=(), allow_auto_topic_creation=False)
    )
    connection.close()
    return {broker.node_id: (broker.host, broker.port) for broker in response.brokers}


async def _leaders_of(bootstrap: str, topic: str) -> list[tuple[str, int]]:
    """The address of each partition's leader, by partition."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    connection = await connect(host, int(port))
    response = await connection.request(
        ApiKey.METADATA,
        lambda api: api.request(
            topics=(api.make_request("MetadataRequestTopic", name=topic),), allow_auto_topic_creation=False
        ),
        at_most=9,
    )
    connection.close()
    addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    partitions = sorted(response.topics[0].partitions, key=lambda each: each.partition_index)
    return [addresses[each.leader_id] for each in partitions]


class Member:
    def __init__(self, connection: Connection, group_id: str) -> None:
        self._connection = connection
        self._group_id = group_id
        self._identity = MemberIdentity()
        self._round = 0

    async def rejoin(self) -> int:
        """Until this member is part of a generation; the leader assigns nothing.

        Its subscription is another each time: a member of a stable group that says nothing new is only told
        the generation that is.
        """
        self._round += 1
        while True:
            joined_now = await self._join()
            if joined_now is None:
                continue
            error = await self._sync(*joined_now)
            if error is ErrorCode.none:
                return self._identity.generation
            if error is not ErrorCode.rebalance_in_progress:
                raise SystemExit(f"SyncGroup: {error.name}")

    async def _join(self) -> tuple[str, list[tuple[str, bytes]]] | None:
        response = await self._ask(
            ApiKey.JOIN_GROUP,
            lambda api: join_request(
                api,
                self._group_id,
                self._identity,
                [("range", SUBSCRIPTION + self._round.to_bytes(4, "big"))],
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=SESSION_TIMEOUT_MS,
                reason="",
            ),
        )
        if response.error_code == ErrorCode.member_id_required:
            self._identity = replace(self._identity, member_id=response.member_id)
            return None
        if response.error_code:
            raise SystemExit(f"JoinGroup: {response.error_code.name}")
        joined = read_joined(response)
        self._identity = MemberIdentity(joined.member_id, joined.generation)
        assigned = [(member_id, ASSIGNMENT) for member_id, _, _ in joined.members] if joined.leads else []
        return joined.protocol_name, assigned

    async def _sync(self, protocol_name: str, assigned: list[tuple[str, bytes]]) -> ErrorCode:
        response = await self._ask(
            ApiKey.SYNC_GROUP,
            lambda api: sync_request(api, self._group_id, self._identity, protocol_name, assigned),
        )
        return ErrorCode(response.error_code)

    async def is_stable(self) -> bool:
        response = await self._ask(
            ApiKey.HEARTBEAT, lambda api: heartbeat_request(api, self._group_id, self._identity)
        )
        return response.error_code == ErrorCode.none

    async def _ask(self, key: ApiKey, make: MakeRequest) -> Message:
        return await self._connection.request(key, make)

    def close(self) -> None:
        self._connection.close()


async def rebalance(bootstrap: str, members: int, seconds: float) -> dict[str, float]:
    group_id = f"bench-{members}-{time.time_ns()}"
    all_members = [
        Member(await connect_to_coordinator(bootstrap, group_id), group_id) for _ in range(members)
    ]
    await _together(member.rejoin() for member in all_members)
    while not all(await _together(member.is_stable() for member in all_members)):
        await _together(member.rejoin() for member in all_members)
    _wait_told()
    times: list[float] = []
    until = time.monotonic() + seconds
    while not times or time.monotonic() < until:
        began = time.monotonic()
        generations = await _together(member.rejoin() for member in all_members)
        times.append(time.monotonic() - began)
        if len(set(generations)) != 1:
            raise SystemExit("members ended in several generations")
    for member in all_members:
        member.close()
    times.sort()
    return {
        "seconds": times[len(times) // 2],
        "p99_s": times[len(times) * 99 // 100],
        "rebalances": float(len(times)),
    }


def _wait_told() -> None:
    """Say that all are connected, and wait for a line."""
    print("ready", flush=True)
    sys.stdin.readline()


async def commits(
    bootstrap: str, topic: str, groups: int, period_s: float, seconds: float
) -> dict[str, float]:
    """Each group on one of a few connections to its coordinator, spread evenly over every period."""
    pool: dict[tuple[str, int], list[Connection]] = {}
    first = await connect_to_coordinator(bootstrap, "bench-commits-0")
    homes: list[Connection] = []
    for number in range(groups):
        found = await _coordinator_address(first, f"bench-commits-{number}")
        kept = pool.setdefault(found, [])
        if len(kept) < COMMIT_CONNECTIONS:
            kept.append(await connect(*found))
        homes.append(kept[number % len(kept)])
    partition = TopicPartition(topic, 0)

    async def ask(number: int, round_number: int) -> ErrorCode:
        connection = homes[number]
        offsets = {partition: OffsetAndMetadata(round_number)}
        response = await connection.request(
            ApiKey.OFFSET_COMMIT,
            lambda api: commit_request(api, f"bench-commits-{number}", MemberIdentity(), offsets, {}),
            at_most=9,
        )
        return read_commit(response, {})[partition]

    async def commit(number: int, round_number: int) -> None:
        if error := await ask(number, round_number):
            raise SystemExit(f"OffsetCommit: {error.name}")

    async def first_commit(number: int) -> None:
        until = time.monotonic() + COORDINATOR_PATIENCE_S
        while error := await ask(number, 0):
            if error not in NOT_YET or time.monotonic() > until:
                raise SystemExit(f"OffsetCommit: {error.name}")
            await asyncio.sleep(0.1)

    await _together(first_commit(number) for number in range(groups))
    _wait_told()
    return await _paced(commit, groups, period_s, seconds)


async def _coordinator_address(asked: Connection, group_id: str) -> tuple[str, int]:
    answer = await asked.request(ApiKey.FIND_COORDINATOR, _find(group_id), at_most=4)
    (one,) = answer.coordinators
    if one.error_code:
        raise SystemExit(f"FindCoordinator: {one.error_code.name}")
    return one.host, one.port


async def crowd(bootstrap: str, topic: str, connections: int, seconds: float) -> dict[str, float]:
    """Connections spread over the leaders of all partitions; each produces, acks=all, every five seconds."""
    leaders = await _leaders_of(bootstrap, topic)
    opened: list[Connection] = []
    began = time.monotonic()
    while len(opened) < connections:
        wave = range(len(opened), min(len(opened) + 100, connections))
        opened += await _together(connect(*leaders[number % len(leaders)]) for number in wave)
    opened_s = time.monotonic() - began
    builder = BatchBuilder()
    builder.append(time.time_ns() // 1_000_000, None, bytes(CROWD_RECORD_BYTES))
    records = builder.build()
    _wait_told()

    def produce(api: Api, partition: int) -> Message:
        data = api.make_request("PartitionProduceData", index=partition, records=records)
        named = api.make_request("TopicProduceData", name=topic, partition_data=(data,))
        return api.request(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=(named,))

    async def ask(number: int, _round: int) -> None:
        partition = number % len(leaders)
        response = await opened[number].request(
            ApiKey.PRODUCE, lambda api: produce(api, partition), at_most=9
        )
        error = response.responses[0].partition_responses[0].error_code
        if error:
            raise SystemExit(f"Produce: {error.name}")

    found = await _paced(ask, connections, CROWD_PERIOD_S, seconds)
    for connection in opened:
        connection.close()
    return {**found, "opened_s": opened_s}


async def _paced(
    do: Callable[[int, int], Awaitable[None]], count: int, period_s: float, seconds: float
) -> dict[str, float]:
    """``count`` actors act once each ``period_s``, evenly spread. Latency counts from when it was due."""
    latencies: list[float] = []

    async def act(number: int, round_number: int, due: float) -> None:
        await do(number, round_number)
        latencies.append(time.monotonic() - due)

    under_way: list[asyncio.Task[None]] = []
    began = time.monotonic()
    for turn in range(int(count * seconds / period_s)):
        due = began + turn * period_s / count
        delay = due - time.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)
        under_way.append(asyncio.ensure_future(act(turn % count, 1 + turn // count, due)))
    for task in under_way:
        await task
    latencies.sort()
    return {
        "p50": 1000 * latencies[len(latencies) // 2],
        "p99": 1000 * latencies[len(latencies) * 99 // 100],
        "p999": 1000 * latencies[len(latencies) * 999 // 1000],
        "answered": float(len(latencies)),
    }


async def _together(them: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*them))


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    what, bootstrap, *rest = sys.argv[1:]
    match what:
        case "rebalance":
            found = rebalance(bootstrap, int(rest[0]), float(rest[1]))
        case "commits":
            found = commits(bootstrap, rest[0], int(rest[1]), float(rest[2]), float(rest[3]))
        case "crowd":
            found = crowd(bootstrap, rest[0], int(rest[1]), float(rest[2]))
        case _:
            raise SystemExit(f"no such load: {what}")
    print(json.dumps(asyncio.run(found)))


if __name__ == "__main__":
    main()
