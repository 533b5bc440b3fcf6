"""The store for several machines: an ensemble of ZooKeeper servers, through kazoo.

    /store                       {"format": 1, "cluster_id": …}
    /next                        its *version* is the next number: setting it at an expected version is the
                                 compare-and-set, and no number comes back, whatever nodes are deleted
    /entries/<number>            created in the same transaction that moves /next
    /snapshot                    {"number", "chunks", "folder", "swept"}: the newest one
    /snapshots/<folder>/<chunk>  its content, in pieces that a node can hold
    /brokers/ids/<id>            ephemeral: the payload; its creation zxid is the incarnation
    /controller                  ephemeral: names the session that claimed it

Is my session live? Not what the connection's state says (a stopped client, and one whose server is dead,
are never told), but a *lease*: every T/5 a round trip asks for the session's own node, and its answer holds
for 0.6 T from the moment it was asked. The server counts T from then or later, so the owner stops first.

Watches carry no content. A watch that fired is set again, and only then is the change signalled: so nothing
falls between. A new connection sets all of them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from nilometer.coordination.identity import new_id
from nilometer.coordination.kazoo_bridge import (
    RECONNECT_S,
    BadVersion,
    CheckExists,
    Create,
    Delete,
    Disconnected,
    KazooBridge,
    Node,
    NodeExists,
    NoNode,
    SessionEnded,
    SetVersion,
    Step,
)
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
from nilometer.runtime import Runtime

logger = logging.getLogger(__name__)

FORMAT = 1
LEASE_FRACTION = 0.6
READ_AT_ONCE = 100
SWEEP_AT_ONCE = 200
OPEN_PATIENCE_S_MIN = 3.0
VANISH_PATIENCE = 1.5
"""A dead broker's node stays for up to 1.2 T (measured): wait a little longer before calling an id taken."""


class _StoreNode(msgspec.Struct, frozen=True):
    format: int
    cluster_id: str


class _SnapshotNode(msgspec.Struct, frozen=True):
    number: int
    chunks: int
    folder: str
    swept: int


class _BrokerNode(msgspec.Struct, frozen=True):
    payload: bytes


class _ControllerNode(msgspec.Struct, frozen=True):
    broker_id: int
    incarnation: int


WATCHED = ("/next", "/snapshot", "/brokers/ids", "/controller")
NO_SNAPSHOT = _SnapshotNode(number=0, chunks=0, folder="", swept=0)


