"""The coordination store of a broker in a metadata quorum:
:class:`~nilometer.coordination.store.CoordinationStore` by proposals to the leader, and reads of what this
node has applied.

Reads but :meth:`QuorumStore.read` first ask the leader how far the log was committed, and wait until that is
applied here (ReadIndex): they show all that was written before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from nilometer.coordination.quorum.commands import (
    Append,
    Claim,
    Command,
    End,
    LiveSession,
    NameCluster,
    Outcome,
    PutSecret,
    Register,
    Resign,
    snapshot_parts,
)
from nilometer.coordination.quorum.node import QuorumNode
from nilometer.coordination.quorum.sessions import OwnLease
from nilometer.coordination.store import (
    ENTRY_SIZE_MAX,
    BrokerIdInUse,
    ChangeSignal,
    CoordinationError,
    EntriesRetired,
    Entry,
    EntryTooLarge,
    OutcomeUnknown,
    SessionInfo,
    SessionLost,
    SessionName,
    Snapshot,
    StoredSecret,
    StoreRefused,
    StoreUnavailable,
    new_id,
)
from nilometer.identifiers import Offset
from nilometer.raft.control_records import VoterEntry
from nilometer.raft.voter_changes import ChangeResult, VoterChange
from nilometer.runtime import Runtime
from nilometer.runtime.gathering import gather
from nilometer.wire.own_apis import QuorumDescription

logger = logging.getLogger(__name__)

READ_BYTES_MAX = 4 << 20
RENEWALS_PER_TIMEOUT = 6
RENEWAL_PER_TIMEOUT = 3
"""A renewal waits for its response for a third of the session time-out: then another leader may be known."""
PATIENCE_PER_TIMEOUT = 2
"""So many session time-outs a proposal or a read waits for a leader; elections take less."""
CLOSE_PATIENCE_MS = 3_000
"""So long a broker that stops waits for the end of its session; else the leader ends it."""
RETRY_MS = 50

T = TypeVar("T")


class QuorumSession:
    """This process's session. ``is_live`` reads the clock only."""

    def __init__(self, name: SessionName, lease: OwnLease, runtime: Runtime) -> None:
        self._name = name
        self._clock = runtime.clock
        self.lease = lease
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> SessionName:
        return self._name

    @property
    def lost(self) -> bool:
        return self._lost.done()

    def is_live(self) -> bool:
        return not self._lost.done() and self.lease.is_live(self._clock.monotonic_ms())

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._lost)

    def lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)


class Sealing(Protocol):
    """Encrypts the cluster's secret of a number."""

    def seal(self, number: int, data: bytes) -> bytes:
        """Raises StoreRefused if that is not possible here."""
        ...

    def unseal(self, number: int, data: bytes) -> bytes:
        """Raises StoreRefused if this node does not have the key, StoreDamaged."""
        ...


