"""One process's part in the quorum: it runs a replica of the metadata log, and applies what is committed.

The replica (:mod:`nilometer.raft.durable`) takes one event after another; the elections that an event changed
are durable before anything of it leaves. Beside the events, a flush, the reading of committed records, and
the making of a snapshot run on other threads.

Any node proposes commands. The leader appends them; each node decides a command when it applies it. The
proposer waits until its *own* replica has applied the command: it reads what it wrote.

Invariants:

- a command is applied once at each node, in the order of the log, and the state at an offset is the same on
  all;
- a proposal ends with the outcome of its command, with :class:`StoreUnavailable` if it is
  certain that it is not and will not be in the log, else with :class:`OutcomeUnknown`;
- the disk's failure ends the node: it answers no other node any more, and its owner learns of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from nilometer.coordination.quorum.changing_voters import VoterChanges, wanted_change
from nilometer.coordination.quorum.commands import AppliedState, Command, End, Outcome, decode, encode
from nilometer.coordination.quorum.measures import QuorumMeasures
from nilometer.coordination.quorum.peers import (
    Describe,
    Fetched,
    Identify,
    PeerRefused,
    Peers,
    PeerUnavailable,
    Proposal,
    Proposed,
    ReadIndex,
    Renewal,
    Request,
    SnapshotPartFetched,
)
from nilometer.coordination.quorum.sessions import SessionKeeper
from nilometer.coordination.store import (
    CoordinationError,
    OutcomeUnknown,
    SessionName,
    StoreDamaged,
    StoreUnavailable,
)
from nilometer.identifiers import NO_LEADER, BrokerId, LeaderEpoch, Offset
from nilometer.invariants import InvariantBroken
from nilometer.raft.control_records import Endpoint, VoterEntry
from nilometer.raft.durable import DurableReplica, QuorumStopped, Turn
from nilometer.raft.exchange import (
    BeginEpochRequest,
    ChangeRefused,
    EndEpochRequest,
    QuorumFetch,
    QuorumFetchResponse,
    Send,
    SnapshotFetch,
    VoteRequest,
)
from nilometer.raft.leading import Leading
from nilometer.raft.replica import Electing, Following, RaftReplica, Role, Unattached
from nilometer.raft.snapshot_files import snapshot_values
from nilometer.raft.voter_changes import (
    DONE,
    AddVoter,
    ChangeResult,
    RemoveVoter,
    UpdateVoter,
    VoterChange,
)
from nilometer.raft.voters import VoterKey
from nilometer.replication.epochs import NO_DIVERGENCE
from nilometer.runtime import Runtime
from nilometer.runtime.gathering import gather
from nilometer.wire.errors import NONE, CorruptBatch, ErrorCode, KafkaError
from nilometer.wire.own_apis import QuorumDescription, QuorumReplica
from nilometer.wire.record_batch import batches
from nilometer.wire.records import decode_records

logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 8 << 20
"""Of one fetch of the log or of a snapshot; at least one batch."""
APPLY_BYTES_MAX = 1 << 20
FETCH_WAIT_MS = 500
"""How long a leader holds a fetch that has nothing to bring; at most half as long as a follower waits for a
response."""
NOTE_MS = 1_000
RETRY_MS = 100
"""The wait after a fetch has failed."""
MEMBERSHIP_RETRY_MS = 1_000
"""The wait after this node has asked for a change of its own place among the voters."""
SNAPSHOT_BYTES = 16 << 20
"""A snapshot is made after so many bytes of the log."""
OBSERVER_MS = 300_000
"""An observer that has not fetched for longer is described no more, as in Kafka."""
OUTCOMES_MAX = 10_000
TOLD_MAX = 1_000
VALUE_BYTES = 1 << 20
"""The state in a snapshot is divided into values of this size."""
REPLACED = "another leader was elected before the change was committed; try again"

T = TypeVar("T")


class Applied(NamedTuple):
    """What became of a proposal."""

    offset: Offset
    outcome: Outcome


OnApplied = Callable[[Offset, Command, Outcome], None]


def _ignore_applied(_offset: Offset, _command: Command, _outcome: Outcome) -> None: ...


def _ignore_changed() -> None: ...


def who_leads(core: RaftReplica) -> str | None:
    """Return what the log says when a replica has another role, epoch or leader; None of what follows from
    that."""
    role = core.role
    if isinstance(role, Leading):
        return f"This node leads the metadata quorum in epoch {core.epoch}: {core.cause.value}"
    if isinstance(role, Electing) and role.pre_vote:
        return f"Asking for votes to lead the metadata quorum after epoch {core.epoch}: {core.cause.value}"
    if isinstance(role, Following):
        return f"Node {core.leader} leads the metadata quorum in epoch {core.epoch}"
    return None


class _Waiting(NamedTuple):
    epoch: LeaderEpoch
    future: asyncio.Future[Outcome]


class QuorumNode:
    """Use :meth:`start` and :meth:`close`."""

    def __init__(
        self,
        runtime: Runtime,
        replica: DurableReplica,
        peers: Peers,
        *,
        session_timeout_ms: int = 6000,
        servers: Sequence[VoterEntry] = (),
        snapshot_bytes: int | None = None,
        own: VoterEntry | None = None,
        joins: bool = False,
    ) -> None:
        """``servers``: which nodes to ask for the leader while the log names no voter; an id of -1 is not
        known. ``snapshot_bytes``: a snapshot is made after so many bytes of the log, by default
        SNAPSHOT_BYTES. ``own``: where this node listens, which the log is to say if it is a voter; None: it
        does not listen. ``joins``: it becomes a voter by itself."""
        self._runtime = runtime
        self._servers = servers
        self._snapshot_bytes = SNAPSHOT_BYTES if snapshot_bytes is None else snapshot_bytes
        self._told_leader: VoterEntry | None = None
        """The leader that another node has named."""
        self._announced: tuple[LeaderEpoch, BrokerId, tuple[Endpoint, ...]] | None = None
        """Where the leader of an epoch listens: :meth:`on_announced`."""
        self._silent_leader: VoterEntry | None = None
        """The leader whose last fetch failed."""
        self._disk = runtime.disk
        self._replica = replica
        self._peers = peers
        self._on_applied: OnApplied = _ignore_applied
        self._on_changed: Callable[[], None] = _ignore_changed
        self._events = asyncio.Lock()
        """One event after another."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[Offset, _Waiting] = {}
        """By the offset of a command that is to be applied here."""
        self._change = asyncio.Event()
        """Set and replaced after each event: those who wait look again."""
        self._outcomes: dict[Offset, tuple[LeaderEpoch, Outcome]] = {}
        """Of the last commands, by offset: :meth:`_keep`."""
        self._told: dict[VoterKey, tuple[Offset, int]] = {}
        """The high watermark and the round of reads that each replica was told last."""
        self._fetching: asyncio.Future[Any] | None = None
        """The fetch that is asked for; it is given up with its leader, which may never answer."""
        self._note_at_ms = 0
        """When it is written down next how far the log is committed."""
        self._applied_bytes = 0
        """Since the last snapshot."""
        self._is_making_snapshot = False
        self._changes = VoterChanges(self, peers, runtime.clock)
        self._own = own
        self._joins = joins
        self._has_session = False
        self._refused: ChangeResult | None = None
        """What the last change came to that this node has asked for itself."""
        self._keeper = SessionKeeper(self, runtime.clock, session_timeout_ms)
        self._said: dict[type[Role], str] = {}
        """What was logged last of each role."""
        self.measures = QuorumMeasures(replica.core, runtime.clock.monotonic_ms())
        self.state = AppliedState()
        self.applied: Offset = 0
        """All commands below are in :attr:`state`."""
        self.failure: Exception | None = None
        """Why the node has stopped."""

    def listen(self, on_applied: OnApplied, on_changed: Callable[[], None]) -> None:
        """``on_applied`` is called for each command, after it; ``on_changed`` when anything may have changed:
        the leader, the epoch, this node's role, the state, and when the node has stopped."""
        self._on_applied = on_applied
        self._on_changed = on_changed

    # ── what it is ──────────────────────────────────────────────────────────────────────────────
    @property
    def replica(self) -> DurableReplica:
        """To be asked, not to be told."""
        return self._replica

    @property
    def leads(self) -> bool:
        return self.failure is None and isinstance(self._replica.core.role, Leading)

    @property
    def epoch(self) -> LeaderEpoch:
        return self._replica.core.epoch

    def leader(self) -> VoterEntry | None:
        """Return the leader that this node knows of, itself perhaps; None if it knows none."""
        core = self._replica.core
        if core.leader == NO_LEADER or (core.leader == core.key.node_id and not self.leads):
            return None
        key = core.voters.latest.key_of(core.leader)
        announced = self._announced
        if announced is not None and announced[:2] == (core.epoch, core.leader):
            return VoterEntry(key or VoterKey(core.leader, ""), announced[2])
        entry = None if key is None else self._replica.entry_of(key)
        if entry is None or not entry.endpoints:  # the log does not name it yet, or not where it listens
            told = () if self._told_leader is None else (self._told_leader,)
            return next((one for one in (*told, *self._servers) if one.key.node_id == core.leader), None)
        return entry

    def on_announced(self, request: BeginEpochRequest, endpoints: tuple[Endpoint, ...]) -> None:
        """The leader of an epoch has said where it listens: that counts more than the log, which may not have
        its new address yet. A late message of an earlier epoch counts no more."""
        if endpoints and (self._announced is None or request.epoch >= self._announced[0]):
            self._announced = request.epoch, request.leader, endpoints

    # ── from start to end ────────────────────────────────────────────────────────────────────────────────
    async def start(self) -> None:
        """Load the newest snapshot, and take part; do nothing if it does. Raises StoreDamaged, OSError."""
        if self._tasks:
            return
        await self._load_snapshot()
        for work in (
            self._keep_time,
            self._flush,
            self._fetch,
            self._apply,
            self._keep_sessions,
            self._keep_membership,
        ):
            self._spawn(self._repeated(work))

    async def close(self) -> None:
        """Leave the quorum: a leader resigns, so that another one is elected at once. Proposals whose outcome
        is open raise OutcomeUnknown."""
        is_in_order = self.failure is None
        if is_in_order:
            with suppress(QuorumStopped, PeerUnavailable):
                turn = await self._locked(self._replica.resign)
                await gather(*map(self._deliver, turn.messages), return_exceptions=True)
        self._stop(StoreUnavailable("the node was closed"))
        for task in list(self._tasks):
            task.cancel()
        await gather(*self._tasks, return_exceptions=True)
        if is_in_order and (plan := self._replica.committed_plan()) is not None:
            try:
                await self._disk.offload(plan)  # for tools that read the folder while no broker runs
            except OSError as error:
                logger.warning("How far the metadata is committed could not be written down: %s", error)
        self._replica.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _repeated(self, work: Callable[[], Awaitable[None]]) -> None:
        while self.failure is None:
            await self._stopping(work)

    async def _stopping(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do work; an error of it that no retry mends stops the node."""
        try:
            await work()
        except QuorumStopped as stopped:
            self._end_with(stopped)
        except (StoreDamaged, OSError, InvariantBroken, CorruptBatch) as error:
            self._end_with(self._replica.fail(error))
        except Exception as error:  # a bug: a node without one of its loops would look as if it took part
            logger.exception("The node of the metadata quorum stops, because of an unexpected error")
            self._end_with(self._replica.fail(error))

    def _end_with(self, stopped: QuorumStopped) -> None:
        if self.failure is None:
            logger.error("%s", stopped)
        self._stop(stopped)
        for message in stopped.messages:  # that it leads no more
            self._spawn(self._deliver(message))

    def _stop(self, why: Exception) -> None:
        if self.failure is None:
            self.failure = why
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.future.done():
                one.future.set_exception(OutcomeUnknown(f"this node has stopped: {self.failure}"))
        self._tell()

    # ── events ──────────────────────────────────────────────────────────────────────────────────
    async def _event(self, event: Callable[[], Turn[T]]) -> T:
        """Have the replica take an event, and see to what is left of it; return the response."""
        turn = await self._locked(event)
        for message in turn.messages:
            self._spawn(self._deliver(message))
        if turn.is_new_leader and self._fetching is not None:
            self._fetching.cancel()
        if turn.is_new_leader:
            self._say_who_leads()
        if turn.removable:
            self._spawn(self._remove(turn.removable))
        self._tell()
        return turn.response

    async def _locked(self, event: Callable[[], Turn[T]]) -> Turn[T]:
        async with self._events:
            turn = event()
            if turn.work is not None:
                # To its end, also if this task is cancelled: no event is taken before.
                work = asyncio.ensure_future(self._offloaded(turn.work))
                try:
                    await asyncio.shield(work)
                except asyncio.CancelledError:
                    await asyncio.wait((work,))
                    raise
        return turn

    async def _offloaded(self, work: Callable[[], T]) -> T:
        """Raises QuorumStopped if the disk fails."""
        try:
            return await self._disk.offload(work)
        except OSError as error:
            raise self._replica.fail(error) from error

    async def _remove(self, paths: tuple[str, ...]) -> None:
        def remove() -> None:
            for path in paths:
                with suppress(FileNotFoundError):
                    self._disk.remove(path)

        with suppress(OSError):  # it is removed at the next start
            await self._disk.offload(remove)

    def _say_who_leads(self) -> None:
        """Log elections, and their causes: those of a quorum without a majority once."""
        core = self._replica.core
        said = who_leads(core)
        if said is not None and said != self._said.get(type(core.role)):
            self._said[type(core.role)] = said
            logger.info("%s", said)

    def _tell(self) -> None:
        replica = self._replica
        self.measures.look(replica.core, replica.log_end_offset, self._runtime.clock.monotonic_ms())
        self._change.set()
        self._change = asyncio.Event()
        self._on_changed()

    async def wait_change(self, timeout_ms: int | None = None) -> None:
        """Wait until something may have changed, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._change.wait()

    # ── the loops ───────────────────────────────────────────────────────────────────────────────
    async def _keep_time(self) -> None:
        deadline_ms, change = self._replica.deadline_ms(), self._change
        if deadline_ms is not None and deadline_ms <= self._runtime.clock.monotonic_ms():
            await self._event(self._replica.on_time)
            return
        wait_ms = None if deadline_ms is None else deadline_ms - self._runtime.clock.monotonic_ms()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait_ms is None else max(wait_ms, 1) / 1000):
                await change.wait()

    async def _flush(self) -> None:
        change = self._change
        if not self._replica.needs_flush:
            await change.wait()
            return
        plan = self._replica.flush_plan()
        await self._offloaded(plan.run)
        await self._event(partial(self._replica.on_flushed, plan))

    async def _fetch(self) -> None:
        change = self._change
        if (reading := self._replica.reading) is not None:
            await self._offloaded(reading.run)
            await self._event(partial(self._replica.on_snapshot_read, reading))
            return
        async with self._events:
            request = self._replica.next_fetch()
        leader = self.leader()
        if isinstance(self._replica.core.role, Unattached) and not self._replica.core.is_voter:
            await self._look_for_leader()
            return
        if request is None or leader is None or self.leads:
            await change.wait()
            return
        try:
            await self._fetch_from(leader, request)
        except (PeerUnavailable, CorruptBatch) as error:
            if self._silent_leader != leader:  # once, not at each attempt
                self._silent_leader = leader
                logger.info("The leader of the metadata quorum, %s, sends no records: %s", leader.key, error)
            if isinstance(error, PeerRefused):
                await self._event(partial(self._replica.on_leader_refused, request))
            await self.wait_change(RETRY_MS)
        else:
            self._silent_leader = None

    async def _look_for_leader(self) -> None:
        """Ask all voters, as an observer is not told of elections; the one that has led may be silent."""
        core = self._replica.core
        servers = [self._replica.entry_of(voter) for voter in core.voters.latest.voters] or self._servers
        request = QuorumFetch(core.key, core.epoch, core.leader, Offset(0), LeaderEpoch(0))
        asking = {asyncio.ensure_future(self._peers.ask(server, request)) for server in servers}
        try:
            async with asyncio.timeout(self._replica.timing.election_ms / 1000):
                for answer in asyncio.as_completed(asking):
                    with suppress(PeerUnavailable):
                        found: Fetched = await answer
                        self._told_leader = found.leader or self._told_leader
                        await self._event(partial(self._replica.on_fetch_response, request, found.response))
                    if not isinstance(core.role, Unattached):
                        break
        except TimeoutError:
            return
        finally:
            for one in asking:
                one.cancel()
            await gather(*asking, return_exceptions=True)
        await self.wait_change(RETRY_MS)

    async def _fetch_from(self, leader: VoterEntry, request: QuorumFetch | SnapshotFetch) -> None:
        self._fetching = asking = asyncio.ensure_future(self._peers.ask(leader, request))
        try:
            await asyncio.wait((asking,))
        finally:
            asking.cancel()
            self._fetching = None
        if asking.cancelled():
            return
        found = asking.result()
        if isinstance(request, QuorumFetch):
            self._told_leader = found.leader or self._told_leader
            event = partial(self._replica.on_fetch_response, request, found.response, found.records)
        else:
            event = partial(self._replica.on_snapshot_response, request, found.response, found.part)
        await self._event(event)
        if found.response.error is not NONE:
            await self.wait_change(RETRY_MS)

    async def _deliver(self, message: Send) -> None:
        replica, voter, request = self._replica, message.to, message.request
        try:
            response = await self._peers.ask(replica.entry_of(voter), request)
        except PeerUnavailable:
            return  # as good as lost
        with suppress(QuorumStopped):
            if isinstance(request, VoteRequest):
                await self._event(partial(replica.on_vote_response, voter, request, response))
            else:
                await self._event(partial(replica.on_epoch_response, response))

    async def _keep_sessions(self) -> None:
        change = self._change
        for name in self._keeper.look():
            logger.warning("Session %s is ended: no renewal came for longer than the session timeout", name)
            self._spawn(self._end(name, self.epoch))
        wait_ms = None
        if (next_ms := self._keeper.next_look_ms) is not None:
            wait_ms = max(next_ms - self._runtime.clock.monotonic_ms(), 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                await change.wait()

    async def _end(self, name: SessionName, epoch: LeaderEpoch) -> None:
        """Append the end of a session, as the leader of the epoch in which its time-out is over. It is not
        proposed to another leader, which may have renewed it."""
        async with self._events:
            if self.failure is None and self.epoch == epoch:
                with suppress(QuorumStopped):
                    self._replica.append([encode(End(name))])
        self._tell()

    def note_session(self) -> None:
        """The broker of this node has a session: no other one that is live has its id, so that it may take
        the place of a former voter with the same id."""
        self._has_session = True
        self._tell()

    async def _keep_membership(self) -> None:
        """Ask that the log says where this node listens, and, if it ``joins``, that it is a voter."""
        own, change = self._own, self._change
        joins = self._joins and self._has_session
        wanted = None if own is None else wanted_change(self._replica, own, joins=joins)
        if wanted is None:
            await change.wait()
            return
        try:
            result = await self.ask_for_change(wanted)
        except CoordinationError as error:
            result = ChangeResult(ErrorCode.request_timed_out, str(error))
        if result == DONE:
            logger.info("The leader of the metadata quorum has taken this node's %s", wanted)
        elif result != self._refused:  # once, not at each attempt
            logger.info("The metadata quorum has not taken this node's %s yet: %s", wanted, result)
        self._refused = result
        await asyncio.sleep(MEMBERSHIP_RETRY_MS / 1000)

    # ── applying ────────────────────────────────────────────────────────────────────────────────
    async def _apply(self) -> None:
        change = self._change
        core = self._replica.core
        snapshot = core.snapshot
        if snapshot is not None and snapshot.id.end_offset > self.applied:
            await self._load_snapshot()
        elif self.applied < core.high_watermark:
            await self._apply_committed()
        else:
            now_ms = self._runtime.clock.monotonic_ms()
            if now_ms >= self._note_at_ms and (plan := self._replica.committed_plan()) is not None:
                self._note_at_ms = now_ms + NOTE_MS
                await self._offloaded(plan)
            await change.wait()

    async def _apply_committed(self) -> None:
        at = self.applied
        try:
            found = await self._disk.offload(partial(self._replica.read_committed, at, APPLY_BYTES_MAX))
        except KafkaError as error:
            if self._replica.core.snapshot is not None and self._replica.core.snapshot.id.end_offset > at:
                return  # the log was replaced meanwhile
            raise StoreDamaged(f"the metadata log cannot be read at offset {at}: {error}") from error
        for position, header in batches(found.records):
            if not header.is_control:
                epoch = LeaderEpoch(header.partition_leader_epoch)
                for record in decode_records(found.records, position, header):
                    self._apply_one(Offset(record.offset), epoch, record.value or b"")
            self.applied = Offset(header.next_offset)
        self._give_up_below(self.applied, StoreUnavailable(REPLACED))  # a control record is there
        self._applied_bytes += len(found.records)
        self._tell()
        if self._applied_bytes >= self._snapshot_bytes and not self._is_making_snapshot:
            self._is_making_snapshot = True
            self._spawn(self._stopping(self._make_snapshot))

    def _apply_one(self, offset: Offset, epoch: LeaderEpoch, value: bytes) -> None:
        try:
            command = decode(value)
        except msgspec.DecodeError as error:
            raise StoreDamaged(
                f"the command at offset {offset} of the log is damaged or of a newer version: {error}"
            ) from error
        outcome = self.state.apply(offset, command)
        waiting = self._waiting.pop(offset, None)
        if waiting is not None and not waiting.future.done():
            if waiting.epoch == epoch:
                waiting.future.set_result(outcome)
            else:
                waiting.future.set_exception(StoreUnavailable(REPLACED))
        else:
            self._keep(offset, epoch, outcome)
        self._keeper.on_applied(offset, command, outcome)
        self._on_applied(offset, command, outcome)

    def _keep(self, offset: Offset, epoch: LeaderEpoch, outcome: Outcome) -> None:
        """Keep the outcome of a command for a while: the leader's answer may come after it was applied
        here."""
        self._outcomes[offset] = (epoch, outcome)
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    async def _load_snapshot(self) -> None:
        snapshot = self._replica.core.snapshot
        if snapshot is None or not snapshot.id.end_offset:
            return

        def read() -> bytes:
            return b"".join(snapshot_values(self._disk, self._replica.folder, snapshot.id))

        try:
            self.state = AppliedState.from_bytes(await self._disk.offload(read))
        except FileNotFoundError:
            if self._replica.core.snapshot is snapshot:
                raise
            return  # a newer one has taken its place meanwhile
        except (CorruptBatch, msgspec.DecodeError) as error:
            raise StoreDamaged(
                f"the snapshot {snapshot.id} in {self._replica.folder} cannot be read: {error}"
            ) from error
        self.applied = snapshot.id.end_offset
        self._applied_bytes = 0
        self._give_up_below(self.applied, OutcomeUnknown("it is in a snapshot, or was replaced by it"))
        self._tell()

    def _give_up_below(self, offset: Offset, error: Exception) -> None:
        for at in [one for one in self._waiting if one < offset]:
            future = self._waiting.pop(at).future
            if not future.done():
                future.set_exception(error)

    async def _make_snapshot(self) -> None:
        """Make a snapshot of the state of this moment, so that the log can begin later."""
        try:
            data = self.state.to_bytes()
            values = [data[begin : begin + VALUE_BYTES] for begin in range(0, len(data), VALUE_BYTES)]
            self._applied_bytes = 0
            making = self._replica.begin_snapshot(self.applied, values)
            if making is not None:
                await self._offloaded(making.run)
                await self._event(partial(self._replica.on_snapshot_made, making))
        except KafkaError as error:  # the log was replaced meanwhile: the next snapshot is of the new one
            logger.warning("No snapshot of the metadata log was made at offset %d: %s", self.applied, error)
        finally:
            self._is_making_snapshot = False

    # ── proposing ───────────────────────────────────────────────────────────────────────────────
    async def propose(self, command: Command) -> Applied:
        """Have the leader append a command; return its outcome once it is applied here.

        Raises StoreUnavailable if it is not in the log and will not be, OutcomeUnknown if it may be or
        become; also if this is cancelled, as by a time-out, it may.
        """
        if self.failure is not None:
            raise StoreUnavailable(f"this node of the metadata quorum has stopped: {self.failure}")
        data = encode(command)
        proposed = await self._proposed(data)
        if proposed.offset is None:
            raise StoreUnavailable("the metadata quorum has no leader that this node can reach; try again")
        return Applied(proposed.offset, await self._outcome(proposed.offset, proposed.epoch))

    async def _proposed(self, data: bytes) -> Proposed:
        if self.leads:
            return await self._append(data)
        leader = self.leader()
        if leader is None:
            return Proposed(None)
        try:
            return await self._peers.ask(leader, Proposal(data))
        except PeerRefused as error:  # it was not sent
            raise StoreUnavailable(f"the leader of the metadata quorum is not reached: {error}") from error
        except PeerUnavailable as error:
            raise OutcomeUnknown(f"the leader of the metadata quorum did not answer: {error}") from error

    async def _append(self, data: bytes) -> Proposed:
        async with self._events:
            try:
                end_offset = self._replica.append([data])
            except QuorumStopped as stopped:
                raise OutcomeUnknown(str(stopped)) from stopped
            epoch = self.epoch
        if end_offset is None:
            return Proposed(None)
        self._tell()
        return Proposed(Offset(end_offset - 1), epoch)

    async def _outcome(self, offset: Offset, epoch: LeaderEpoch) -> Outcome:
        known = self._outcomes.get(offset)
        if known is not None:
            if known[0] != epoch:
                raise StoreUnavailable(REPLACED)
            return known[1]
        if offset < self.applied or self.failure is not None:
            raise OutcomeUnknown("the change may have been made before this node learned of it")
        waiting = self._waiting[offset] = _Waiting(epoch, asyncio.get_running_loop().create_future())
        try:
            return await waiting.future
        finally:
            if self._waiting.get(offset) is waiting:
                del self._waiting[offset]

    # ── reads ───────────────────────────────────────────────────────────────────────────────────
    async def confirm_leadership(self) -> bool:
        """Return whether this node was the leader when this was called: a majority of the voters has said so
        since. What was committed then is below the high watermark that it had then."""
        async with self._events:
            number = self._replica.begin_read() if self.failure is None else None
            epoch = self.epoch
        if number is None:
            return False
        self._tell()  # fetches that wait are answered, so that they bring the next ones
        while self.epoch == epoch and self.failure is None:
            change = self._change
            confirmed = self._replica.core.confirmed_round()
            if confirmed is None:
                return False
            if confirmed >= number:
                return True
            await change.wait()
        return False

    async def catch_up(self) -> None:
        """Wait until all is applied here that was committed when this was called. Raises StoreUnavailable."""
        leader = self.leader()
        offset: Offset | None = None
        if self.leads:
            offset = await self._read_index()
        elif leader is not None:
            try:
                offset = await self._peers.ask(leader, ReadIndex())
            except PeerUnavailable as error:
                raise StoreUnavailable(f"the leader of the quorum did not answer: {error}") from error
        if offset is None:
            raise StoreUnavailable("the metadata quorum has no leader that this node can reach; try again")
        while self.applied < offset:
            change = self._change
            if self.failure is not None:
                raise StoreUnavailable(f"this node has stopped: {self.failure}")
            await change.wait()

    async def describe(self) -> QuorumDescription:
        """Return what the leader knows of the replicas. Raises StoreUnavailable."""
        leader = self.leader()
        found = self._description()
        if found is None and leader is not None:
            try:
                found = await self._peers.ask(leader, Describe())
            except PeerUnavailable as error:
                raise StoreUnavailable(f"the leader of the quorum did not answer: {error}") from error
        if found is None:
            raise StoreUnavailable(await self._why_no_leader())
        return found

    async def _why_no_leader(self) -> str:
        """Ask the voters who is there, and say which are missing."""
        core = self._replica.core
        voters = core.voters.latest

        async def is_reached(voter: VoterKey) -> bool:
            with suppress(PeerUnavailable, TimeoutError):
                async with asyncio.timeout(self._replica.timing.election_ms / 1000):
                    return await self._peers.ask(self._replica.entry_of(voter), Identify()) == voter
            return False

        others = [voter for voter in voters.voters if voter != core.key]
        found = await gather(*map(is_reached, others))
        missing = [str(voter.node_id) for voter, reached in zip(others, found, strict=True) if not reached]
        if not voters.voters:
            why = "and this node does not know its voters yet"
        elif missing:
            why = (
                f"a majority is {voters.majority} of its {len(voters.voters)} voters, and node "
                f"{core.key.node_id} does not reach {', '.join(missing)}"
            )
        else:
            why = "all its voters are reached, and an election is to be expected"
        return f"the metadata quorum has no leader in epoch {core.epoch}: {why}"

    def _description(self) -> QuorumDescription | None:
        core, role = self._replica.core, self._replica.core.role
        if self.failure is not None or not isinstance(role, Leading):
            return None
        voters, now_ms = core.voters.latest, self._runtime.clock.monotonic_ms()
        fetching = {
            key for key, known in role.positions.items() if now_ms - known.fetched_ms <= OBSERVER_MS
        } | {core.key}  # a leader that removes itself leads on until that is committed
        observers = sorted(key for key in fetching if key not in voters)

        def describe(key: VoterKey) -> QuorumReplica:
            known = role.positions.get(key)
            end_offset = fetched_ms = -1
            if key == core.key:
                end_offset, fetched_ms = core.flushed_end, 0
            elif known is not None:
                end_offset, fetched_ms = known.end_offset, now_ms - known.fetched_ms
            return QuorumReplica(
                node_id=key.node_id,
                directory_id=key.directory_id,
                is_voter=key in voters,
                log_end_offset=end_offset,
                fetched_ms=fetched_ms,
            )

        return QuorumDescription(
            leader_id=core.key.node_id,
            epoch=core.epoch,
            high_watermark=core.high_watermark,
            replicas=tuple(map(describe, (*voters.voters, *observers))),
        )

    def voters(self) -> list[VoterEntry]:
        """Return the voters, as this node knows them."""
        return [self._replica.entry_of(key) for key in self._replica.core.voters.latest.voters]

    # ── the voters ──────────────────────────────────────────────────────────────────────────────
    async def ask_for_change(self, change: VoterChange) -> ChangeResult:
        """Have the leader change the voters; return what became of it.

        Raises StoreUnavailable if there is no leader that this node knows of, or no process listens there;
        OutcomeUnknown if it did not answer: the change may be made.
        """
        if self.leads:
            return await self._changes.make(change)
        leader = self.leader()
        if leader is None:
            raise StoreUnavailable("the metadata quorum has no leader that this node can reach; try again")
        try:
            return await self._peers.ask(leader, change)
        except PeerRefused as error:
            raise StoreUnavailable(f"the leader of the metadata quorum is not reached: {error}") from error
        except PeerUnavailable as error:
            raise OutcomeUnknown(f"the leader of the metadata quorum did not answer: {error}") from error

    async def change_voters(self, change: Callable[[], ChangeRefused | Turn[None]]) -> ChangeRefused | Offset:
        """Have the replica append a change of the voters, if it leads and may now; return its offset."""

        def event() -> Turn[ChangeRefused | Offset]:
            turn = change()
            if isinstance(turn, ChangeRefused):
                return Turn(turn)
            return Turn(self._replica.core.voters.latest_offset, *turn[1:])

        return await self._event(event)

    async def _read_index(self) -> Offset | None:
        committed = self._replica.high_watermark
        return committed if await self.confirm_leadership() else None

    async def renew(self, name: SessionName) -> bool:
        """Have the leader renew a session; return whether it has, counted from when this was called."""
        leader = self.leader()
        if self.leads:
            return await self._keeper.renew(name)
        if leader is None:
            return False
        try:
            return await self._peers.ask(leader, Renewal(name))
        except PeerUnavailable:
            return False

    # ── what others ask ─────────────────────────────────────────────────────────────────────────
    async def serve(self, request: Request) -> Any:
        """Return the response to another node. Raises PeerUnavailable: there is none."""
        if self.failure is not None:
            raise PeerUnavailable(str(self.failure))
        try:
            return await self._serve(request)
        except (QuorumStopped, CoordinationError, KafkaError, OSError) as error:
            raise PeerUnavailable(str(error)) from error

    async def _serve(self, request: Request) -> Any:
        replica = self._replica
        if isinstance(request, QuorumFetch):
            return await self._serve_fetch(request)
        if isinstance(request, SnapshotFetch):
            response = await self._event(partial(replica.on_snapshot_fetch, request))
            return SnapshotPartFetched(
                *await self._disk.offload(partial(replica.part_for, response, FETCH_BYTES_MAX))
            )
        if isinstance(request, VoteRequest):
            return await self._event(partial(replica.on_vote_request, request))
        if isinstance(request, BeginEpochRequest):
            return await self._event(partial(replica.on_begin_epoch, request))
        if isinstance(request, EndEpochRequest):
            return await self._event(partial(replica.on_end_epoch, request))
        if isinstance(request, ReadIndex):
            return await self._read_index() if self.leads else None
        if isinstance(request, Renewal):
            return await self._keeper.renew(request.session)
        if isinstance(request, Describe):
            return self._description()
        if isinstance(request, Identify):
            return replica.core.key
        if isinstance(request, AddVoter | RemoveVoter | UpdateVoter):
            return await self._changes.make(request)
        try:
            decode(request.command)  # what this node could not apply is not appended
        except msgspec.DecodeError as error:
            raise PeerUnavailable(f"the command is damaged or of a newer version: {error}") from error
        return await self._append(request.command)

    async def _serve_fetch(self, request: QuorumFetch) -> Fetched:
        replica = self._replica
        response = await self._event(partial(replica.on_fetch, request))
        until_ms = self._runtime.clock.monotonic_ms() + min(FETCH_WAIT_MS, replica.timing.fetch_ms // 2)
        while not self._has_more(request, response):
            left_ms = until_ms - self._runtime.clock.monotonic_ms()
            if left_ms <= 0:
                break
            await self.wait_change(left_ms)
            if self._may_differ(request, response):
                response = await self._event(partial(replica.on_fetch, request))
        if len(self._told) > TOLD_MAX:
            self._told.clear()  # each is answered once more without waiting
        self._told[request.replica] = (response.high_watermark, response.round)
        read = partial(replica.records_for, request, response, FETCH_BYTES_MAX)
        response, records = await self._disk.offload(read)
        return Fetched(response, bytes(records), self.leader())

    def _has_more(self, request: QuorumFetch, response: QuorumFetchResponse) -> bool:
        return (
            response.error is not NONE
            or response.diverging is not NO_DIVERGENCE
            or response.snapshot is not None
            or response.end_offset > request.fetch_offset
            or (response.high_watermark, response.round) != self._told.get(request.replica)
        )

    def _may_differ(self, request: QuorumFetch, response: QuorumFetchResponse) -> bool:
        """Whether another look is worth it: each counts as a fetch of the follower."""
        core = self._replica.core
        round_now = core.role.round if isinstance(core.role, Leading) else -1
        return (
            self._replica.log_end_offset != response.end_offset
            or core.epoch != response.epoch
            or (core.high_watermark, round_now) != (response.high_watermark, response.round)
        )
