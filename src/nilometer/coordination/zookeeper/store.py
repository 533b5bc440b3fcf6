"""The store for several machines: an ensemble of ZooKeeper servers, through kazoo.

A write is refused in doubt: the session is confirmed first. What the servers did with a request whose answer
was lost is OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from nilometer.coordination.identity import new_id
from nilometer.coordination.signal import ChangeSignal
from nilometer.coordination.store import (
    ENTRY_SIZE_MAX,
    BrokerIdInUse,
    EntriesRetired,
    Entry,
    EntryTooLarge,
    OutcomeUnknown,
    SessionInfo,
    SessionLost,
    SessionName,
    Snapshot,
    StoreDamaged,
    StoreRefused,
    StoreUnavailable,
)
from nilometer.coordination.zookeeper.kazoo_bridge import (
    RECONNECT_S,
    BadVersion,
    CheckExists,
    Create,
    Disconnected,
    KazooBridge,
    Node,
    NodeExists,
    NoNode,
    SessionEnded,
    SetVersion,
    Step,
)
from nilometer.coordination.zookeeper.layout import (
    EMPTY_STORE,
    FORMAT,
    BrokerNode,
    ControllerNode,
    StoreNode,
    broker_path,
    entry_path,
)
from nilometer.coordination.zookeeper.session import ZooKeeperSession
from nilometer.coordination.zookeeper.snapshots import Snapshots, delete_if_there
from nilometer.coordination.zookeeper.watches import Watches
from nilometer.runtime import Runtime

logger = logging.getLogger(__name__)

LEASE_FRACTION = 0.6
READ_AT_ONCE = 100
OPEN_PATIENCE_S_MIN = 3.0
VANISH_PATIENCE = 1.5
"""A dead broker's node stays for up to 1.2 T (measured): wait a little longer before calling an id taken."""


