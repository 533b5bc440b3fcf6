"""This process among the brokers: its node, which goes when it dies, and the lease that it holds meanwhile.

A session is over when the servers say so, and in doubt once it was not confirmed for a while: then the
servers are asked before anything is written under it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from nilometer.coordination.store import BrokerIdInUse, SessionLost, SessionName, StoreUnavailable
from nilometer.coordination.zookeeper.ensemble import (
    RECONNECT_S,
    CheckExists,
    Disconnected,
    Ensemble,
    NodeExists,
    NoNode,
    SessionEnded,
)
from nilometer.coordination.zookeeper.layout import BrokerNode, broker_path
from nilometer.coordination.zookeeper.session import ZooKeeperSession
from nilometer.runtime import Runtime

logger = logging.getLogger(__name__)

LEASE_FRACTION = 0.6
VANISH_PATIENCE = 1.5
"""A dead broker's node stays for up to 1.2 T (measured): wait a little longer before calling an id taken."""
SILENCE = "ZooKeeper ended it: no sign of life for longer than the session timeout"


class Registration:
    """One after the other, for a process may register anew."""

    def __init__(
        self, runtime: Runtime, bridge: Ensemble, timeout_ms: int, notify: Callable[[], None]
    ) -> None:
        self.session: ZooKeeperSession | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._runtime = runtime
        self._bridge = bridge
        self._timeout_ms = timeout_ms
        self._notify = notify

    async def register(self, broker_id: int, payload: bytes) -> ZooKeeperSession:
        """Raises BrokerIdInUse, Disconnected."""
        created_zxid, asked_ms = await self._put_node(broker_id, payload)
        name = SessionName(broker_id, created_zxid)
        lease_ms = int(self._timeout_ms * LEASE_FRACTION)
        session = self.session = ZooKeeperSession(name, self._runtime, lease_ms, self._notify)
        session.confirm(asked_ms)
        self.tasks = [task for task in self.tasks if not task.done()]
        self.tasks.append(asyncio.get_running_loop().create_task(self._lease_loop(session)))
        return session

    def end(self, reason: str) -> None:
        """The session, if there is one, is over."""
        if self.session is not None:
            self.session.lose(reason)

    def lost(self, reason: str) -> SessionLost:
        assert self.session is not None
        self.session.lose(f"ZooKeeper ended it: {reason}")
        return SessionLost(f"session {self.session.name} is over; register anew")

    async def check_live(self) -> ZooKeeperSession | None:
        """Before every write. In doubt the servers are asked; a tool's store has no session and may write.

        Raises SessionLost, StoreUnavailable.
        """
        session = self.session
        if session is None:
            return None
        give_up_ms = self._runtime.clock.monotonic_ms() + self._timeout_ms
        while not (session.lost or session.is_live()) and self._runtime.clock.monotonic_ms() < give_up_ms:
            await self._renew(session)
            await asyncio.sleep(0 if session.is_live() else RECONNECT_S)
        if session.lost:
            raise SessionLost(f"session {session.name} is over; register anew")
        if not session.is_live():
            raise StoreUnavailable(f"session {session.name} could not be confirmed; nothing was changed")
        return session

    async def _put_node(self, broker_id: int, payload: bytes) -> tuple[int, int]:
        """The creation zxid of the node, and when the question was asked that it answers."""
        path = broker_path(broker_id)
        clock = self._runtime.clock
        give_up_ms = clock.monotonic_ms() + int(self._timeout_ms * VANISH_PATIENCE)
        content = msgspec.json.encode(BrokerNode(payload))
        while True:
            asked_ms = clock.monotonic_ms()
            try:
                await self._bridge.create(path, content, ephemeral=True)
            except NodeExists:
                pass
            except SessionEnded:  # and with it whatever it created: once more, in the next one
                if clock.monotonic_ms() >= give_up_ms:
                    raise
                await asyncio.sleep(RECONNECT_S)
                continue
            vanished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            node = await self._bridge.exists(
                path, lambda v=vanished: None if v.done() else v.set_result(None)
            )
            if node is not None and node.owner == self._bridge.session_id:
                return node.created_zxid, asked_ms  # ours, perhaps by a request whose answer was lost
            left_s = (give_up_ms - clock.monotonic_ms()) / 1000
            if left_s <= 0:
                raise BrokerIdInUse(broker_id, "a live session in ZooKeeper")
            if node is not None:
                try:
                    async with asyncio.timeout(left_s):
                        await vanished
                except TimeoutError:
                    continue

    async def _lease_loop(self, session: ZooKeeperSession) -> None:
        while not session.lost:
            await self._renew(session)
            await asyncio.sleep(self._timeout_ms / 5 / 1000)

    async def _renew(self, session: ZooKeeperSession) -> None:
        """A read would prove nothing: a server that is cut off from the others answers it all the same."""
        path = broker_path(session.name.broker_id)
        asked_ms = self._runtime.clock.monotonic_ms()
        try:
            await self._bridge.commit([CheckExists(path)])
            node = await self._bridge.exists(path)
        except NoNode:
            node = None
        except SessionEnded:
            session.lose(SILENCE)
            return
        except Disconnected as error:
            logger.warning("Session %s could not be confirmed: %s", session.name, error)
            return
        if node is None or node.created_zxid != session.name.incarnation:
            session.lose("ZooKeeper ended it: its node is gone")
        else:
            session.confirm(asked_ms)
