"""The store for several machines: an ensemble of ZooKeeper servers.

Before a write an uncertain session is confirmed. A write whose response was lost raises OutcomeUnknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from nilometer.coordination.store import (
    ENTRY_SIZE_MAX,
    ChangeSignal,
    EntriesRetired,
    Entry,
    EntryTooLarge,
    OutcomeUnknown,
    SessionInfo,
    SessionName,
    Snapshot,
    StoreDamaged,
    StoredSecret,
    StoreMoved,
    StoreRefused,
    StoreUnavailable,
)
from nilometer.coordination.zookeeper.ensemble import (
    AccessDenied,
    BadVersion,
    CheckExists,
    Connect,
    Create,
    Delete,
    Disconnected,
    Ensemble,
    Node,
    NodeExists,
    NoNode,
    SetVersion,
    Step,
)
from nilometer.coordination.zookeeper.registration import SESSION_EXPIRED, Registration, ZooKeeperSession
from nilometer.coordination.zookeeper.tree import (
    CONTROLLER,
    STORE,
    BrokerNode,
    ControllerNode,
    Snapshots,
    StoreFound,
    StoreNode,
    broker_path,
    decoded,
    entry_path,
    find,
    find_or_make,
    incomplete_copy,
    write_moved,
)
from nilometer.runtime import Runtime

# The cluster's secret in a separate node, whose *version* is the secret's number.

SECRET = "/secret"


async def read_secret(bridge: Ensemble) -> StoredSecret | None:
    """Return the newest secret, None if there is none. Raises Disconnected."""
    try:
        node = await bridge.get(SECRET)
    except NoNode:
        return None
    return StoredSecret(node.version, node.data)


async def put_secret(bridge: Ensemble, number: int, data: bytes) -> bool:
    """Store the secret with this number; return False if it is not the next one. Raises OutcomeUnknown."""
    try:
        if number == 0:
            await bridge.create(SECRET, data)
        else:
            await bridge.set(SECRET, data, number - 1)
    except (NodeExists, NoNode, BadVersion):
        return False
    except Disconnected as error:
        raise OutcomeUnknown(f"it is not known whether secret {number} was written: {error}") from error
    return True


# Watches on the nodes whose changes brokers must notice. A watch that has fired is set again.
#
# Watches have no content. A watch is set again before its change is signalled, so that no change is missed in
# between. After a new connection all of them are set again.

logger = logging.getLogger("nilometer.coordination.zookeeper.watches")

WATCHED = ("/next", "/snapshot", "/brokers/ids", "/controller")


class Watches:
    def __init__(self, ensemble: Ensemble, retry_s: float, on_change: Callable[[], None]) -> None:
        self._ensemble = ensemble
        self._retry_s = retry_s
        self._on_change = on_change
        self._rearm = asyncio.Event()
        self._due: set[str] = set()

    def set_all(self) -> None:
        """Set all watches, because a new connection has none."""
        for path in WATCHED:
            self._on_fired(path)

    async def run(self) -> None:
        while True:
            await self._rearm.wait()
            self._rearm.clear()
            due, self._due = sorted(self._due), set()
            try:
                await asyncio.gather(*(self._arm(path) for path in due))
            except Disconnected as error:
                logger.info("Watches could not be set: %s. Trying again", error)
                await asyncio.sleep(self._retry_s)
                for path in due:
                    self._on_fired(path)
            self._on_change()

    def _on_fired(self, path: str) -> None:
        self._due.add(path)
        self._rearm.set()

    async def _arm(self, path: str) -> None:
        if path == "/brokers/ids":
            await self._ensemble.children(path, lambda: self._on_fired(path))
        else:
            await self._ensemble.exists(path, lambda: self._on_fired(path))


READ_AT_ONCE = 100
OPEN_TIMEOUT_S_MIN = 3.0


class ZooKeeperStore:
    def __init__(
        self,
        runtime: Runtime,
        hosts: str,
        connect: Connect,
        *,
        session_timeout_ms: int = 6000,
        cluster_id: str | None = None,
        create: bool = True,
        admits_moved: bool = False,
        admits_incomplete: bool = False,
    ) -> None:
        """``connect`` creates the client; ``hosts`` is only for messages.

        Without ``create`` a missing store is not created, and :meth:`open` raises StoreAbsent.
        ``admits_moved``: a tool also reads a store whose content was moved; else that raises StoreMoved.
        ``admits_incomplete``: or one that another store is being copied to; else that raises StoreRefused.
        """
        self._runtime = runtime
        self._hosts = hosts
        self._create = create
        self._admits_moved = admits_moved
        self._admits_incomplete = admits_incomplete
        self._timeout_ms = session_timeout_ms
        self._cluster_id = cluster_id
        self._ensemble = connect(session_timeout_ms, self._on_connected, self._on_connection_lost)
        self._signal = ChangeSignal()
        self._tasks: list[asyncio.Task[None]] = []
        self._watches = Watches(self._ensemble, session_timeout_ms / 10 / 1000, self._signal.notify)
        self._registration = Registration(runtime, self._ensemble, self._signal.notify, self._incarnation)
        self._snapshots = Snapshots(self._ensemble, self._get, runtime.entropy)
        self._opened = False
        self._found = StoreFound("", 0)
        self._noted_version: int | None = None
        """The version of ``/store`` after :meth:`note_moved`; None if it was not called, or is not known."""

    @property
    def cluster_id(self) -> str:
        assert self._cluster_id is not None, "known once open"
        return self._cluster_id

    async def open(self) -> None:
        try:
            await self._ensemble.start(max(OPEN_TIMEOUT_S_MIN, 2 * self._timeout_ms / 1000))
        except Disconnected as error:
            raise StoreUnavailable(f"ZooKeeper at {self._hosts} cannot be reached: {error}") from error
        try:
            found = await self._find()
        except AccessDenied as error:
            await self._ensemble.stop()
            raise StoreRefused(
                f"the nodes at {self._hosts} have ACLs that do not permit the access: set "
                "nilometer.zookeeper.user and nilometer.zookeeper.password as on the cluster's brokers"
            ) from error
        except Disconnected as error:
            await self._ensemble.stop()
            raise StoreUnavailable(f"ZooKeeper at {self._hosts} does not respond: {error}") from error
        except BaseException:
            await self._ensemble.stop()
            raise
        self._cluster_id, self._found = found.cluster_id, found
        self._opened = True
        if self._create and not self._ensemble.protects:
            logger.warning(
                "ZooKeeper at %s is used without ACLs: any process that reaches it can read the "
                "cluster's secret and change the metadata. Set zookeeper.set.acl=true, or make sure that "
                "only the brokers can reach it",
                self._hosts,
            )
        self._tasks.append(asyncio.get_running_loop().create_task(self._watches.run()))
        self._on_connected()

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        tasks = [*self._tasks, *self._registration.tasks]
        for task in tasks:
            task.cancel()
        for task in tasks:
            try:
                await task
            except asyncio.CancelledError:
                pass
        self._tasks.clear()
        self._registration.tasks.clear()
        self._registration.end("the store was closed")
        self._signal.close()
        await self._ensemble.stop()  # ends the session at the servers, and with it the ephemeral nodes

    async def _find(self) -> StoreFound:
        if self._create:
            found = await find_or_make(self._ensemble, self._hosts, self._cluster_id, self._runtime.entropy)
        else:
            found = await find(self._ensemble, self._hosts, self._cluster_id)
        if found.moved_to and not self._admits_moved:
            raise StoreMoved(f"zookeeper://{self._hosts}", found.moved_to)
        if found.copied_from and not self._admits_incomplete:
            raise incomplete_copy(self._hosts, found)
        return found

    def _incarnation(self, node: Node) -> int:
        return self._found.incarnation(node)

    # ---- moving to another store

    @property
    def moved_to(self) -> str:
        """The store that has the content now; "" if it is this one. Known once open."""
        return self._found.moved_to

    async def note_moved(self, target: str) -> None:
        """Close the store for brokers, because ``target`` has its content; "": open it again."""
        noted = msgspec.structs.replace(self._found, moved_to=target)
        try:
            version = await write_moved(self._ensemble, self._found, target, self._noted_version)
        except Disconnected as error:
            self._found, self._noted_version = noted, None
            raise OutcomeUnknown(f"it is not known whether {STORE} was changed: {error}") from error
        self._found, self._noted_version = noted, version

    async def check_still_moved(self) -> None:
        """Raise StoreRefused if another command has opened or closed the store since :meth:`note_moved`."""
        try:
            version = (await self._get(STORE)).version
        except Disconnected as error:
            raise self._unavailable(error) from error
        if self._noted_version not in (None, version):
            raise StoreRefused(f"another command has changed {STORE} at {self._hosts} meanwhile")

    # ---- entries

    async def append(self, expected_next: int, entry: bytes) -> bool:
        if len(entry) > ENTRY_SIZE_MAX:
            raise EntryTooLarge(f"entry {expected_next}", len(entry))
        session = await self._check_live()
        steps: list[Step] = [SetVersion("/next", expected_next), Create(entry_path(expected_next), entry)]
        if session is not None:
            steps.insert(0, CheckExists(session.node))
        try:
            await self._ensemble.commit(steps)
        except BadVersion:
            return False
        except NoNode:
            raise self._registration.lost("its node is gone") from None
        except NodeExists as error:
            raise StoreDamaged(
                f"entry {expected_next} exists, though /next says it does not: {error}"
            ) from error
        except Disconnected as error:
            raise OutcomeUnknown(
                f"it is not known whether entry {expected_next} was appended: {error}"
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
        """Read the entries ``[start, end)``, all requests at once; None if one is missing."""
        if start >= end:
            return []
        found = await asyncio.gather(
            *(self._ensemble.get(entry_path(number)) for number in range(start, end)), return_exceptions=True
        )
        entries: list[Entry] = []
        for number, node in enumerate(found, start):
            if isinstance(node, NoNode):
                return None
            if isinstance(node, BaseException):
                raise node
            entries.append(Entry(number, node.data))
        return entries

    async def sync(self) -> None:
        """Wait until reads show all earlier entries, with a write that changes nothing.

        ZooKeeper's own ``sync`` goes to the leader, but does not verify that it is still the leader.
        """
        self._check_open()
        try:
            await self._ensemble.commit([CheckExists("/next")])
        except NoNode:
            raise StoreDamaged(f"/next is missing at {self._hosts}: the store was deleted") from None
        except Disconnected as error:
            raise self._unavailable(error) from error

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
                f"it is not known whether the snapshot of {number} was written: {error}"
            ) from error

    # ---- sessions

    async def register(self, broker_id: int, payload: bytes) -> ZooKeeperSession:
        self._check_open()
        if len(payload) > ENTRY_SIZE_MAX:
            raise EntryTooLarge(f"the session payload of broker {broker_id}", len(payload))
        session = self._registration.session
        if session is not None and not session.lost:
            raise ValueError(f"this store already has session {session.name}: one broker per process")
        try:
            while True:
                version = await self._check_is_the_one_opened()
                try:
                    return await self._registration.register(broker_id, payload, version)
                except BadVersion:
                    continue  # it was closed, or opened again, meanwhile
        except Disconnected as error:
            raise OutcomeUnknown(
                f"it is not known whether broker {broker_id} is registered: {error}"
            ) from error

    async def _check_is_the_one_opened(self) -> int:
        """Return the version of ``/store``. Raises StoreRefused if the store was replaced by another one, or
        closed, since it was opened."""
        node = await self._get(STORE)
        if node.created_zxid != self._found.created_zxid:
            raise StoreRefused(f"the coordination store at {self._hosts} was replaced by another one")
        if moved_to := decoded(STORE, node.data, StoreNode).moved_to:
            raise StoreMoved(f"zookeeper://{self._hosts}", moved_to)
        return node.version

    async def sessions(self) -> list[SessionInfo]:
        self._check_open()
        found: list[SessionInfo] = []
        try:
            for name in await self._ensemble.children("/brokers/ids"):
                try:
                    node = await self._ensemble.get(broker_path(int(name)))
                except NoNode:
                    continue  # deleted meanwhile
                payload = decoded(broker_path(int(name)), node.data, BrokerNode).payload
                found.append(SessionInfo(int(name), self._incarnation(node), payload))
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
            await self._ensemble.commit(
                [CheckExists(session.node), Create(CONTROLLER, content, ephemeral=True)]
            )
        except NodeExists:
            pass
        except NoNode:
            raise self._registration.lost("its node is gone") from None
        except Disconnected as error:
            raise OutcomeUnknown(f"it is not known whether {name} is the controller: {error}") from error
        return await self.controller() == name

    async def resign_controller(self) -> None:
        session = await self._check_live()
        if session is not None and await self.controller() == session.name:
            try:
                await self._ensemble.commit([CheckExists(session.node), Delete(CONTROLLER)])
            except NoNode:
                pass  # the session has ended, and its claim on /controller with it
            except Disconnected as error:
                raise OutcomeUnknown(f"it is not known whether /controller was released: {error}") from error

    async def controller(self) -> SessionName | None:
        self._check_open()
        try:
            node = await self._ensemble.get(CONTROLLER)
        except NoNode:
            return None
        except Disconnected as error:
            raise self._unavailable(error) from error
        found = decoded(CONTROLLER, node.data, ControllerNode)
        return SessionName(found.broker_id, found.incarnation)

    # ---- the secret

    async def read_secret(self) -> StoredSecret | None:
        self._check_open()
        try:
            return await read_secret(self._ensemble)
        except Disconnected as error:
            raise self._unavailable(error) from error

    async def put_secret(self, number: int, data: bytes) -> bool:
        await self._check_live()
        return await put_secret(self._ensemble, number, data)

    # ---- signal

    async def wait_changed(self, seen: int) -> int:
        return await self._signal.wait(seen)

    def _on_connected(self) -> None:
        self._registration.on_connected()
        self._watches.set_all()

    def _on_connection_lost(self) -> None:
        self._registration.end(SESSION_EXPIRED)

    # ---- checks

    async def _get(self, path: str) -> Node:
        try:
            return await self._ensemble.get(path)
        except NoNode:
            raise StoreDamaged(f"{path} is missing at {self._hosts}: the store was deleted") from None

    def _unavailable(self, error: Disconnected) -> StoreUnavailable:
        return StoreUnavailable(f"ZooKeeper at {self._hosts} does not respond: {error}")

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreUnavailable("the coordination store is not open")

    async def _check_live(self) -> ZooKeeperSession | None:
        """Check before a write that the store is open and its session, if any, is live."""
        self._check_open()
        return await self._registration.check_live()
