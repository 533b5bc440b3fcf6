"""A replica of the quorum with its folder: it turns the core's effects into writes.

The folder is ``__cluster_metadata-0`` of the metadata log directory: a log of this project's
(:mod:`nilometer.storage`), ``quorum-state``, and snapshots. :mod:`~nilometer.raft.recovery` opens it. There
are no sockets here: the owner, a shell, passes requests and responses, one after another, and sends what
comes out.

An event returns a :class:`Turn`. Its writes to the log have been done; these only reach the page cache. The
rest is the owner's, in this order::

    turn = replica.on_vote_request(request)
    if turn.work is not None:
        await disk.offload(turn.work)      # an election that this event has changed is made durable
    send(turn.messages); reply(turn.response)

    plan = replica.flush_plan()            # whenever replica.needs_flush, beside other events
    await disk.offload(plan.run)
    turn = replica.on_flushed(plan)

Invariants:
- *nothing leaves before the election that it depends on is durable*: no event is taken before the work of the
  one before is done;
- *a fetch acknowledges only what is flushed*, and a leader counts itself to its flushed end;
- *what would truncate committed records ends the replica*, as each broken invariant does;
- *a failed write or sync ends the replica* (:class:`QuorumStopped`): what the disk has then is not known, and
  a sync that is tried again may succeed without having written anything. A restart recovers it;
- *what was committed and durable here is here after a restart*, or the replica does not start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar, assert_never

from nilometer.identifiers import Offset
from nilometer.invariants import InvariantBroken, check
from nilometer.raft.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    VoterEntry,
    control_batch,
    read_control_batch,
)
from nilometer.raft.exchange import (
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BeginEpochRequest,
    ChangeRefused,
    Effect,
    Effects,
    Election,
    EndEpochRequest,
    EpochResponse,
    Moment,
    PublishHighWatermark,
    PublishLeader,
    QuorumFetch,
    QuorumFetchResponse,
    ReadSnapshot,
    ReplaceLog,
    Send,
    SnapshotFetch,
    SnapshotFetchResponse,
    StoreElection,
    Timing,
    TrimLog,
    TruncateLog,
    VoteRequest,
    VoteResponse,
    WriteSnapshotPart,
)
from nilometer.raft.leading import Leading
from nilometer.raft.quorum_state import write_election
from nilometer.raft.recovery import LOG_CONFIG, Recovered, recover, write_committed
from nilometer.raft.replica import RaftReplica
from nilometer.raft.snapshot_files import SnapshotMaking, SnapshotReading, fetched_path, snapshot_path
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import NO_VOTERS, VoterKey, VoterRecord, VoterSet
from nilometer.runtime.runtime import Runtime
from nilometer.storage.checkpoints import make_durable
from nilometer.storage.errors import LogFenced
from nilometer.storage.flushing import FlushPlan
from nilometer.storage.reading import LogSlice
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.compression import Bytes
from nilometer.wire.errors import NONE, CorruptBatch
from nilometer.wire.record_batch import batches, check_batch
from nilometer.wire.records import BatchBuilder

BATCH_BYTES_MAX: Final = 8 << 20
"""Records that are appended together are one batch, of at most this size."""

T = TypeVar("T")


class QuorumStopped(Exception):
    """The disk has failed, or the log is not what the quorum has committed: this replica neither votes nor
    leads any more. ``reason`` is the first failure."""

    def __init__(self, folder: str, reason: Exception, messages: tuple[Send, ...] = ()) -> None:
        super().__init__(f"the metadata quorum's replica in {folder} has stopped: {reason}")
        self.reason = reason
        self.messages = messages
        """To be sent: a leader's resignation, so that another one is elected at once."""


class Turn(NamedTuple, Generic[T]):
    """What is left to do after an event."""

    response: T
    messages: tuple[Send, ...] = ()
    work: Callable[[], None] | None = None
    """Blocks; it is run before anything of this turn leaves, and before the next event."""
    is_new_leader: bool = False
    """Whether the role, the epoch or the leader has changed."""
    has_committed: bool = False
    """Whether the high watermark has advanced."""
    removable: tuple[str, ...] = ()
    """Files that are of no use any more; to be removed at any time."""


