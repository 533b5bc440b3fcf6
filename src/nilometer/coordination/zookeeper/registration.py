"""This process's registration: its ephemeral node, and the lease that it renews meanwhile.

A session has ended when the servers say so, and is uncertain once it was not confirmed for a while: then it
is confirmed with the servers before anything is written under it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from nilometer.coordination.identity import new_id
from nilometer.coordination.store import (
    BrokerIdInUse,
    SessionLost,
    SessionName,
    StoreDamaged,
    StoreUnavailable,
)
from nilometer.coordination.zookeeper.ensemble import (
    RECONNECT_S,
    CheckExists,
    Create,
    Delete,
    Disconnected,
    Ensemble,
    NodeExists,
    NoNode,
    SessionEnded,
    Step,
)
from nilometer.coordination.zookeeper.layout import (
    CONTROLLER,
    BrokerNode,
    ControllerNode,
    broker_path,
    decoded,
    incarnation_path,
)
from nilometer.coordination.zookeeper.session import ZooKeeperSession
from nilometer.runtime import Clock, Runtime

logger = logging.getLogger(__name__)

LEASE_FRACTION = 0.6
VANISH_EXTRA_MS = 2_000
"""How long, besides two session timeouts T, to wait for a dead broker's node before its id counts as in use.

The servers may learn of a session half a tick late, and end it at a whole tick: after up to T and 1.5 ticks.
By default they grant no less than two ticks, and a tick is two seconds.
"""
SESSION_EXPIRED = "ZooKeeper ended it: the servers received nothing for longer than the session timeout"


def vanish_timeout_ms(session_timeout_ms: int) -> int:
    """How long to wait for the node of another process, which may be dead, to vanish."""
    return 2 * session_timeout_ms + VANISH_EXTRA_MS


class HolderWait:
    """Waits for the node of another process to vanish, for as long as it may remain after that process
    died."""

    def __init__(self, clock: Clock, session_timeout_ms: int) -> None:
        self._clock = clock
        self._started_ms = clock.monotonic_ms()
        self._holder_session_timeout_ms = session_timeout_ms
        self._nonce = ""
        self.vanished = asyncio.Event()

    @property
    def left_ms(self) -> int:
        """The rest of the wait; 0 or less when it has expired."""
        return (
            self._started_ms + vanish_timeout_ms(self._holder_session_timeout_ms) - self._clock.monotonic_ms()
        )

    def on_found(self, node: BrokerNode, vanished: asyncio.Event) -> None:
        """``node`` still exists, and ``vanished`` is the watch that was set on it.

        When the previous watch fired, and the node is still the same, the connection was lost. Perhaps the
        ensemble has a new leader, which gives every session its whole timeout again: so this wait restarts.
        """
        if self.vanished.is_set() and node.nonce == self._nonce:
            self._started_ms = self._clock.monotonic_ms()
        self._nonce, self.vanished = node.nonce, vanished
        self._holder_session_timeout_ms = max(self._holder_session_timeout_ms, node.session_timeout_ms)


class Registration:
    """The registrations of this process, one after the other: a process may register again."""

    def __init__(self, runtime: Runtime, ensemble: Ensemble, notify: Callable[[], None]) -> None:
        self.session: ZooKeeperSession | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._runtime = runtime
        self._ensemble = ensemble
        self._notify = notify
        self._nonces: set[str] = set()
        """Of all nodes that this process created, or may have created."""
        self._connected = asyncio.Event()
        self._is_unconfirmed = False

    async def register(self, broker_id: int, payload: bytes) -> ZooKeeperSession:
        """Raises BrokerIdInUse, Disconnected."""
        nonce = new_id(self._runtime.entropy)
        self._nonces.add(nonce)
        created_zxid, asked_ms = await self._put_node(broker_id, payload, nonce)
        name = SessionName(broker_id, created_zxid)
        node = incarnation_path(broker_id, nonce)
        session = self.session = ZooKeeperSession(name, node, self._runtime, self._lease_ms, self._notify)
        session.confirm(asked_ms)
        self.tasks = [task for task in self.tasks if not task.done()]
        self.tasks.append(asyncio.get_running_loop().create_task(self._lease_loop(session)))
        return session

    def end(self, reason: str) -> None:
        """The session, if there is one, has ended."""
        if self.session is not None:
            self.session.lose(reason)

    def lost(self, reason: str) -> SessionLost:
        assert self.session is not None
        self.session.lose(f"ZooKeeper ended it: {reason}")
        return SessionLost(f"session {self.session.name} expired; register again")

    def on_connected(self) -> None:
        """Another server may have granted another timeout, and can confirm the session now."""
        if self.session is not None:
            self.session.lease_ms = self._lease_ms
        self._connected.set()

    async def check_live(self) -> ZooKeeperSession | None:
        """Called before every write. Confirms an uncertain session; a tool's store has no session and may
        write.

        Raises SessionLost, StoreUnavailable.
        """
        session = self.session
        if session is None:
            return None
        give_up_ms = self._runtime.clock.monotonic_ms() + self._ensemble.session_timeout_ms
        while not (session.lost or session.is_live()) and self._runtime.clock.monotonic_ms() < give_up_ms:
            await self._renew(session)
            await asyncio.sleep(0 if session.is_live() else RECONNECT_S)
        if session.lost:
            raise SessionLost(f"session {session.name} expired; register again")
        if not session.is_live():
            raise StoreUnavailable(f"session {session.name} could not be confirmed; nothing was changed")
        return session

    @property
    def _lease_ms(self) -> int:
        """A fraction of the granted timeout: the servers end the session no sooner than that timeout."""
        return int(self._ensemble.session_timeout_ms * LEASE_FRACTION)

    # ---- the broker's node

    async def _put_node(self, broker_id: int, payload: bytes, nonce: str) -> tuple[int, int]:
        """The creation zxid of the node, and the time of the request that it answers."""
        path = broker_path(broker_id)
        wait = HolderWait(self._runtime.clock, self._ensemble.session_timeout_ms)
        while True:
            asked_ms = self._runtime.clock.monotonic_ms()
            vanished = asyncio.Event()
            try:
                await self._create_node(broker_id, payload, nonce)
            except SessionEnded:  # and its nodes are gone with it: try again in the next session
                if wait.left_ms <= 0:
                    raise
                await asyncio.sleep(RECONNECT_S)
                continue
            try:
                node = await self._ensemble.get(path, vanished.set)
            except NoNode:
                continue  # gone since
            found = decoded(path, node.data, BrokerNode)
            if found.nonce == nonce and node.owner == self._ensemble.session_id:
                return node.created_zxid, asked_ms
            if found.nonce in self._nonces:
                await self._remove_former(SessionName(broker_id, node.created_zxid), found.nonce)
                continue
            wait.on_found(found, vanished)
            await self._wait_vanished(broker_id, wait)

    async def _create_node(self, broker_id: int, payload: bytes, nonce: str) -> None:
        """Does nothing where the node exists, of any process. Raises Disconnected, StoreDamaged."""
        content = msgspec.json.encode(BrokerNode(payload, nonce, self._ensemble.session_timeout_ms))
        try:
            await self._ensemble.commit(
                [
                    Create(broker_path(broker_id), content, ephemeral=True),
                    Create(incarnation_path(broker_id, nonce), b"", ephemeral=True),
                ]
            )
        except NodeExists:
            pass  # another process's, or this one's by a request whose answer was lost
        except NoNode:
            raise StoreDamaged("/brokers is missing in ZooKeeper: the store was deleted") from None

    async def _remove_former(self, name: SessionName, nonce: str) -> None:
        """Remove a node that this process created in a session that it has given up since, but the servers
        have not: a server that was cut off from the others may have reported that session as expired.

        The node of another process cannot be removed: the step that deletes the nonce's node fails then.
        """
        steps: list[Step] = [
            Delete(incarnation_path(name.broker_id, nonce)),
            Delete(broker_path(name.broker_id)),
        ]
        try:
            claim = decoded(CONTROLLER, (await self._ensemble.get(CONTROLLER)).data, ControllerNode)
            if SessionName(claim.broker_id, claim.incarnation) == name:
                steps.append(Delete(CONTROLLER))
        except NoNode:
            pass  # there is no controller
        try:
            await self._ensemble.commit(steps)
        except NoNode:
            return  # it vanished meanwhile, or in part: check again
        logger.info("Removed the node of this broker's former session %s, which still existed", name)

    async def _wait_vanished(self, broker_id: int, wait: HolderWait) -> None:
        """Raises BrokerIdInUse when the wait has expired."""
        left_s = wait.left_ms / 1000
        if left_s <= 0:
            raise BrokerIdInUse(broker_id, "another process, whose session ZooKeeper has not ended")
        logger.info(
            "Broker id %d is still registered; its session ends within %.1f s if its process is gone",
            broker_id,
            left_s,
        )
        try:
            async with asyncio.timeout(left_s):
                await wait.vanished.wait()
        except TimeoutError:
            pass  # check once more

    # ---- the lease

    async def _lease_loop(self, session: ZooKeeperSession) -> None:
        while not session.lost:
            self._connected.clear()
            await self._renew(session)
            try:
                async with asyncio.timeout(self._ensemble.session_timeout_ms / 5 / 1000):
                    await self._connected.wait()
            except TimeoutError:
                pass  # renew again

    async def _renew(self, session: ZooKeeperSession) -> None:
        """Confirm the session by a write; a read proves nothing, since a server cut off from the others
        answers it."""
        asked_ms = self._runtime.clock.monotonic_ms()
        try:
            await self._ensemble.commit([CheckExists(session.node)])
        except NoNode:
            session.lose("ZooKeeper ended it: its node is gone")
        except SessionEnded:
            session.lose(SESSION_EXPIRED)
        except Disconnected as error:
            level = (
                logging.DEBUG if self._is_unconfirmed else logging.WARNING
            )  # one warning until it is confirmed again
            logger.log(level, "Session %s could not be confirmed: %s", session.name, error)
            self._is_unconfirmed = True
        else:
            session.confirm(asked_ms)
            self._is_unconfirmed = False
