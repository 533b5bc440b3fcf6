"""How a broker finds out that a leader has just died."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.replicas import leader_liveness
from nilometer.broker.replicas.leader_liveness import LeaderLiveness
from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.cluster.delta import BrokerTransition, ImageDelta
from nilometer.cluster.states import Broker
from nilometer.identifiers import BrokerEpoch, BrokerId, EntryNumber, Incarnation
from nilometer.wire.api_keys import ApiKey

OWN, LEADER = BrokerId(1), BrokerId(2)


class FakeClock:
    now_ms = 10_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


class FakeConnection:
    """A connection whose requests the test answers."""

    closed = False
    ended_by_peer = False

    def __init__(self) -> None:
        self.requests: list[asyncio.Future[Any]] = []
        self.on_lost: Any = None

    def end(self, *, by_peer: bool = True) -> None:
        self.closed, self.ended_by_peer = True, by_peer
        self.on_lost(self)

    def api(self, api_key: int, at_most: int) -> Any:
        assert api_key == ApiKey.API_VERSIONS
        return self

    def request(self) -> object:
        return object()

    def send(self, request: object) -> asyncio.Future[Any]:
        self.requests.append(asyncio.get_running_loop().create_future())
        return self.requests[-1]


class FakeImage:
    controller_id = LEADER

    def __init__(self) -> None:
        self.registered = Broker(
            id=LEADER, incarnation=Incarnation("first"), epoch=BrokerEpoch(7), endpoints=(), rack=None
        )

    def broker(self, broker_id: BrokerId) -> Broker | None:
        return self.registered if broker_id == LEADER else None

    def broker_epoch(self, broker_id: BrokerId) -> BrokerEpoch | None:
        return self.registered.epoch if broker_id == LEADER else None


class FakeMetadata:
    def __init__(self) -> None:
        self.image = FakeImage()

    def subscribe(self, on_delta: Any, on_reload: Any) -> None:
        self.on_delta, self.on_reload = on_delta, on_reload

    def fence(self) -> None:
        before = self.image.registered
        self.image.registered = after = msgspec.structs.replace(before, fenced=True)
        delta = ImageDelta(EntryNumber(9), brokers={LEADER: BrokerTransition(before, after)})
        self.on_delta(delta, self.image)


class Fixture:
    def __init__(self) -> None:
        self.clock, self.metadata, self.connection = FakeClock(), FakeMetadata(), FakeConnection()
        self.liveness = LeaderLiveness(self.clock, cast(MetadataLog, self.metadata), OWN)
        self.liveness.on_connected(LEADER, cast(Connection, self.connection))

    async def confirm(self) -> None:
        assert self.liveness.must_confirm([LEADER])
        await self.liveness.confirm([LEADER])


def test_a_leader_that_answers_is_not_lost_and_not_asked_again_at_once() -> None:
    async def play() -> None:
        given = Fixture()
        waiting = asyncio.ensure_future(given.confirm())
        also_waiting = asyncio.ensure_future(given.confirm())
        await asyncio.sleep(0)
        (probe,) = given.connection.requests
        probe.set_result(object())
        await asyncio.gather(waiting, also_waiting)
        assert not given.liveness.is_lost(LEADER)
        assert not given.liveness.must_confirm([LEADER])
        given.clock.now_ms += leader_liveness.PROBE_VALID_MS
        assert given.liveness.must_confirm([LEADER])

    asyncio.run(play())


def test_a_leader_whose_connection_ends_is_lost_until_there_is_another() -> None:
    async def play() -> None:
        given = Fixture()
        waiting = asyncio.ensure_future(given.confirm())
        await asyncio.sleep(0)
        given.connection.requests[0].set_exception(ConnectionLost("closed by the broker"))
        given.connection.end()
        await waiting
        assert given.liveness.is_lost(LEADER)
        assert not given.liveness.must_confirm([LEADER])
        given.liveness.on_connected(LEADER, cast(Connection, FakeConnection()))
        assert not given.liveness.is_lost(LEADER)

    asyncio.run(play())


def test_a_connection_that_ended_long_ago_says_nothing() -> None:
    """A fetcher without partitions does not notice the end of its connection, nor connect again."""
    given = Fixture()
    given.connection.end()
    given.clock.now_ms += leader_liveness.LOST_MAX_MS
    assert not given.liveness.is_lost(LEADER)


def test_a_busy_leader_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_liveness, "PROBE_WAIT_MS", 1)

    async def play() -> None:
        given = Fixture()
        await given.confirm()
        assert not given.liveness.is_lost(LEADER)
        given.connection.requests[0].cancel()

    asyncio.run(play())


def test_a_leader_is_lost_for_a_limited_time_and_for_one_incarnation() -> None:
    given = Fixture()
    assert given.liveness.findings() == leader_liveness.NOTHING_FOUND
    given.connection.end()
    given.clock.now_ms += leader_liveness.LOST_MAX_MS - 1
    assert given.liveness.findings() == ((LEADER,), ())
    assert given.liveness.is_lost(LEADER)
    given.clock.now_ms += 1
    assert given.liveness.findings() == leader_liveness.NOTHING_FOUND
    assert not given.liveness.is_lost(LEADER)
    again = Fixture()
    again.connection.end()
    registered = again.metadata.image.registered
    again.metadata.image.registered = msgspec.structs.replace(registered, epoch=BrokerEpoch(8))
    assert not again.liveness.is_lost(LEADER), "it has started again"


def test_a_leader_whose_address_refuses_connections_is_lost() -> None:
    given = Fixture()
    given.connection.end()
    given.clock.now_ms += leader_liveness.LOST_MAX_MS - 1
    given.liveness.on_process_ended(LEADER)
    given.clock.now_ms += leader_liveness.LOST_MAX_MS - 1
    assert given.liveness.is_lost(LEADER)


def test_this_broker_is_named_for_a_controller_that_is_lost() -> None:
    given = Fixture()
    assert given.liveness.controller == LEADER
    given.connection.end()
    assert given.liveness.controller == OWN
    given.liveness.on_connected(LEADER, cast(Connection, FakeConnection()))
    assert given.liveness.controller == LEADER


def test_who_opened_a_connection_learns_of_its_end_too() -> None:
    given, connection, ended = Fixture(), FakeConnection(), list[Any]()
    connection.on_lost = ended.append
    given.liveness.on_connected(LEADER, cast(Connection, connection))
    connection.end()
    assert ended == [connection]
    assert given.liveness.is_lost(LEADER)


def test_a_connection_that_ends_on_this_side_says_nothing() -> None:
    """After a time-out, or a response that cannot be read."""
    given = Fixture()
    given.connection.end(by_peer=False)
    assert not given.liveness.is_lost(LEADER)
    assert not given.liveness.must_confirm([LEADER])
    given.liveness.on_connected(LEADER, cast(Connection, given.connection))
    assert not given.liveness.must_confirm([LEADER]), "it is closed"


def test_a_connection_that_this_broker_closes_says_nothing() -> None:
    given = Fixture()
    given.liveness.before_close(LEADER, cast(Connection, FakeConnection()))
    assert given.liveness.must_confirm([LEADER]), "that was another connection"
    given.liveness.before_close(LEADER, cast(Connection, given.connection))
    given.connection.end()
    assert not given.liveness.is_lost(LEADER)
    assert not given.liveness.must_confirm([LEADER])


def test_a_fenced_broker_is_listed_a_little_longer() -> None:
    given = Fixture()
    assert given.liveness.recently_fenced() == []
    given.metadata.fence()
    assert [broker.id for broker in given.liveness.recently_fenced()] == [LEADER]
    assert given.liveness.findings() == ((), (LEADER,))
    given.clock.now_ms += leader_liveness.FENCED_LISTED_MS
    assert given.liveness.recently_fenced() == []
    assert given.liveness.findings() == leader_liveness.NOTHING_FOUND