class ZooKeeperSession:
    def __init__(
        self, name: SessionName, runtime: Runtime, lease_ms: int, on_lost: Callable[[], None]
    ) -> None:
        self._name = name
        self._clock = runtime.clock
        self._lease_ms = lease_ms
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
        return not self._lost.done() and self._clock.monotonic_ms() - self._confirmed_ms < self._lease_ms

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._lost)

    def confirm(self, asked_ms: int) -> None:
        self._confirmed_ms = asked_ms

    def lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)
            self._on_lost()


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
        self._rearm = asyncio.Event()
        self._due: set[str] = set()
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
        self._tasks.append(asyncio.get_running_loop().create_task(self._watch_loop()))
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
        empty = msgspec.json.encode(NO_SNAPSHOT)
        nodes = [
            ("/next", b""),
            ("/entries", b""),
            ("/snapshots", b""),
            ("/snapshot", empty),
            ("/brokers", b""),
        ]
        for path, data in [*nodes, ("/brokers/ids", b"")]:
            await self._create_if_absent(path, data)

    async def _agree_on_cluster(self) -> None:
        fresh = self._cluster_id or new_id(self._runtime.entropy)
        await self._create_if_absent("/store", msgspec.json.encode(_StoreNode(FORMAT, fresh)))
        try:
            node = await self._bridge.get("/store")
            found = msgspec.json.decode(node.data, type=_StoreNode)
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
        steps: list[Step] = [SetVersion("/next", expected_next), Create(_entry(expected_next), entry)]
        if session is not None:
            steps.insert(0, CheckExists(_broker(session.name.broker_id)))
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
                snapshot = await self._snapshot_node()
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
            *(self._bridge.get(_entry(number)) for number in range(start, end)), return_exceptions=True
        )
        entries: list[Entry] = []
        for number, node in enumerate(found, start):
            if isinstance(node, NoNode):
                return None
            if isinstance(node, BaseException):
                raise node
            entries.append(Entry(number, node.data))
        return entries

    async def read_snapshot(self) -> Snapshot | None:
        self._check_open()
        try:
            while True:
                await self._bridge.sync("/snapshot")
                node = await self._snapshot_node()
                if node.number == 0:
                    return None
                try:
                    paths = [_chunk(node.folder, chunk) for chunk in range(node.chunks)]
                    chunks = [(await self._bridge.get(path)).data for path in paths]
                except NoNode:
                    continue  # replaced by a newer one meanwhile
                return Snapshot(node.number, b"".join(chunks))
        except Disconnected as error:
            raise self._unavailable(error) from error

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        await self._check_live()
        try:
            await self._bridge.sync("/snapshot")
            old = await self._get("/snapshot")
            old_node = msgspec.json.decode(old.data, type=_SnapshotNode)
            if number > (await self._get("/next")).version:
                raise ValueError(f"a snapshot of {number} covers entries that do not exist")
            if number <= old_node.number:
                return False
            folder = f"{number:020d}.{new_id(self._runtime.entropy)}"
            chunks = [data[at : at + ENTRY_SIZE_MAX] for at in range(0, len(data), ENTRY_SIZE_MAX)]
            await self._bridge.create(f"/snapshots/{folder}", b"")
            for i, chunk in enumerate(chunks):
                await self._bridge.create(_chunk(folder, i), chunk)
            node = _SnapshotNode(number=number, chunks=len(chunks), folder=folder, swept=old_node.swept)
            try:
                await self._bridge.set("/snapshot", msgspec.json.encode(node), old.version)
            except BadVersion:
                await self._remove_snapshot(folder)
                return False
            await self._sweep(node)
        except Disconnected as error:
            raise OutcomeUnknown(
                f"whether the snapshot of {number} was written is not known: {error}"
            ) from error
        return True

    async def _sweep(self, node: _SnapshotNode) -> None:
        """Delete what the snapshot stands for: from where the last sweep ended, so none stays."""
        for start in range(node.swept, node.number, SWEEP_AT_ONCE):
            numbers = range(start, min(start + SWEEP_AT_ONCE, node.number))
            try:
                await self._bridge.commit([Delete(_entry(number)) for number in numbers])
            except NoNode:  # an earlier sweep ended among them
                for number in numbers:
                    await self._delete_if_there(_entry(number))
        for folder in await self._bridge.children("/snapshots"):
            if int(folder.partition(".")[0]) < node.number:
                await self._remove_snapshot(folder)
        current = await self._get("/snapshot")
        swept = msgspec.structs.replace(node, swept=node.number)
        if msgspec.json.decode(current.data, type=_SnapshotNode) == node:
            try:
                await self._bridge.set("/snapshot", msgspec.json.encode(swept), current.version)
            except BadVersion:
                pass  # a newer one; it sweeps these again

    async def _remove_snapshot(self, folder: str) -> None:
        try:
            for chunk in await self._bridge.children(f"/snapshots/{folder}"):
                await self._delete_if_there(f"/snapshots/{folder}/{chunk}")
        except NoNode:
            return
        await self._delete_if_there(f"/snapshots/{folder}")

    async def _delete_if_there(self, path: str) -> None:
        try:
            await self._bridge.delete(path)
        except NoNode:
            pass

    async def _snapshot_node(self) -> _SnapshotNode:
        return msgspec.json.decode((await self._get("/snapshot")).data, type=_SnapshotNode)

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
        path = _broker(broker_id)
        clock = self._runtime.clock
        give_up_ms = clock.monotonic_ms() + int(self._timeout_ms * VANISH_PATIENCE)
        content = msgspec.json.encode(_BrokerNode(payload))
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
                payload = msgspec.json.decode(node.data, type=_BrokerNode).payload
                found.append(SessionInfo(int(name), node.created_zxid, payload))
        except Disconnected as error:
            raise self._unavailable(error) from error
        return sorted(found)

    async def claim_controller(self) -> bool:
        session = await self._check_live()
        if session is None:
            raise ValueError("only a registered broker can become the controller")
        name = session.name
        content = msgspec.json.encode(_ControllerNode(name.broker_id, name.incarnation))
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
                await self._delete_if_there("/controller")
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
        found = msgspec.json.decode(node.data, type=_ControllerNode)
        return SessionName(found.broker_id, found.incarnation)

    # ---- signal

    async def wait_changed(self, seen: int) -> int:
        return await self._signal.wait(seen)

    def _on_connected(self) -> None:
        for path in WATCHED:
            self._on_watch(path)

    def _on_watch(self, path: str) -> None:
        self._due.add(path)
        self._rearm.set()

    def _on_connection_lost(self) -> None:
        if self._session is not None:
            self._session.lose("ZooKeeper ended it: no sign of life for longer than the session timeout")

    async def _watch_loop(self) -> None:
        while True:
            await self._rearm.wait()
            self._rearm.clear()
            due, self._due = sorted(self._due), set()
            try:
                await asyncio.gather(*(self._arm(path) for path in due))
            except Disconnected as error:
                logger.info("Watches could not be set: %s. Trying again.", error)
                await asyncio.sleep(self._timeout_ms / 10 / 1000)
                for path in due:
                    self._on_watch(path)
            self._signal.notify()

    async def _arm(self, path: str) -> None:
        if path == "/brokers/ids":
            await self._bridge.children(path, lambda: self._on_watch(path))
        else:
            await self._bridge.exists(path, lambda: self._on_watch(path))

    # ---- the lease

    async def _lease_loop(self, session: ZooKeeperSession) -> None:
        while not session.lost:
            await self._renew(session)
            await asyncio.sleep(self._timeout_ms / 5 / 1000)

    async def _renew(self, session: ZooKeeperSession) -> None:
        asked_ms = self._runtime.clock.monotonic_ms()
        try:
            created = await self._bridge.created_zxid(_broker(session.name.broker_id))
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


def _entry(number: int) -> str:
    return f"/entries/{number:020d}"


def _chunk(folder: str, chunk: int) -> str:
    return f"/snapshots/{folder}/{chunk:06d}"


def _broker(broker_id: int) -> str:
    return f"/brokers/ids/{broker_id}"
