"""Requests about much of what there is, such as ListGroups: few are made at once, in fair turns."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast, get_args, get_origin, get_type_hints
from unittest.mock import Mock

import pytest

from nilometer.broker.api import configs, placement, users
from nilometer.broker.api.listings import AT_ONCE, FOUND_BYTES, Listings
from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Response
from nilometer.broker.connection_memory import HELD_BYTES_MAX, ResponseMemory
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import EncodedResponse
from nilometer.broker.sharing import share_offsets
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.runtime.runtime import SystemClock
from nilometer.wire.api_keys import ApiKey, api_name
from nilometer.wire.encoder import LazySequence
from nilometer.wire.messages import RequestHeader, api
from support.brokers.served_apis import APIS

KEY, VERSION = ApiKey.LIST_GROUPS, 4
CODEC = api(KEY, VERSION)
OWN_APIS = 32_000


class Client:
    """A connection's part in this: whose it is."""

    def __init__(self, address: str, broker_id: int) -> None:
        self.context = RequestContext(client_address=address, broker_id=broker_id)
        self.origin = (str(self.context.principal), address)

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)


class World:
    def __init__(self) -> None:
        self.turns = Turns(SystemClock())
        self.memory = ResponseMemory(SystemClock().monotonic_ms)
        self.listings = Listings(Tasks(), self.turns, self.memory)
        self.begun: list[str] = []
        self.in_work = self.most = 0
        self.go_on = asyncio.Event()

    def ask(self, address: str, *, walks: int = 0, broker_id: int = -1) -> asyncio.Future[Response]:
        async def make(request: Request, work: LongWork) -> Response:
            self.begun.append(address)
            self.in_work += 1
            self.most = max(self.most, self.in_work)
            try:
                await self.go_on.wait()
                for _ in range(walks):
                    await work.step(1)
            finally:
                self.in_work -= 1
            return request.respond(groups=LazySequence(_group, range(walks)))

        return self.listings.answer(request_of(address, broker_id), make)


def request_of(address: str, broker_id: int = -1) -> Request:
    client = Client(address, broker_id)
    header = RequestHeader(KEY, VERSION, 1, "test", 0)
    return Request(header, CODEC.request(states_filter=()), CODEC, cast(Any, client), client.context)


def _group(number: int) -> Any:
    name = f"group {number}"
    return CODEC.make("ListedGroup", group_id=name, protocol_type="consumer", group_state="Empty")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_of_an_origin_is_made_at_once_and_the_oldest_is_answered_first() -> None:
    world = World()
    waiting = [world.ask("a") for _ in range(50)]
    await settle()
    assert world.in_work == 1
    answered: list[int] = []
    for index, future in enumerate(waiting):
        future.add_done_callback(lambda _, index=index: answered.append(index))
    world.go_on.set()
    await asyncio.gather(*waiting)
    await settle()
    assert world.most == 1
    assert answered == list(range(50))


async def test_some_of_all_origins_are_made_at_once_and_origins_take_turns() -> None:
    world = World()
    waiting = [world.ask("a") for _ in range(5)]
    waiting += [world.ask(address) for address in ("b", "c", "d", "e", "f")]
    await settle()
    assert world.begun == ["a", "b", "c", "d"]
    world.go_on.set()
    await asyncio.gather(*waiting)
    assert world.most == AT_ONCE
    third_of_a = [index for index, address in enumerate(world.begun) if address == "a"][2]
    assert third_of_a > max(map(world.begun.index, "ef")), "one that asks much waits for the others"


async def test_a_client_that_disconnects_ends_its_wait_and_its_work() -> None:
    world = World()
    first, second, third = (world.ask("a") for _ in range(3))
    await settle()
    second.cancel()
    first.cancel()
    await settle()
    assert world.begun == ["a", "a"]
    world.go_on.set()
    await third
    assert world.in_work == 0


async def test_what_waits_for_a_disk_or_a_coordinator_keeps_no_other() -> None:
    world, disk = World(), asyncio.get_running_loop().create_future()

    async def make(request: Request, work: LongWork) -> Response:
        await work.wait(disk)
        return request.respond(groups=())

    hung = world.listings.answer(request_of("a"), make)
    await settle()
    world.go_on.set()
    await world.ask("a")
    disk.set_result(None)
    await hung


async def test_what_is_there_already_is_not_waited_for() -> None:
    world, left = World(), list[int]()
    ready = asyncio.get_running_loop().create_future()
    ready.set_result(7)
    assert await LongWork(world.turns, lambda: left.append(1)).wait(ready) == 7
    assert not left