class QuorumStore:
    def __init__(
        self,
        runtime: Runtime,
        node: QuorumNode,
        *,
        session_timeout_ms: int = 6000,
        heartbeat_ms: int | None = None,
        cluster_id: str | None = None,
        sealing: Sealing | None = None,
    ) -> None:
        """``node`` is started by :meth:`open` and closed by :meth:`close`. ``heartbeat_ms``: how often the
        session is renewed, by default six times in its time-out. ``cluster_id``: the id that the cluster must
        have, if known. ``sealing``: how the cluster's secret is encrypted; None: not."""
        self._sealing = sealing
        self._runtime = runtime
        self._node = node
        self._timeout_ms = session_timeout_ms
        self._heartbeat_ms = heartbeat_ms or session_timeout_ms / RENEWALS_PER_TIMEOUT
        self._patience_ms = session_timeout_ms * PATIENCE_PER_TIMEOUT
        self._cluster_id = cluster_id
        self._session: QuorumSession | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._signal = ChangeSignal()
        self._seen: object = None
        """What members may see of the node, as it was when they were last told of a change."""
        self._opened = False
        node.listen(self._on_applied, self._on_changed)

    @property
    def cluster_id(self) -> str:
        assert self._cluster_id is not None, "known once open"
        return self._cluster_id

    async def open(self) -> None:
        await self._node.start()
        self._opened = True
        try:
            await self.sync()
            if self._node.state.cluster_id is None:
                await self._propose(NameCluster(None, self._cluster_id or new_id(self._runtime.entropy)))
            found = self._node.state.cluster_id
            if self._cluster_id not in (None, found):
                raise StoreRefused(
                    f"the metadata quorum is of cluster {found}, and the data of this broker of cluster "
                    f"{self._cluster_id}: they do not belong together"
                )
            self._cluster_id = found
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        if self._renewing is not None:
            self._renewing.cancel()
            await gather(self._renewing, return_exceptions=True)
        session = self._session
        if session is not None and not session.lost:
            try:
                patience_ms = min(self._timeout_ms, CLOSE_PATIENCE_MS)
                await self._within(patience_ms, lambda: self._node.propose(End(session.name)))
            except CoordinationError as error:
                logger.warning("Could not end this broker's session: %s. The leader will end it", error)
            session.lose("the store was closed")
        await self._node.close()
        self._signal.close()

    # ---- entries

    async def append(self, expected_next: int, entry: bytes) -> bool:
        if len(entry) > ENTRY_SIZE_MAX:
            raise EntryTooLarge("an entry", len(entry))
        return await self._propose(Append(self._own(), expected_next, entry))

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        self._check_open()
        state = self._node.state
        if from_number < state.first_number:
            raise EntriesRetired(from_number, state.first_number)
        return state.entries(from_number, limit, READ_BYTES_MAX)

    async def sync(self) -> None:
        self._check_open()
        try:
            await self._within(self._patience_ms, self._retried(self._node.catch_up, StoreUnavailable))
        except OutcomeUnknown as error:
            raise StoreUnavailable(str(error)) from error

    async def read_snapshot(self) -> Snapshot | None:
        await self.sync()
        return self._node.state.snapshot

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        if number > self._node.state.next_number:
            await self.sync()
        if number > self._node.state.next_number:
            raise ValueError(f"there is no entry {number - 1}: a snapshot covers entries that exist")
        for part in snapshot_parts(self._own(), number, data):
            if not await self._propose(part):
                return False
        return True

    # ---- sessions

    async def register(self, broker_id: int, payload: bytes) -> QuorumSession:
        """Also raises CoordinationError if this process's node has stopped: only a restart mends that."""
        self._check_open()
        if self._node.failure is not None:
            raise CoordinationError(
                "this broker's node of the metadata quorum has stopped; restart the broker. The reason: "
                f"{self._node.failure}"
            )
        if self._session is not None and not self._session.lost:
            raise ValueError(f"this store already has session {self._session.name}: one broker per process")
        if len(payload) > ENTRY_SIZE_MAX:
            raise EntryTooLarge("a session's payload", len(payload))
        folder_id = self._node.replica.core.key.directory_id
        command = Register(broker_id, folder_id, payload, new_id(self._runtime.entropy))
        clock = self._runtime.clock
        # Of the first attempt: another one may be applied later, as a repetition.
        sent_ms = clock.monotonic_ms()
        holder: LiveSession | None = None
        until_ms, epoch = sent_ms + self._patience_ms, self._node.epoch
        while True:
            await self._within(
                self._patience_ms,
                self._retried(lambda: self._node.propose(command), StoreUnavailable, OutcomeUnknown),
            )
            live = self._node.state.session_of(broker_id)
            if live is not None and live.token == command.token:
                break
            holder = holder or live
            is_another = live is not None and holder is not None and live.token != holder.token
            if self._node.epoch != epoch:  # a new leader keeps each session for one time-out more
                until_ms, epoch = clock.monotonic_ms() + self._patience_ms, self._node.epoch
            if is_another or clock.monotonic_ms() >= until_ms:
                raise BrokerIdInUse(broker_id, "another broker, with another folder, whose session is live")
            await self._wait_for_end(broker_id, live, until_ms)
            sent_ms = clock.monotonic_ms()  # those before were refused
        session = QuorumSession(
            SessionName(broker_id, live.incarnation), OwnLease(self._timeout_ms, sent_ms), self._runtime
        )
        self._session = session
        self._node.note_session()
        self._renewing = asyncio.create_task(self._renew(session))
        return session

    async def _wait_for_end(self, broker_id: int, live: LiveSession | None, until_ms: int) -> None:
        """Wait until the live session of a broker is another one, the leader is, or it is ``until_ms``. A
        proposal meanwhile would be refused, and each is an entry of the log."""
        node, clock, epoch = self._node, self._runtime.clock, self._node.epoch
        await node.wait_change(RETRY_MS)
        while node.epoch == epoch and node.state.session_of(broker_id) == live:
            left_ms = until_ms - clock.monotonic_ms()
            if live is None or left_ms <= 0 or node.failure is not None or not self._opened:
                return
            await node.wait_change(left_ms)

    async def sessions(self) -> list[SessionInfo]:
        await self.sync()
        return self._node.state.sessions()

    async def claim_controller(self) -> bool:
        session = self._own()
        if session is None:
            raise ValueError("only a registered broker can become the controller")
        state, leader = self._node.state, self._node.leader()
        takes_over = self._node.leads
        if not takes_over and leader is not None and state.session_of(leader.key.node_id) is not None:
            return False  # the controller is on the leader
        return await self._propose(Claim(session, takes_over))

    async def resign_controller(self) -> None:
        session = self._own()
        if session is not None:
            await self._propose(Resign(session))

    async def controller(self) -> SessionName | None:
        """As the contract has it; but at the leader another broker's claim counts no more: its own broker is
        to take over (:meth:`claim_controller`)."""
        await self.sync()
        holder = self._node.state.controller
        return None if self._node.leads and holder != self._own() else holder

    # ---- the secret

    async def read_secret(self) -> StoredSecret | None:
        await self.sync()
        stored, sealing = self._node.state.secret, self._sealing
        if stored is None or sealing is None:
            return stored
        return StoredSecret(stored.number, sealing.unseal(stored.number, stored.data))

    async def put_secret(self, number: int, data: bytes) -> bool:
        sealed = data if self._sealing is None else self._sealing.seal(number, data)
        return await self._propose(PutSecret(self._own(), number, sealed))

    # ---- the quorum

    async def describe(self) -> QuorumDescription:
        """Return what the leader knows of the quorum's replicas. Raises StoreUnavailable."""
        self._check_open()
        return await self._node.describe()

    async def change_voters(self, change: VoterChange) -> ChangeResult:
        """Have the leader change the voters: see :meth:`QuorumNode.ask_for_change`."""
        self._check_open()
        return await self._node.ask_for_change(change)

    @property
    def node(self) -> QuorumNode:
        """To be asked, not to be told."""
        return self._node

    def voters(self) -> list[VoterEntry]:
        """Return the voters, as this node knows them."""
        return self._node.voters()

    # ---- signal

    async def wait_changed(self, seen: int) -> int:
        return await self._signal.wait(seen)

    # ---- the node

    def _on_applied(self, _offset: Offset, _command: Command, _outcome: Outcome) -> None:
        session = self._session
        if session is not None and not session.lost and not self._node.state.is_live(session.name):
            session.lose("it was ended: no renewal came for longer than the session timeout")
        self._signal.notify()

    def _on_changed(self) -> None:
        """Tell those who wait for the signal of another leader or state, but not of each fetch: what they do
        then makes fetches itself."""
        session = self._session
        if session is not None and not self._node.state.is_live(session.name):  # also by a snapshot
            session.lose("it was ended: no renewal came for longer than the session timeout")
        if self._node.failure is not None and session is not None:
            session.lose(f"this broker's node of the metadata quorum has stopped: {self._node.failure}")
        node = self._node
        seen = node.applied, node.epoch, node.leads, node.leader(), node.failure
        if seen != self._seen:
            self._seen = seen
            self._signal.notify()

    async def _renew(self, session: QuorumSession) -> None:
        while not session.lost:
            await asyncio.sleep(self._heartbeat_ms / 1000)
            sent_ms = self._runtime.clock.monotonic_ms()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_ms / RENEWAL_PER_TIMEOUT / 1000):
                    if await self._node.renew(session.name):
                        session.lease.on_renewed(sent_ms)

    # ---- proposals

    async def _propose(self, command: Command) -> bool:
        self._check_open()
        if self._session is not None and self._session.lost:
            raise SessionLost(f"session {self._session.name} has ended; register again")
        applied = await self._within(
            self._patience_ms, self._retried(lambda: self._node.propose(command), StoreUnavailable)
        )
        if applied.outcome is Outcome.SESSION_ENDED:
            raise SessionLost("the session has ended; register again")
        return applied.outcome is Outcome.DONE

    def _retried(
        self, work: Callable[[], Awaitable[T]], *errors: type[CoordinationError]
    ) -> Callable[[], Awaitable[T]]:
        """Return work that is tried again after each of ``errors``, as long as the node runs."""

        async def repeated() -> T:
            while True:
                try:
                    return await work()
                except errors:
                    if self._node.failure is not None:
                        raise
                    await self._node.wait_change(RETRY_MS)

        return repeated

    async def _within(self, timeout_ms: int, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await work()
        except TimeoutError as error:
            raise OutcomeUnknown(f"no answer of the metadata quorum within {timeout_ms} ms") from error

    def _own(self) -> SessionName | None:
        return None if self._session is None else self._session.name

    def _check_open(self) -> None:
        if not self._opened:
            raise StoreUnavailable("the coordination store is not open")
