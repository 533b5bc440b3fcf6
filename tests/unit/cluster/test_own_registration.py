"""A broker notes its registration, also if the metadata log has it before the store has said so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from cluster_harness import ClusterWorld

from nilometer.broker.control.membership import Membership, OwnSession
from nilometer.coordination.store import SessionLost, SessionName


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