class ZooKeeperStore:
    def __init__(
        self,
        runtime: Runtime,
        hosts: str,
        *,
        session_timeout_ms: int = 6000,
        cluster_id: str | None = None,
        create: bool = True,
    ) -> None:
        """Without ``create`` a store that is not there is refused, and not made."""
        self._runtime = runtime
        self._hosts = hosts
        self._create = create
        self._timeout_ms = session_timeout_ms
        self._cluster_id = cluster_id
        self._bridge = KazooBridge(hosts, session_timeout_ms, self._on_connected, self._on_connection_lost)
        self._signal = ChangeSignal()
        self._session: ZooKeeperSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watches = Watches(self._bridge, session_timeout_ms / 10 / 1000, self._signal.notify)
        self._snapshots = Snapshots(self._bridge, self._get, runtime.entropy)
        self._opened = False
        self._created_zxid = 0

    @property
    def cluster_id(self) -> str:
        assert self._cluster_id is not None, "known once open"
        return self._cluster_id

    async def open(self) -> None:
        try:
            await self._bridge.start(max(OPEN_PATIENCE_S_MIN, 2 * self._timeout_ms / 1000))
        except Disconnected as error:
            raise StoreUnavailable(f"ZooKeeper at {self._hosts} cannot be reached: {error}") from error
        try:
            await self._make_or_find()
            await self._agree_on_cluster()
        except Disconnected as error:
            await self._bridge.stop()
            raise StoreUnavailable(f"ZooKeeper at {self._hosts} does not answer: {error}") from error
        except BaseException:
            await self._bridge.stop()
            raise
        self._opened = True
        self._tasks.append(asyncio.get_running_loop().create_task(self._watches.run()))
        self._on_connected()

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            try:
                await task
            except asyncio.CancelledError:
                pass
        self._tasks.clear()
        if self._session is not None:
            self._session.lose("the store was closed")
        self._signal.close()
        await self._bridge.stop()  # ends the session at the servers, and with it the ephemeral nodes

    async def _make_or_find(self) -> None:
        if self._create:
            await self._create_nodes()
        elif await self._bridge.exists("/store") is None:
            raise StoreRefused(f"{self._hosts} holds no coordination store")

    async def _create_nodes(self) -> None:
        await self._bridge.ensure("/")
        for path, data in EMPTY_STORE:
            await self._create_if_absent(path, data)

    async def _agree_on_cluster(self) -> None:
        fresh = self._cluster_id or new_id(self._runtime.entropy)
        await self._create_if_absent("/store", msgspec.json.encode(StoreNode(FORMAT, fresh)))
        try:
            node = await self._bridge.get("/store")
            found = msgspec.json.decode(node.data, type=StoreNode)
        except msgspec.DecodeError as error:
            raise StoreRefused(f"/store at {self._hosts} is not a store's description: {error}") from error
        if found.format > FORMAT:
            raise StoreRefused(
                f"the store at {self._hosts} has format {found.format}, but this version knows no format "
                f"above {FORMAT}; start a newer nilometer"
            )
        if self._cluster_id is not None and found.cluster_id != self._cluster_id:
            raise StoreRefused(
                f"{self._hosts} belongs to cluster {found.cluster_id}, but this broker to cluster "
                f"{self._cluster_id}; give each cluster a chroot of its own"
            )
        self._cluster_id = found.cluster_id
        self._created_zxid = node.created_zxid

    async def _create_if_absent(self, path: str, data: bytes) -> None:
        try:
            await self._bridge.create(path, data)
        except NodeExists:
            pass  # made before

    # ---- entries

    async def append(self, expected_next: int, entry: bytes) -> bool:
        if len(entry) > ENTRY_SIZE_MAX:
            raise EntryTooLarge(f"entry {expected_next}", len(entry))
        session = await self._check_live()
        steps: list[Step] = [SetVersion("/next", expected_next), Create(entry_path(expected_next), entry)]
        if session is not None:
            steps.insert(0, CheckExists(broker_path(session.name.broker_id)))
        try:
            await self._bridge.commit(steps)
        except BadVersion:
            return False
        except NoNode:
            raise self._lost("its node is gone") from None
        except NodeExists as error:
            raise StoreDamaged(
                f"entry {expected_next} exists, though /next says it does not: {error}"
            ) from error
        except Disconnected as error:
            raise OutcomeUnknown(
                f"whether entry {expected_next} was appended is not known: {error}"
            ) from error
        return True

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        self._check_open()
        try:
            end = min((await self._get("/next")).version, from_number + min(limit, READ_AT_ONCE))
            entries = await self._read_range(from_number, end)
            if entries is None or not entries:
                snapshot = await self._snapshots.newest()
                if from_number < snapshot.number:
                    raise EntriesRetired(from_number, snapshot.number)
                if entries is None:
                    raise StoreDamaged(f"entries from {from_number} on are missing at {self._hosts}")
            return entries
        except Disconnected as error:
            raise self._unavailable(error) from error

    async def _read_range(self, start: int, end: int) -> list[Entry] | None:
        """None where one is missing. Asked for all at once: the answers come in order."""
        if start >= end:
            return []
        found = await asyncio.gather(
            *(self._bridge.get(entry_path(number)) for number in range(start, end)), return_exceptions=True
        )
        entries: list[Entry] = []
        for number, node in enumerate(found, start):
            if isinstance(node, NoNode):
                return None
            if isinstance(node, BaseException):
                raise node
            entries.append(Entry(number, node.data))
        return entries

    # ---- snapshots

    async def read_snapshot(self) -> Snapshot | None:
        self._check_open()
        try:
            return await self._snapshots.read()
        except Disconnected as error:
            raise self._unavailable(error) from error

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        await self._check_live()
        try:
            return await self._snapshots.write(number, data)
        except Disconnected as error:
            raise OutcomeUnknown(
                f"whether the snapshot of {number} was written is not known: {error}"
            ) from error

    # ---- sessions

    async def register(self, broker_id: int, payload: bytes) -> ZooKeeperSession:
        self._check_open()
        if len(payload) > ENTRY_SIZE_MAX:
            raise EntryTooLarge(f"the session payload of broker {broker_id}", len(payload))
        if self._session is not None and not self._session.lost:
            raise ValueError(f"this store already has session {self._session.name}: one broker per process")
        try:
            await self._check_is_the_one_opened()
            created_zxid, asked_ms = await self._put_broker(broker_id, payload)
        except Disconnected as error:
            raise OutcomeUnknown(f"whether broker {broker_id} is registered is not known: {error}") from error
        name = SessionName(broker_id, created_zxid)
        lease_ms = int(self._timeout_ms * LEASE_FRACTION)
        session = self._session = ZooKeeperSession(name, self._runtime, lease_ms, self._signal.notify)
        session.confirm(asked_ms)
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(self._lease_loop(session)))
        return session

    async def _check_is_the_one_opened(self) -> None:
        """Who registers anew goes on where it was, not in a store made in the place of its own."""
        if (await self._get("/store")).created_zxid != self._created_zxid:
            raise StoreRefused(f"the coordination store at {self._hosts} was replaced by another one")

    async def _put_broker(self, broker_id: int, payload: bytes) -> tuple[int, int]:
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

    async def sessions(self) -> list[SessionInfo]:
        self._check_open()
        found: list[SessionInfo] = []
        try:
            for name in await self._bridge.children("/brokers/ids"):
                try:
                    node = await self._bridge.get(f"/brokers/ids/{name}")
                except NoNode:
                    continue  # gone since
                payload = msgspec.json.decode(node.data, type=BrokerNode).payload
                found.append(SessionInfo(int(name), node.created_zxid, payload))
        except Disconnected as error:
            raise self._unavailable(error) from error
        return sorted(found)

    async def claim_controller(self) -> bool:
        session = await self._check_live()
        if session is None:
            raise ValueError("only a registered broker can become the controller")
        name = session.name
        content = msgspec.json.encode(ControllerNode(name.broker_id, name.incarnation))
        try:
            await self._bridge.create("/controller", content, ephemeral=True)
        except NodeExists:
            pass
        except Disconnected as error:
            raise OutcomeUnknown(f"whether {name} is the controller is not known: {error}") from error
        return await self.controller() == name

    async def resign_controller(self) -> None:
        session = await self._check_live()
        if session is not None and await self.controller() == session.name:
            try:
                await delete_if_there(self._bridge, "/controller")
            except Disconnected as error:
                raise OutcomeUnknown(f"whether /controller was given up is not known: {error}") from error

    async def controller(self) -> SessionName | None:
        self._check_open()
        try:
            node = await self._bridge.get("/controller")
        except NoNode:
            return None
        except Disconnected as error:
            raise self._unavailable(error) from error
        found = msgspec.json.decode(node.data, type=ControllerNode)
        return SessionName(found.broker_id, found.incarnation)

    # ---- signal

    async def wait_changed(self, seen: int) -> int:
        return await self._signal.wait(seen)

    def _on_connected(self) -> None:
        self._watches.set_all()

    def _on_connection_lost(self) -> None:
        if self._session is not None:
            self._session.lose("ZooKeeper ended it: no sign of life for longer than the session timeout")

    # ---- the lease

    async def _lease_loop(self, session: ZooKeeperSession) -> None:
        while not session.lost:
            await self._renew(session)
            await asyncio.sleep(self._timeout_ms / 5 / 1000)

    async def _renew(self, session: ZooKeeperSession) -> None:
        asked_ms = self._runtime.clock.monotonic_ms()
        try:
            created = await self._bridge.created_zxid(broker_path(session.name.broker_id))
        except SessionEnded:
            session.lose("ZooKeeper ended it: no sign of life for longer than the session timeout")
            return
        except Disconnected as error:
            logger.warning("Session %s could not be confirmed: %s", session.name, error)
            return
        if created != session.name.incarnation:
            session.lose("ZooKeeper ended it: its node is gone")
        else:
            session.confirm(asked_ms)

    # ---- checks

    async def _get(self, path: str) -> Node:
        try:
            return await self._bridge.get(path)
        except NoNode:
            raise StoreDamaged(f"{path} is missing at {self._hosts}: the store was deleted") from None

    def _lost(self, reason: str) -> SessionLost:
        assert self._session is not None
        self._session.lose(f"ZooKeeper ended it: {reason}")
        return SessionLost(f"session {self._session.name} is over; register anew")

    def _unavailable(self, error: Disconnected) -> StoreUnavailable:
        return StoreUnavailable(f"ZooKeeper at {self._hosts} does not answer: {error}")

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreUnavailable("the coordination store is not open")

    async def _check_live(self) -> ZooKeeperSession | None:
        """Before every write. In doubt the servers are asked; a tool's store has no session and may write."""
        self._check_open()
        session = self._session
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