class DurableReplica:
    """One process's replica. Not for several threads, but for what is offloaded."""

    def __init__(
        self, runtime: Runtime, folder: str, key: VoterKey, found: Recovered, timing: Timing
    ) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._log = found.log
        self._entries = found.entries
        self._new_entry: VoterEntry | None = None
        """What the record of voters that is appended now says of one of them."""
        self._origins = [found.origin]
        """The snapshots that are kept, the oldest first: the log begins at the first."""
        self._unstored: Election | None = None
        """An election that is not durable yet."""
        self._is_cut = False
        """Whether the log was truncated, and that is not durable yet."""
        self._committed_durable = found.committed
        self.folder = folder
        self.timing = timing
        self.failure: Exception | None = None
        self.reading: SnapshotReading | None = None
        """A fetched snapshot that is to be read; then :meth:`on_snapshot_read`."""
        self.core = RaftReplica(
            found.log,
            key,
            found.voters,
            found.election,
            self._now(),
            origin=found.origin,
            snapshot=found.snapshot,
            high_watermark=found.committed,
            timing=timing,
        )
        """To be asked, not to be told."""
        if found.snapshot is not None and found.snapshot.id != found.origin:
            self._origins.append(found.snapshot.id)

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        folder: str,
        key: VoterKey,
        *,
        timing: Timing = Timing(),  # noqa: B008  # frozen
        log_config: LogConfig = LOG_CONFIG,
    ) -> DurableReplica:
        """Open the folder of a replica, which may be empty. Blocks.

        Raises CorruptCheckpoint, QuorumDamaged, OSError.
        """
        found = recover(runtime.disk, folder, log_config, runtime.clock.wall_ms())
        return cls(runtime, folder, key, found, timing)

    def close(self) -> None:
        """Close its files; what is not flushed may be lost."""
        self._log.files.pool.close()

    # ── what it is ──────────────────────────────────────────────────────────────────────────────
    @property
    def log_end_offset(self) -> Offset:
        return self._log.log_end_offset

    @property
    def log_start_offset(self) -> Offset:
        return self._log.log_start_offset

    @property
    def is_blank(self) -> bool:
        """Whether it has no record and knows no voters, and has never voted."""
        core = self.core
        has_nothing = not self.log_end_offset and core.snapshot is None and core.voters.latest == NO_VOTERS
        return has_nothing and not core.epoch and core.election.voted is None

    @property
    def high_watermark(self) -> Offset:
        """What is below is committed: :meth:`read_committed`."""
        return self.core.high_watermark

    @property
    def needs_flush(self) -> bool:
        return self.failure is None and self.core.flushed_end < self._log.log_end_offset

    def deadline_ms(self) -> int | None:
        """Return when :meth:`on_time` is due, of the monotonic clock; None if nothing is awaited."""
        return self.core.deadline_ms(self._now())

    def entry_of(self, voter: VoterKey) -> VoterEntry:
        """Return where a voter listens, as far as the log says so."""
        return self._entries.of(voter)

    def _now(self) -> Moment:
        return Moment(self._runtime.clock.monotonic_ms(), self._runtime.entropy.uniform(0.0, 1.0))

    # ── events ──────────────────────────────────────────────────────────────────────────────────
    def on_time(self) -> Turn[None]:
        with self._event() as now:
            return self._turn(None, self.core.on_time(now))

    def on_vote_request(self, request: VoteRequest) -> Turn[VoteResponse]:
        with self._event() as now:
            return self._turn(*self.core.on_vote_request(request, now))

    def on_vote_response(self, voter: VoterKey, request: VoteRequest, response: VoteResponse) -> Turn[None]:
        with self._event() as now:
            return self._turn(None, self.core.on_vote_response(voter, request, response, now))

    def on_begin_epoch(self, request: BeginEpochRequest) -> Turn[EpochResponse]:
        with self._event() as now:
            return self._turn(*self.core.on_begin_epoch(request, now))

    def on_end_epoch(self, request: EndEpochRequest) -> Turn[EpochResponse]:
        with self._event() as now:
            return self._turn(*self.core.on_end_epoch(request, now))

    def on_epoch_response(self, response: EpochResponse) -> Turn[None]:
        with self._event() as now:
            return self._turn(None, self.core.on_epoch_response(response, now))

    def resign(self) -> Turn[None]:
        with self._event() as now:
            return self._turn(None, self.core.resign(now))

    # ── the leader ──────────────────────────────────────────────────────────────────────────────
    def append(self, values: Sequence[bytes]) -> Offset | None:
        """Append records, all or none, and return the offset after them; None if this replica does not lead.

        They are committed once the high watermark reaches it. Raises ValueError above BATCH_BYTES_MAX, or
        without records; QuorumStopped.
        """
        with self._event():
            if not isinstance(self.core.role, Leading):
                return None
            builder, wall_ms = BatchBuilder(size_max=BATCH_BYTES_MAX), self._runtime.clock.wall_ms()
            if not all(builder.append(wall_ms, None, value) for value in values):
                raise ValueError(f"records of more than {BATCH_BYTES_MAX} bytes in one batch")
            batch = builder.build(self.log_end_offset, partition_leader_epoch=self.core.epoch)
            self._append(batch)
            return self.log_end_offset

    def begin_read(self) -> int | None:
        """Begin a read of what is committed: see :meth:`RaftReplica.begin_read`."""
        with self._event():
            return self.core.begin_read()

    def on_fetch(self, request: QuorumFetch) -> Turn[QuorumFetchResponse]:
        """The records are to be read with :meth:`records_for`."""
        with self._event() as now:
            return self._turn(*self.core.on_fetch(request, now))

    def records_for(
        self, request: QuorumFetch, response: QuorumFetchResponse, max_bytes: int
    ) -> tuple[QuorumFetchResponse, Bytes]:
        """Return the response, with as many records as fit, and these. Blocks: on any thread.

        Raises KafkaError if the log is damaged, or was truncated meanwhile: then there is no response.
        """
        if response.end_offset <= request.fetch_offset:
            return response, b""
        found = self._log.read(request.fetch_offset, max_bytes, response.end_offset)
        assert found is not None, "it may block"
        return response.cut_at(found.next_offset), found.records

    def on_snapshot_fetch(self, request: SnapshotFetch) -> Turn[SnapshotFetchResponse]:
        """The bytes are to be read with :meth:`part_for`."""
        with self._event() as now:
            return self._turn(*self.core.on_snapshot_fetch(request, now))

    def part_for(
        self, response: SnapshotFetchResponse, max_bytes: int
    ) -> tuple[SnapshotFetchResponse, bytes]:
        """Return the response, with as many bytes as fit, and these. Blocks: on any thread.

        Raises OSError: then there is no response.
        """
        if response.snapshot is None:
            return response, b""
        file = self._disk.open(snapshot_path(self.folder, response.snapshot), writable=False)
        try:
            part = file.read_at(response.position, min(max_bytes, response.size - response.position))
        finally:
            file.close()
        return response.cut_at(response.position + len(part)), part

    def add_voter(self, entry: VoterEntry) -> ChangeRefused | Turn[None]:
        with self._event() as now:
            return self._changed(self.core.add_voter(entry.key, now), entry)

    def update_voter(self, entry: VoterEntry) -> ChangeRefused | Turn[None]:
        """Write down where a voter listens now, and which versions it knows."""
        with self._event() as now:
            return self._changed(self.core.update_voter(entry.key, now), entry)

    def remove_voter(self, voter: VoterKey) -> ChangeRefused | Turn[None]:
        with self._event() as now:
            return self._changed(self.core.remove_voter(voter, now), None)

    def _changed(
        self, found: ChangeRefused | Effects, entry: VoterEntry | None
    ) -> ChangeRefused | Turn[None]:
        if isinstance(found, ChangeRefused):
            return found
        self._new_entry = entry
        try:
            return self._turn(None, found)
        finally:
            self._new_entry = None

    # ── the follower ────────────────────────────────────────────────────────────────────────────
    def next_fetch(self) -> QuorumFetch | SnapshotFetch | None:
        """Return the fetch to send now: see :meth:`RaftReplica.next_fetch`."""
        with self._event():
            return self.core.next_fetch()

    def on_fetch_response(
        self, request: QuorumFetch, response: QuorumFetchResponse, records: Bytes = b""
    ) -> Turn[None]:
        """``records`` follow ``request``; where they end, and which voters they name, is read from them.

        Raises CorruptBatch, with nothing changed, if they are damaged or do not continue the log.
        """
        with self._event() as now:
            named: list[tuple[Offset, KRaftVoters]] = []
            if response.error is NONE and records:
                end_offset, named = self._read_fetched(request, response, records)
                voters = tuple(VoterRecord(offset, record.voters) for offset, record in named)
                response = response._replace(end_offset=end_offset, voters=voters)
            elif response.error is NONE:
                response = response._replace(end_offset=request.fetch_offset, voters=())
            effects = self.core.on_fetch_response(request, response, now)
            turn = self._turn(None, effects, records)
            if any(isinstance(effect, AppendFetched) for effect in effects):
                for offset, record in named:
                    self._entries.add(offset, record.entries)
            return turn

    def on_leader_refused(self, request: QuorumFetch | SnapshotFetch) -> Turn[None]:
        with self._event() as now:
            return self._turn(None, self.core.on_leader_refused(request, now))

    def _read_fetched(
        self, request: QuorumFetch, response: QuorumFetchResponse, records: Bytes
    ) -> tuple[Offset, list[tuple[Offset, KRaftVoters]]]:
        offset, epoch = request.fetch_offset, request.last_fetched_epoch
        voters: list[tuple[Offset, KRaftVoters]] = []
        for position, header in batches(records):
            check_batch(records, position, header)
            if header.base_offset != offset or not epoch <= header.partition_leader_epoch <= response.epoch:
                raise CorruptBatch(
                    f"a batch of epoch {header.partition_leader_epoch} at offset {header.base_offset} does "
                    f"not continue the metadata log, which ends at offset {offset} in epoch {epoch}"
                )
            offset, epoch = header.next_offset, header.partition_leader_epoch
            if header.is_control:
                for at, record in read_control_batch(records, position, header):
                    if isinstance(record, KRaftVoters):
                        voters.append((at, record))
        return offset, voters

    def on_snapshot_response(
        self, request: SnapshotFetch, response: SnapshotFetchResponse, part: Bytes = b""
    ) -> Turn[None]:
        with self._event() as now:
            response = response._replace(end_position=response.position + len(part))
            return self._turn(None, self.core.on_snapshot_response(request, response, now), part)

    def on_snapshot_read(self, reading: SnapshotReading) -> Turn[None]:
        """``reading`` has run: the fetched snapshot replaces the log if it is in order and still wanted."""
        with self._event() as now:
            if reading is self.reading:
                self.reading = None
            content = reading.content
            snapshot = None if content is None else content.snapshot
            effects = self.core.on_snapshot_fetched(snapshot, now)
            turn = self._turn(None, effects)
            if content is not None and any(isinstance(effect, ReplaceLog) for effect in effects):
                self._entries.learn(content.entries)
            return turn

    # ── flushes and snapshots ───────────────────────────────────────────────────────────────────
    def flush_plan(self) -> FlushPlan:
        """Return a plan that makes the whole log durable: run it on any thread, then :meth:`on_flushed`."""
        self._check_running()
        return self._log.flush_plan()

    def on_flushed(self, plan: FlushPlan) -> Turn[None]:
        """If ``plan.run`` has raised, call :meth:`fail` instead."""
        with self._event() as now:
            self._log.mark_flushed(plan, wall_ms=self._runtime.clock.wall_ms())
            return self._turn(None, self.core.on_flushed(self._log.flushed_offset, now))

    def committed_plan(self) -> Callable[[], None] | None:
        """Return what writes down how far the log is committed and durable here, so that a loss is noticed;
        None if that is known. Blocks: on any thread, now and then."""
        committed = min(self.core.high_watermark, self.core.flushed_end)
        if committed <= self._committed_durable:
            return None
        self._committed_durable = committed
        return lambda: write_committed(self._disk, self.folder, committed)

    def read_committed(self, offset: Offset, max_bytes: int) -> LogSlice:
        """Return committed batches from ``offset`` on. Blocks: on any thread. Raises KafkaError."""
        found = self._log.read(offset, max_bytes, self.core.high_watermark)
        assert found is not None, "it may block"
        return found

    def begin_snapshot(self, end_offset: Offset, values: Iterable[bytes]) -> SnapshotMaking | None:
        """Begin a snapshot of the state after all records below ``end_offset``, whose own records have
        ``values``; None if these are not all committed, or one is known that is as new.

        Run it on any thread, then :meth:`on_snapshot_made`. Raises ValueError if ``end_offset`` is inside a
        batch: no fetch could continue there. KafkaError if the log cannot be read.
        """
        self._check_running()
        epoch = self._log.epochs.epoch_for_offset(end_offset - 1)
        voters = self.core.begin_snapshot(snapshot := SnapshotId(end_offset, epoch))
        if voters is None:
            return None
        last = self.read_committed(end_offset - 1, 1)
        if last.next_offset != end_offset:
            raise ValueError(
                f"a snapshot cannot end at offset {end_offset}: it is inside the batch that ends at "
                f"{last.next_offset}"
            )
        last_timestamp = max(header.max_timestamp for _, header in batches(last.records))
        entries = [self._entries.of(voter, end_offset) for voter in voters.voters]
        return SnapshotMaking(
            self._disk,
            self.folder,
            snapshot,
            voters,
            entries,
            values,
            wall_ms=self._runtime.clock.wall_ms(),
            last_timestamp=last_timestamp,
        )

    def on_snapshot_made(self, made: SnapshotMaking) -> Turn[None]:
        """``made`` has run. The log begins at the snapshot before it from now on, so that who lags behind a
        little still gets records."""
        with self._event():
            self.core.on_snapshot(made.snapshot)
            if made.id <= self._origins[-1]:  # a newer one has come from the leader meanwhile
                return self._turn(None, [])
            self._origins.append(made.id)
            return self._turn(None, self.core.trim_to(self._origins[-2]))

    # ── effects ─────────────────────────────────────────────────────────────────────────────────
    def fail(self, error: Exception) -> QuorumStopped:
        """End the replica: the disk has failed, in work that was offloaded. Every event raises what this
        returns from now on; its messages are to be sent once."""
        messages: tuple[Send, ...] = ()
        if self.failure is None:
            self.failure = error
            effects = self.core.resign(self._now())
            messages = tuple(effect for effect in effects if isinstance(effect, Send))
        return QuorumStopped(self.folder, self.failure, messages)

    @contextlib.contextmanager
    def _event(self) -> Generator[Moment]:
        """An event; a failure of the disk or a broken invariant ends the replica."""
        self._check_running()
        check(self._unstored is None, "an election is durable before the next event", self._unstored)
        check(not self._is_cut, "a truncation is durable before the next event", self.folder)
        try:
            yield self._now()
        except (OSError, LogFenced, InvariantBroken) as error:
            raise self.fail(error) from error

    def _check_running(self) -> None:
        if self.failure is not None:
            raise QuorumStopped(self.folder, self.failure) from self.failure

    def _turn(self, response: T, effects: Effects, content: Bytes = b"") -> Turn[T]:
        messages: list[Send] = []
        files: list[str] = []
        for effect in effects:
            self._execute(effect, content, messages, files)
        return Turn(
            response,
            tuple(messages),
            self._store if self._is_cut or self._unstored is not None else None,
            any(isinstance(effect, PublishLeader) for effect in effects),
            any(isinstance(effect, PublishHighWatermark) for effect in effects),
            tuple(files),
        )

    def _store(self) -> None:
        if self._is_cut:  # or a power failure could leave removed records below those of the new leader
            make_durable(self._disk, self._log.segments.active.log_path)
            self._is_cut = False
        if self._unstored is not None:
            write_election(self._disk, self.folder, self._unstored)
            self._unstored = None

    def _execute(self, effect: Effect, content: Bytes, messages: list[Send], removable: list[str]) -> None:
        wall_ms = self._runtime.clock.wall_ms()
        match effect:
            case StoreElection(election):
                self._unstored = election
            case Send():
                messages.append(effect)
            case AppendLeaderChange():
                self._append(self._first_of_epoch(effect, wall_ms))
            case AppendVoters(epoch, voters):
                record = self._voters(voters, self.log_end_offset)
                self._append(control_batch([record], self.log_end_offset, epoch, wall_ms))
            case AppendFetched(end_offset):
                self._append(content)
                check(self.log_end_offset == end_offset, "all that was fetched is appended", end_offset)
            case TruncateLog(offset):
                self._entries.truncate_to(offset)
                removable += self._log.truncate_to(offset, wall_ms=wall_ms).removable
                self._is_cut = True
            case TrimLog(origin):
                self._trim(origin, wall_ms, removable)
            case WriteSnapshotPart(snapshot, position):
                self._write_part(snapshot, position, content)
            case ReadSnapshot(snapshot):
                self.reading = SnapshotReading(self._disk, self.folder, snapshot)
            case ReplaceLog(snapshot):
                end = snapshot.end_offset
                self._entries.truncate_to(0)
                removable += self._log.truncate_fully_and_start_at(end, wall_ms=wall_ms).removable
                self._forget_snapshots(snapshot, removable)
            case PublishHighWatermark() | PublishLeader():
                pass
            case _:
                assert_never(effect)

    def _append(self, batch: Bytes) -> None:
        self._log.append_as_follower(batch, wall_ms=self._runtime.clock.wall_ms())

    def _first_of_epoch(self, effect: AppendLeaderChange, wall_ms: int) -> bytes:
        """Return the batch that begins the epoch; at the beginning of the log it names the voters, too, for
        those who have not been told them."""
        voters = self.core.voters.latest
        change = LeaderChange(
            self.core.key.node_id,
            tuple(voter.node_id for voter in voters.voters),
            tuple(voter.node_id for voter in effect.granting),
        )
        records: list[ControlRecord] = [change]
        if not self.log_end_offset:
            records += [KRaftVersion(), self._voters(voters, len(records) + 1)]
        return control_batch(records, self.log_end_offset, effect.epoch, wall_ms)

    def _voters(self, voters: VoterSet, offset: Offset) -> KRaftVoters:
        """Return the record of ``voters`` that is appended at ``offset``."""
        new = self._new_entry
        named = (new if new and new.key == voter else self.entry_of(voter) for voter in voters.voters)
        record = KRaftVoters(tuple(named))
        self._entries.add(offset, record.entries)
        return record

    def _trim(self, origin: SnapshotId, wall_ms: int, removable: list[str]) -> None:
        self._log.advance_log_start_offset(origin.end_offset, self.core.high_watermark)
        self._entries.trim_to(origin.end_offset)
        while deleted := self._log.delete_old_segments(self.core.high_watermark, wall_ms):
            removable += deleted
        self._forget_snapshots(origin, removable)

    def _forget_snapshots(self, origin: SnapshotId, removable: list[str]) -> None:
        """Keep those from ``origin`` on."""
        removable += [
            snapshot_path(self.folder, one) for one in self._origins if one < origin and one.end_offset
        ]
        self._origins = [one for one in self._origins if one >= origin] or [origin]

    def _write_part(self, snapshot: SnapshotId, position: int, part: Bytes) -> None:
        file = self._disk.open(fetched_path(self.folder, snapshot), create=True)
        try:
            if not position:
                file.truncate(0)
            check(file.size() == position, "the parts of a snapshot follow one another", position)
            file.append([part])
        finally:
            file.close()
