"""A broker notes its registration, also if the metadata log has it before the store has said so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from cluster_harness import ClusterWorld

from nilometer.broker.control.membership import Membership, OwnSession
from nilometer.cluster.controller.brokers import BrokerRegistration
from nilometer.coordination.store import SessionLost, SessionName, StoreUnavailable
from nilometer.wire.errors import ErrorCode, KafkaError


class EndedSession:
    """A session that can be ended."""

    def __init__(self, number: int) -> None:
        self.name = SessionName(1, number)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def lost(self) -> bool:
        return self.ended.done()

    def is_live(self) -> bool:
        return not self.lost

    async def wait_lost(self) -> str:
        return await asyncio.shield(self.ended)


class FastController:
    """The store and the metadata: a broker's registration is applied before the response to its request."""

    def __init__(self) -> None:
        self.world = ClusterWorld()
        self.sessions: list[EndedSession] = []
        self._listeners: list[Callable[[object, object], None]] = []

    @property
    def image(self) -> object:
        return self.world.image

    def subscribe(self, on_change: Callable[[object, object], None], _: object) -> None:
        self._listeners.append(on_change)

    async def register(self, broker_id: int, payload: bytes) -> EndedSession:
        session = EndedSession(len(self.sessions) + 1)
        self.sessions.append(session)
        if len(self.sessions) > 1:
            self._tell()  # something changes before this broker is fenced
            self.world.down(broker_id)
        self.world.up(broker_id, incarnation=str(session.name.incarnation))
        self._tell()
        return session

    def _tell(self) -> None:
        for each in self._listeners:
            each(None, self.image)

    async def wait_changed(self, seen: int) -> int:
        raise SessionLost(await self.sessions[-1].wait_lost())

    async def catch_up(self) -> None:
        """Everything is applied."""

    def note_resigned(self, why: str) -> None:
        """It was not the controller."""


class Services:
    def service(self, name: str, work: Any) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)


async def test_each_incarnation_is_noted_though_the_log_has_it_first() -> None:
    cluster, own = FastController(), OwnSession()
    fake = cast(Any, cluster)
    noted: asyncio.Queue[int] = asyncio.Queue()
    losses: list[str] = []
    registration = cluster.world.registration(1)
    membership = Membership(
        registration,
        fake,
        own,
        fake,
        fake,
        cast(Any, None),
        {},
        cast(Any, Services()),
        lambda: noted.put_nowait(int(membership.incarnation)),
    )
    await membership.join()
    assert (noted.get_nowait(), own.is_registered) == (1, True)
    running = asyncio.ensure_future(membership.run(losses.append))
    for number in range(1, 4):
        cluster.sessions[-1].ended.set_result(f"ended {number}")
        assert await asyncio.wait_for(noted.get(), 30) == number + 1
    assert losses == ["ended 1", "ended 2", "ended 3"]
    assert own.is_registered and noted.empty()
    running.cancel()
    await asyncio.wait([running])


class SlowStore(FastController):
    """A store into which the broker, which is to be the controller, cannot write for a while."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.began = asyncio.Event()

    async def wait_changed(self, seen: int) -> int:
        if seen < 0:
            return 1
        raise SessionLost(await self.sessions[-1].wait_lost())

    is_active = False

    async def controller(self) -> SessionName:
        return self.sessions[-1].name

    async def become_controller(self, *_: object) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise KafkaError(ErrorCode.request_timed_out, "the metadata log could not be written")
        self.began.set()
        await asyncio.Event().wait()


async def test_a_broker_that_cannot_begin_as_controller_tries_again() -> None:
    cluster = SlowStore(failures=2)
    fake = cast(Any, cluster)
    membership = Membership(
        cluster.world.registration(1),
        fake,
        OwnSession(),
        fake,
        fake,
        cast(Any, None),
        {},
        cast(Any, Services()),
        lambda: None,
    )
    await membership.join()
    running = asyncio.ensure_future(membership.run(lambda _: None))
    waiting = asyncio.ensure_future(cluster.began.wait())
    await asyncio.wait([running, waiting], timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert cluster.began.is_set() and not running.done()
    running.cancel()
    await asyncio.wait([running])


class AwayStore(FastController):
    """A store that is away at first."""

    payloads: tuple[bytes, ...] = ()

    async def register(self, broker_id: int, payload: bytes) -> EndedSession:
        self.payloads += (payload,)
        if len(self.payloads) == 1:
            raise StoreUnavailable("no server can be reached")
        return await super().register(broker_id, payload)


async def test_a_registration_that_is_tried_again_names_what_has_failed_meanwhile() -> None:
    cluster = AwayStore()
    fake = cast(Any, cluster)
    failed = 0
    membership = Membership(
        cluster.world.registration(1),
        fake,
        OwnSession(),
        fake,
        fake,
        cast(Any, None),
        {},
        cast(Any, Services()),
        lambda: None,
        lambda registration: replace(registration, failed_dirs=failed),
    )
    with pytest.raises(StoreUnavailable):
        await membership.join()
    failed = 1
    await membership.join()
    first, second = (msgspec.json.decode(one, type=BrokerRegistration) for one in cluster.payloads)
    assert (first.failed_dirs, second.failed_dirs) == (0, 1)