async def test_what_was_found_counts_as_memory_until_it_is_encoded() -> None:
    world = World()
    world.go_on.set()
    response = await world.ask("a", walks=5_000)
    assert isinstance(response, EncodedResponse)
    assert response.size >= 5_000 * FOUND_BYTES
    while (pieces := response.next()) is not None and not pieces:
        pass
    assert response.size < 5_000 * FOUND_BYTES


async def test_none_is_made_while_clients_of_its_origin_do_not_read() -> None:
    world = World()
    silent = Client("a", -1)
    world.memory.hold(cast(Any, silent), HELD_BYTES_MAX + 1)
    waiting = world.ask("a")
    await settle()
    assert not world.begun
    world.memory.release(cast(Any, silent))
    world.go_on.set()
    await waiting


async def test_a_part_of_a_large_request_does_not_wait() -> None:
    world = World()
    world.ask("a")
    request = request_of("a")

    async def make(part: Request, work: LongWork) -> Response:
        return part.respond(groups=())

    assert await world.listings.answer(request.part(request.body, 0), make) == ()


async def test_brokers_do_not_wait() -> None:
    world = World()
    waiting = [world.ask("a") for _ in range(3)]
    waiting.append(world.ask("a", broker_id=2))
    await settle()
    assert world.in_work == 2
    world.go_on.set()
    await asyncio.gather(*waiting)


def test_the_throttle_time_keeps_what_is_held() -> None:
    response = request_of("a").encode(groups=())
    response.hold(9_000_000)
    assert response.with_throttle_ms(5).size == 9_000_000


# Which requests these are: those whose response has as many elements as there are, not as they name.

LISTED = {
    "DescribeAcls",
    "DescribeClientQuotas",
    "DescribeDelegationToken",
    "DescribeLogDirs",
    "DescribeShareGroupOffsets",
    "DescribeTopicPartitions",
    "DescribeUserScramCredentials",
    "ListConfigResources",
    "ListGroups",
    "ListPartitionReassignments",
    "ListTransactions",
    "Metadata",
    "OffsetFetch",
}
BOUNDED = {
    "AlterPartitionReassignments": "as many as it names",
    "ApiVersions": "as many APIs as there are",
    "CreatePartitions": "as many as it names",
    "DescribeCluster": "as many brokers as there are",
    "DescribeConfigs": "four resources in a part of it",
    "ElectLeaders": "decided by the controller, in steps, and a part of its room meanwhile",
    "GetTelemetrySubscriptions": "there are none",
    "SaslHandshake": "as many mechanisms as there are",
    "StreamsGroupHeartbeat": "the tasks of one member",
}
LISTS_FOR_AN_EMPTY_ARRAY = {
    "DescribeClientQuotas",
    "DescribeTopicPartitions",
    "ListConfigResources",
    "ListGroups",
    "ListTransactions",
}
"""Their requests have arrays of which none may be null: that an empty one means all is said in words only."""


def test_every_request_for_all_that_there_is_waits_for_its_turn() -> None:
    found = {
        api_name(key)
        for key, spec in APIS.items()
        if key < OWN_APIS and _may_name_none(key, spec.versions[1])
    }
    assert found | LISTS_FOR_AN_EMPTY_ARRAY == LISTED | BOUNDED.keys()


@pytest.mark.parametrize(
    "handle",
    [
        users.handle_describe,
        configs.handle_list,
        placement.handle_list_reassignments,
        share_offsets.handle_describe,
    ],
)
def test_a_request_that_names_none_is_answered_in_its_turn(handle: Callable[[Any, Any], object]) -> None:
    listings = Mock()
    access = SimpleNamespace(on_cluster=lambda _: True)
    parts = SimpleNamespace(listings=listings, rights=SimpleNamespace(access=lambda _: access))
    body = SimpleNamespace(users=None, topics=None, groups=(SimpleNamespace(topics=None),))
    request = SimpleNamespace(body=body, field=lambda *_: ())
    assert handle(parts, request) is listings.answer.return_value
    listings.answer.assert_called_once()


def _may_name_none(key: int, version: int) -> bool:
    """Whether the response has arrays, and the request none, or one that may be null."""
    codec = api(key, version)
    asked = list(_arrays(codec.request_type))
    return bool(list(_arrays(codec.response_type))) and (not asked or any(asked))


def _arrays(message: type[Any]) -> Iterator[bool]:
    """Yield whether it may be null, for each array of a message and of its parts."""
    hints = get_type_hints(message)
    for field in dataclasses.fields(message):
        kinds = [hints[field.name], *get_args(hints[field.name])]
        if any(get_origin(kind) is tuple for kind in kinds):
            yield type(None) in kinds
            for part in (part for kind in kinds for part in get_args(kind) if dataclasses.is_dataclass(part)):
                yield from _arrays(part)  # type: ignore[arg-type]
