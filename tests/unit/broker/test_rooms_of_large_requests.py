"""What large requests take of the memory for all of them: each client a part, and clients take turns."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from nilometer.broker import rooms
from nilometer.broker.connection_memory import ResponseMemory
from nilometer.broker.rooms import ELEMENT_BYTES, SHARES, Place, Room

GREEDY, OTHER, THIRD = ("User:greedy", "10.0.0.1"), ("User:other", "10.0.0.2"), ("User:third", "10.0.0.3")
SHARE = 100
ALL = SHARE * SHARES
ENOUGH = ResponseMemory(lambda: 0)


class Crowd:
    """Requests that enter a room, and leave it as they are told."""

    def __init__(self) -> None:
        self.room = Room(ALL)
        self.inside = Counter[str]()
        self.entered: list[str] = []
        self._requests: list[asyncio.Task[None]] = []

    async def send(self, origin: tuple[str, str], size: int, count: int = 1) -> list[asyncio.Task[None]]:
        sent = [asyncio.ensure_future(self._enter(origin, size)) for _ in range(count)]
        self._requests += sent
        await asyncio.sleep(0)
        return sent

    async def _enter(self, origin: tuple[str, str], size: int) -> None:
        await self.room.enter(origin, size)
        self.inside[origin[0]] += size
        self.entered.append(origin[0])

    async def leave(self, origin: tuple[str, str], size: int) -> None:
        self.inside[origin[0]] -= size
        self.room.leave(origin, size)
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Cancel all who wait: nothing is left in the room."""
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        for origin in (GREEDY, OTHER, THIRD):
            await self.leave(origin, self.inside[origin[0]])
        await asyncio.wait_for(self.room.enter(GREEDY, ALL), 10)
        assert not any(self.inside.values())


async def test_one_client_leaves_room_for_others() -> None:
    crowd = Crowd()
    await crowd.send(GREEDY, 10, 50)
    assert crowd.inside == {"User:greedy": SHARE}
    await crowd.send(OTHER, 10, 2)
    assert crowd.inside["User:other"] == 20, "whose requests never end has not all of it"
    await crowd.leave(GREEDY, 30)
    assert crowd.inside["User:greedy"] == SHARE
    await crowd.end()


async def test_a_request_that_is_larger_than_a_share_comes_alone() -> None:
    crowd = Crowd()
    await crowd.send(GREEDY, SHARE + 1, 2)
    assert crowd.inside == {"User:greedy": SHARE + 1}
    await crowd.leave(GREEDY, SHARE + 1)
    assert crowd.inside == {"User:greedy": SHARE + 1}
    await crowd.end()


async def test_clients_take_turns_when_there_is_no_room() -> None:
    crowd = Crowd()
    await crowd.send(GREEDY, ALL)
    for origin in (GREEDY, OTHER, THIRD):
        await crowd.send(origin, ALL, 2)
    crowd.entered.clear()
    for origin in (GREEDY, GREEDY, OTHER, THIRD):
        await crowd.leave(origin, ALL)
    assert crowd.entered == ["User:greedy", "User:other", "User:third", "User:greedy"]
    await crowd.end()


async def test_who_is_cancelled_while_it_waits_holds_up_no_one() -> None:
    crowd = Crowd()
    await crowd.send(GREEDY, SHARE)
    (large,) = await crowd.send(OTHER, ALL)
    await crowd.send(THIRD, SHARE)
    await crowd.send(THIRD, 1)
    assert crowd.inside == {"User:greedy": SHARE, "User:third": SHARE}
    large.cancel()
    await crowd.leave(THIRD, SHARE)
    assert crowd.inside == {"User:greedy": SHARE, "User:third": 1}
    await crowd.end()


async def test_room_that_comes_with_a_cancellation_is_passed_on() -> None:
    crowd = Crowd()
    await crowd.send(GREEDY, ALL)
    (chosen,) = await crowd.send(OTHER, ALL)
    await crowd.send(THIRD, ALL)
    crowd.room.leave(GREEDY, ALL)
    crowd.inside.clear()
    chosen.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert crowd.inside == {"User:third": ALL}
    await crowd.end()


class Decoded:
    """A request that takes more room with each element that is decoded."""

    def __init__(self, room: Room, origin: tuple[str, str]) -> None:
        self.place, self.elements = Place(room, origin), 0

    async def decode(self, elements: int) -> None:
        await self.place.enter(1, ENOUGH)
        for _ in range(elements):
            await self.place.grow(1)
            self.elements += 1


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize("others", [GREEDY, OTHER])
async def test_requests_of_many_elements_take_room_as_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch, others: tuple[str, str]
) -> None:
    """A partition of a Produce has six bytes, and takes as much memory as 500 of another request."""
    monkeypatch.setattr(rooms, "WAIT_S", 0)
    most = 20
    room = Room(most * ELEMENT_BYTES)
    requests = [Decoded(room, GREEDY), *(Decoded(room, others) for _ in range(2))]
    tasks = [asyncio.ensure_future(request.decode(3 * most)) for request in requests]
    for index, request in enumerate(requests):
        await settle()
        assert request.elements == 3 * most, "the oldest one waits for none of the others"
        assert sum(later.elements for later in requests[index + 1 :]) <= most
        request.place.leave()
    await asyncio.gather(*tasks)
    await asyncio.wait_for(room.enter(THIRD, most * ELEMENT_BYTES), 10)


async def test_a_request_that_ends_while_it_grows_holds_up_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WAIT_S", 0)
    room = Room(ELEMENT_BYTES)
    first, second, third = (Decoded(room, GREEDY) for _ in range(3))
    tasks = [asyncio.ensure_future(request.decode(9)) for request in (first, second, third)]
    await settle()
    tasks[1].cancel()
    await settle()
    second.place.leave()
    assert third.elements < 9
    first.place.leave()
    await settle()
    assert third.elements == 9
    third.place.leave()
    await asyncio.wait_for(room.enter(THIRD, ELEMENT_BYTES), 10)


async def test_a_broker_grows_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "WAIT_S", 0)
    room = Room(ELEMENT_BYTES)
    client, broker = Place(room, GREEDY), Place(room, OTHER)
    await client.enter(ELEMENT_BYTES, ENOUGH)
    await broker.enter(0, ENOUGH)
    await asyncio.wait_for(broker.grow(1_000), 10)
    assert broker.size == 0
