"""How a broker becomes a node of its metadata quorum: folder, listeners, the forming of a new quorum.

A new quorum is formed by one voter, that with the lowest id in ``controller.quorum.voters``, and only when
*every* voter that is listed has said that it is blank: it has no record, and has not voted. The one writes
down who they are, with the ids of their folders; the others learn that from its log. So no two quorums are
formed of the same voters, and a voter whose folder was emptied finds the quorum again: it has another
directory id then, and observes until it is made a voter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath

from nilometer.broker.listening import OpenListeners
from nilometer.broker.quorum.key_file import KeySealing, UnusableKey, read_key_files
from nilometer.broker.quorum.links import QuorumLinks, Watch
from nilometer.broker.quorum.serving import MayAct, NoteChange, QuorumService
from nilometer.broker.settings.quorum import QuorumAddress, QuorumSettings
from nilometer.broker.turns import Turns
from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.quorum.peers import PeerUnavailable
from nilometer.coordination.quorum.store import QuorumStore
from nilometer.coordination.store import StoreDamaged, StoreRefused, StoreUnavailable
from nilometer.identifiers import BrokerId
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica
from nilometer.raft.quorum_state import LOCK, OWNER, check_is_ours, identify, read_owner
from nilometer.raft.recovery import METADATA_LOG, QuorumDamaged, format_folder
from nilometer.raft.voters import VoterKey
from nilometer.runtime import DiskLock, Runtime
from nilometer.storage.directories.log_directory import read_meta_properties
from nilometer.storage.names import META_PROPERTIES
from nilometer.wire.own_apis import QuorumStanding

logger = logging.getLogger("nilometer.broker.quorum")

ASK_EVERY_S = 0.5
CATCH_UP_S = 5.0
"""So long a leader is waited for before its node is asked who is reached."""
SAY_EVERY_S = 10.0


class QuorumMember:
    """Use :meth:`identify` before anything in the log directories is opened, then :meth:`open`, then
    :meth:`close`, also if those failed."""

    def __init__(self, settings: QuorumSettings, runtime: Runtime, turns: Turns) -> None:
        self._settings = settings
        self._runtime = runtime
        self._turns = turns
        self._listeners = OpenListeners(settings.listeners, settings.tls)
        self._folder = posixpath.join(settings.directory, str(METADATA_LOG))
        self._lock: DiskLock | None = None
        self._own: VoterKey | None = None
        self._links: QuorumLinks | None = None
        self._service: QuorumService | None = None
        self._replica: DurableReplica | None = None
        self._has_store = False
        self._only_joins = False
        self._said: str = ""
        self._said_at_s = 0.0

    async def identify(self) -> None:
        """Lock the folder, and give it a directory id if it has none.

        Raises StoreRefused, with nothing changed, if the only voter of a cluster has lost its metadata log;
        CorruptCheckpoint, LockHeld, OSError.
        """
        self._own = await self._runtime.disk.offload(self._identify)

    async def open(self, cluster_id: str | None, *, has_logs: bool) -> QuorumStore:
        """Return the store, once a leader of the quorum has answered. Waits for it as long as it takes.

        ``cluster_id``: of this broker's logs, if it is known. ``has_logs``: then no new quorum is formed,
        which would not know them. Raises StoreRefused, StoreDamaged, CannotListen, CorruptCheckpoint,
        OSError.
        """
        settings, runtime, disk = self._settings, self._runtime, self._runtime.disk
        try:
            path, previous = settings.secret_file, settings.previous_secret_file
            key = None if path is None else await disk.offload(lambda: read_key_files(disk, path, previous))
        except UnusableKey as error:
            raise StoreRefused(str(error)) from error
        own = self._own
        assert own is not None, "identify was called before"
        links = self._links = QuorumLinks(settings, runtime, key)
        service = self._service = QuorumService(settings, runtime, key, own, self._turns)
        links.cluster_id = service.cluster_id = cluster_id
        replica = await disk.offload(lambda: self._open_replica(own))
        service.standing = lambda: self._standing(own)
        self._replica = replica
        await service.open()
        await self._listeners.bind(runtime, service)
        await self._listeners.start()
        if replica.is_blank and self._is_founder:
            entries = await self._found(own)
            if entries is not None:
                if has_logs:
                    raise self._lost(cluster_id)
                replica.close()
                wall_ms = runtime.clock.wall_ms()
                await disk.offload(lambda: format_folder(disk, self._folder, entries, wall_ms))
                self._replica = replica = await disk.offload(lambda: self._open_replica(own))
        node = QuorumNode(
            runtime,
            replica,
            links,
            session_timeout_ms=settings.session_timeout_ms,
            servers=[_server(address) for address in settings.servers if address.node_id != own.node_id],
            snapshot_bytes=settings.snapshot_bytes,
            own=None if settings.own is None else self._entry(own, settings.own),
            joins=settings.joins,
        )
        self._has_store = True
        store = QuorumStore(
            runtime,
            node,
            cluster_id=cluster_id,
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_ms=settings.heartbeat_ms,
            sealing=KeySealing(key, runtime.entropy, runtime.with_secret),
        )
        service.node = node
        try:
            await node.start()
            while node.failure is None and not await self._has_caught_up(node):
                await self._say_what_is_awaited(node)
                await node.wait_change(int(ASK_EVERY_S * 1000))
        except BaseException:
            await node.close()
            raise
        if node.failure is not None:
            raise StoreDamaged(str(node.failure))
        return store

    async def _has_caught_up(self, node: QuorumNode) -> bool:
        """Whether a leader has answered: the one that was written down before a restart may be down."""
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await node.catch_up()
            return True
        return False

    def note_cluster_id(self, cluster_id: str) -> None:
        """The store has told which cluster it is: requests for another one are refused from now on."""
        assert self._links is not None and self._service is not None, "it is open"
        self._links.cluster_id = self._service.cluster_id = cluster_id

    def note_rights(self, may_act: MayAct, note_change: NoteChange) -> None:
        """The ACLs are known: whether one lets a user act as a node; and there is an audit log."""
        assert self._service is not None, "it is open"
        self._service.may_act, self._service.note_change = may_act, note_change

    def report_to(self, watch: Watch) -> None:
        """Let ``watch`` know which nodes are alive."""
        assert self._links is not None, "it is open"
        self._links.watch = watch

    async def close(self) -> None:
        """Close what :meth:`open` has opened, but for the store, which is closed before."""
        self._listeners.close()
        if self._service is not None:
            self._service.close()
        if self._links is not None:
            self._links.close()
        if self._replica is not None and not self._has_store:
            self._replica.close()
        if self._lock is not None:
            self._lock.release()

    # ── the folder ──────────────────────────────────────────────────────────────────────────────
    def _identify(self) -> VoterKey:
        disk, directory = self._runtime.disk, self._settings.directory
        check_is_ours(disk, directory)
        disk.make_directories(directory)
        self._lock = disk.lock(posixpath.join(directory, LOCK))
        if self._settings.is_alone and not disk.exists(posixpath.join(self._folder, OWNER)):
            known = read_meta_properties(disk, posixpath.join(directory, META_PROPERTIES))
            if known is not None and known.cluster_id is not None:
                raise self._lost(known.cluster_id)
        node_id, random = BrokerId(self._settings.node_id), self._runtime.entropy.uuid()
        own = identify(disk, directory, node_id, None, random)
        owner = read_owner(disk, self._folder)
        self._only_joins = owner is not None and owner.only_joins
        return own

    def _lost(self, cluster_id: str | None) -> StoreRefused:
        return StoreRefused(
            f"{self._folder} is empty, and this broker has been one of cluster {cluster_id}: a new metadata "
            "quorum would not know its topics. Restore the metadata log from a copy, copy the metadata of "
            'another store to it with "nilometer metadata copy", or set log.dirs to empty folders'
        )

    def _open_replica(self, own: VoterKey) -> DurableReplica:
        try:
            return DurableReplica.open(self._runtime, self._folder, own, timing=self._settings.timing)
        except QuorumDamaged as error:
            raise StoreDamaged(str(error)) from error

    def _standing(self, own: VoterKey) -> QuorumStanding:
        assert self._replica is not None, "it was opened before"
        return QuorumStanding(
            node_id=own.node_id,
            directory_id=own.directory_id,
            is_blank=self._replica.is_blank,
            voters=tuple(map(str, self._settings.voters)),
        )

    # ── forming ─────────────────────────────────────────────────────────────────────────────────
    @property
    def _is_founder(self) -> bool:
        settings = self._settings
        voters = settings.voters
        if self._only_joins:
            return False
        return settings.is_alone or (bool(voters) and voters[0].node_id == settings.node_id)

    async def _found(self, own: VoterKey) -> list[VoterEntry] | None:
        """Return the voters of the new quorum, once all have said that they are blank; None if one is not:
        there is a quorum, and this node's folder was emptied."""
        while True:
            found: list[VoterEntry] = []
            awaited: list[str] = []
            for address in self._settings.voters or (self._settings.own,):
                assert address is not None, "a founder is a controller"
                if address.node_id == own.node_id:
                    found.append(self._entry(own, address))
                    continue
                standing = await self._ask(address)
                if isinstance(standing, str):
                    awaited.append(standing)
                elif not standing.is_blank:
                    logger.warning(
                        "Voter %s takes part in a metadata quorum already, and the metadata log of this node "
                        "is empty: it observes, until it is made a voter under its new directory id, %s",
                        address,
                        own.directory_id,
                    )
                    return None
                else:
                    voter = VoterKey(BrokerId(standing.node_id), standing.directory_id)
                    found.append(self._entry(voter, address))
            if not awaited:
                names = ", ".join(f"{entry.key}" for entry in found)
                logger.info("The metadata quorum is formed, of the voters %s", names)
                return found
            self._say(f"The metadata quorum is formed when all its voters are reached: {'; '.join(awaited)}")
            await asyncio.sleep(ASK_EVERY_S)

    def _entry(self, voter: VoterKey, address: QuorumAddress) -> VoterEntry:
        name = self._settings.listeners[0].name
        return VoterEntry(voter, (Endpoint(name, address.host, address.port),))

    async def _ask(self, address: QuorumAddress) -> QuorumStanding | str:
        """Return who listens there, or why it is awaited."""
        assert self._links is not None, "it was made before"
        try:
            standing = await self._links.standing(address.host, address.port)
        except PeerUnavailable as error:
            return f"voter {address} is not reached ({error})"
        if standing.node_id != address.node_id:
            return f"at {address} node {standing.node_id} listens"
        own = tuple(map(str, self._settings.voters))
        if standing.voters != own:
            return (
                f"voter {address} has controller.quorum.voters={','.join(standing.voters)}, this node "
                f"{','.join(own)}"
            )
        return standing

    async def _say_what_is_awaited(self, node: QuorumNode) -> None:
        if not self._is_time_to_say():
            return
        own = self._settings.node_id
        asked = [address for address in self._settings.servers if address.node_id != own]
        standings = [await self._ask(address) for address in asked if address.node_id >= 0]
        awaited = [found for found in standings if isinstance(found, str)]
        why = "; ".join(awaited) or f"no majority has elected one, the epoch is {node.epoch}"
        self._say(f"The metadata quorum has no leader yet: {why}")

    def _is_time_to_say(self) -> bool:
        return asyncio.get_running_loop().time() - self._said_at_s >= SAY_EVERY_S / 5

    def _say(self, text: str) -> None:
        """Say it, unless it was said last, and not long ago."""
        now_s = asyncio.get_running_loop().time()
        if text != self._said or now_s - self._said_at_s >= SAY_EVERY_S:
            self._said, self._said_at_s = text, now_s
            logger.info("%s", text)


def _server(address: QuorumAddress) -> VoterEntry:
    return VoterEntry(VoterKey(BrokerId(address.node_id), ""), (Endpoint("", address.host, address.port),))
