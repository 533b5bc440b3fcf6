"""This process's registration: its ephemeral node, and the lease that it renews.

A session has ended when the servers say so. If it was not confirmed for a while it is uncertain: then it is
confirmed with the servers before the next write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from nilometer.coordination.store import (
    BrokerIdInUse,
    SessionLost,
    SessionName,
    StoreDamaged,
    StoreUnavailable,
    new_id,
)
from nilometer.coordination.zookeeper.ensemble import (
    RECONNECT_S,
    CheckExists,
    Create,
    Delete,
    Disconnected,
    Ensemble,
    Node,
    NodeExists,
    NoNode,
    SessionEnded,
    Step,
)
from nilometer.coordination.zookeeper.tree import (
    CONTROLLER,
    STORE,
    BrokerNode,
    ControllerNode,
    broker_path,
    decoded,
    incarnation_path,
)
from nilometer.runtime import Clock, Runtime

# One broker's session, which is live as long as its lease is valid.
#
# The state of the connection does not show whether a session is live (a paused client, or one whose server is
# dead, is not notified). So there is a *lease*: every T/5 (T is the session timeout) a write that changes
# nothing goes through the quorum, and its response is valid for 0.6 T from the request on. The servers count
# T from the request or later, so the owner stops first.


class ZooKeeperSession:
    def __init__(
        self, name: SessionName, node: str, runtime: Runtime, lease_ms: int, on_lost: Callable[[], None]
    ) -> None:
        """``node``: path of an ephemeral node that exists exactly as long as this session."""
        self._name = name
        self.node = node
        self._clock = runtime.clock
        self.lease_ms = lease_ms
        self._confirmed_ms = runtime.clock.monotonic_ms()
        self._on_lost = on_lost
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> SessionName:
        return self._name

    @property
    def lost(self) -> bool:
        return self._lost.done()

    def is_live(self) -> bool:
        return not self._lost.done() and self._clock.monotonic_ms() - self._confirmed_ms < self.lease_ms

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._lost)

    def confirm(self, asked_ms: int) -> None:
        self._confirmed_ms = asked_ms

    def lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)
            self._on_lost()


logger = logging.getLogger("nilometer.coordination.zookeeper.registration")

LEASE_FRACTION = 0.6
VANISH_EXTRA_MS = 2_000
"""How long to wait, in addition to two session timeouts T, for a dead broker's node to be deleted, before its
id counts as in use.

The servers may notice a session half a tick late, and end it at a whole tick: after up to T and 1.5 ticks.
By default T is at least two ticks, and a tick is two seconds.
"""
SESSION_EXPIRED = "ZooKeeper ended it: the servers received nothing for longer than the session timeout"


def vanish_timeout_ms(session_timeout_ms: int) -> int:
    """Return how long to wait for the node of another process, which may be dead, to be deleted."""
    return 2 * session_timeout_ms + VANISH_EXTRA_MS


class HolderWait:
    """The time limit of waiting for another process's node to be deleted: as long as it may remain after
    that process died."""

    def __init__(self, clock: Clock, session_timeout_ms: int) -> None:
        self._clock = clock
        self._started_ms = clock.monotonic_ms()
        self._holder_session_timeout_ms = session_timeout_ms
        self._nonce = ""
        self.vanished = asyncio.Event()

    @property
    def left_ms(self) -> int:
        """How much time is left; 0 or less if it has expired."""
        return (
            self._started_ms + vanish_timeout_ms(self._holder_session_timeout_ms) - self._clock.monotonic_ms()
        )

    def on_found(self, node: BrokerNode, vanished: asyncio.Event) -> None:
        """Update the wait: ``node`` still exists, and the event ``vanished`` is set when its watch fires.

        If the previous watch fired although the node is still the same, the connection was lost. The ensemble
        may have a new leader, which gives every session its whole timeout again: so the wait restarts.
        """
        if self.vanished.is_set() and node.nonce == self._nonce:
            self._started_ms = self._clock.monotonic_ms()
        self._nonce, self.vanished = node.nonce, vanished
        self._holder_session_timeout_ms = max(self._holder_session_timeout_ms, node.session_timeout_ms)


class Registration:
    """The current registration of this process, which may register again after it was lost."""

    def __init__(
        self,
        runtime: Runtime,
        ensemble: Ensemble,
        notify: Callable[[], None],
        incarnation_of: Callable[[Node], int],
    ) -> None:
        """``incarnation_of``: returns that of the session which created a broker's node."""
        self.session: ZooKeeperSession | None = None
        self.tasks: list[asyncio.Task[None]] = []
        self._runtime = runtime
        self._ensemble = ensemble
        self._notify = notify
        self._incarnation_of = incarnation_of
        self._nonces: set[str] = set()
        """The nonces of all nodes that this process created or may have created."""
        self._connected = asyncio.Event()
        self._is_unconfirmed = False

    async def register(self, broker_id: int, payload: bytes, store_version: int) -> ZooKeeperSession:
        """Create the broker's node and start to renew the lease. Raises BrokerIdInUse, Disconnected.

        ``store_version``: that of ``/store``. Raises BadVersion if it is another one, as when the store was
        closed: no broker that the command which closes it does not see is registered.
        """
        nonce = new_id(self._runtime.entropy)
        self._nonces.add(nonce)
        incarnation, asked_ms = await self._put_node(broker_id, payload, nonce, store_version)
        name = SessionName(broker_id, incarnation)
        node = incarnation_path(broker_id, nonce)
        session = self.session = ZooKeeperSession(name, node, self._runtime, self._lease_ms, self._notify)
        session.confirm(asked_ms)
        self.tasks = [task for task in self.tasks if not task.done()]
        self.tasks.append(asyncio.get_running_loop().create_task(self._lease_loop(session)))
        return session

    def end(self, reason: str) -> None:
        """Mark the session, if there is one, as lost."""
        if self.session is not None:
            self.session.lose(reason)

    def lost(self, reason: str) -> SessionLost:
        assert self.session is not None
        self.session.lose(f"ZooKeeper ended it: {reason}")
        return SessionLost(f"session {self.session.name} expired; register again")

    def on_connected(self) -> None:
        """Adopt the timeout that the new server granted, and confirm the session with it at once."""
        if self.session is not None:
            self.session.lease_ms = self._lease_ms
        self._connected.set()

    async def check_live(self) -> ZooKeeperSession | None:
        """Return the session of this process after making sure that it is live; call it before each write.

        If the last confirmation is too old, the session is confirmed by a write to the servers, repeated for
        up to a session timeout. None if this process has never registered, as a command-line tool: it may
        write without a session. Raises SessionLost; StoreUnavailable if no server confirms the session.
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
        """How long a confirmation is valid: a fraction of the timeout after which the servers end it."""
        return int(self._ensemble.session_timeout_ms * LEASE_FRACTION)

    # ---- the broker's node

    async def _put_node(
        self, broker_id: int, payload: bytes, nonce: str, store_version: int
    ) -> tuple[int, int]:
        """Create the broker's node, waiting for another process's node to be deleted.

        Returns the session's incarnation, and the time (monotonic ms) of the request that created it.
        """
        path = broker_path(broker_id)
        wait = HolderWait(self._runtime.clock, self._ensemble.session_timeout_ms)
        while True:
            asked_ms = self._runtime.clock.monotonic_ms()
            vanished = asyncio.Event()
            try:
                await self._create_node(broker_id, payload, nonce, store_version)
            except SessionEnded:  # its nodes are deleted, too: try again in the next session
                if wait.left_ms <= 0:
                    raise
                await asyncio.sleep(RECONNECT_S)
                continue
            try:
                node = await self._ensemble.get(path, vanished.set)
            except NoNode:
                continue  # deleted meanwhile
            found = decoded(path, node.data, BrokerNode)
            if found.nonce == nonce and node.owner == self._ensemble.session_id:
                return self._incarnation_of(node), asked_ms
            if found.nonce in self._nonces:
                former = SessionName(broker_id, self._incarnation_of(node))
                await self._remove_former(former, found.nonce)
                continue
            wait.on_found(found, vanished)
            await self._wait_vanished(broker_id, wait)

    async def _create_node(self, broker_id: int, payload: bytes, nonce: str, store_version: int) -> None:
        """Create the broker's nodes, unless the node of any process exists.

        Raises BadVersion, Disconnected, StoreDamaged.
        """
        content = msgspec.json.encode(BrokerNode(payload, nonce, self._ensemble.session_timeout_ms))
        try:
            await self._ensemble.commit(
                [
                    CheckExists(STORE, store_version),
                    Create(broker_path(broker_id), content, ephemeral=True),
                    Create(incarnation_path(broker_id, nonce), b"", ephemeral=True),
                ]
            )
        except NodeExists:
            pass  # another process's node, or this one's, created by a request whose response was lost
        except NoNode:
            raise StoreDamaged("/brokers is missing in ZooKeeper: the store was deleted") from None

    async def _remove_former(self, name: SessionName, nonce: str) -> None:
        """Remove a node that this process created in an earlier session that the servers have not ended.

        This happens if a server that was cut off from the others reported that session as expired. The node
        of another process cannot be removed: then the step that deletes the nonce's node fails.
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
            return  # a node was deleted meanwhile: check again
        logger.info("Removed the node of this broker's former session %s, which still existed", name)

    async def _wait_vanished(self, broker_id: int, wait: HolderWait) -> None:
        """Wait until the node may have been deleted. Raises BrokerIdInUse if the time has expired."""
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
        """Confirm the session by a write. (A read would prove nothing: a server that is cut off from the
        others serves it.)"""
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
