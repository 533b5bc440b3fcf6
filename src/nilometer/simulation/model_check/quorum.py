"""The model of a metadata quorum: voters that crash, lose what they have not flushed, and change.

The replicas are the product's :class:`~nilometer.raft.replica.RaftReplica`. A request may take any time or
never arrive; a new one takes the place of an older one of its kind on the same way. Its response is processed
at once or never, or, as far as the bound of late messages goes, at any time later. A crashed process is back
at once, with or without the unflushed end of its log; one whose folder was wiped is back with a new id and
nothing else. Time does not pass: any time-out may end at any moment. So EndQuorumEpoch, which shortens one,
is not sent, and a pre-vote is asked for only while its sender counts the responses.

A snapshot is the records below its end, in two parts, each marked with who made it: two replicas' snapshots
of the same end may differ in their bytes. A log begins where its snapshot ends.

A step checks what it does, and the state after it has the violation; :func:`quorum_violation` returns it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from operator import methodcaller
from typing import Any, NamedTuple

import msgspec

from nilometer.identifiers import BrokerId, LeaderEpoch, Offset
from nilometer.raft.exchange import (
    AppendFetched,
    AppendLeaderChange,
    AppendVoters,
    BeginEpochRequest,
    ChangeRefused,
    Effects,
    Election,
    EndEpochRequest,
    EpochResponse,
    Moment,
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
from nilometer.raft.replica import Electing, Following, RaftReplica
from nilometer.raft.snapshots import BEGINNING, Snapshot, SnapshotId
from nilometer.raft.voters import VoterHistory, VoterKey, VoterRecord, VoterSet
from nilometer.simulation.model_check.explorer import Step, Violation
from nilometer.simulation.model_check.processes import ModelLog, Record
from nilometer.simulation.model_check.tables import Table, clone, fingerprint
from nilometer.wire.errors import NONE

ONE_LEADER = "an epoch has one leader"
LOGS_MATCH = "logs with a record of the same offset and epoch are equal up to it"
LEADER_COMPLETE = "a leader has every record that was committed before its election"
NEVER_CHANGED = "what is committed never changes"
ONE_CHANGE = "at most one change of the voters is not committed"
VOTE_KEPT = "a voter has one vote in an epoch"
ONLY_COMMITTED = "a snapshot has only what is committed"
ONE_SNAPSHOT = "the parts of a fetched snapshot are of one snapshot"
OVER_LESS = "a snapshot replaces only a log of which less is committed"
READS_ALL = "a read that is confirmed sees all that was committed when it began"
VOTERS_OF_LOG = "the voters are those that the log, or its snapshot, names last"

NOW = Moment(0)
TIMING = Timing(election_ms=0, fetch_ms=0, resend_ms=0)
LEADER_CHANGE = 0
USUAL = ("deliver", "discover", "flush", "fetch")
VOTERS = 1_000
"""A record with more than this is a set of voters: the sum of 2 to the power of each node's id."""
SNAPSHOT_BYTES = 2


class QuorumBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the model, and how much may happen in it."""

    voters: int = 3
    observers: int = 0
    epochs: int = 2
    begins_led: bool = False
    """Whether the first state has a leader, in epoch 1."""
    timeouts: int = 2
    values: int = 1
    crashes: int = 0
    wipes: int = 0
    changes: int = 0
    """Of the voters."""
    snapshots: int = 0
    reads: int = 0
    is_behind: bool = False
    """Whether the last voter has no record in the first state, and the others have only their snapshots."""
    late: int = 0
    """Responses, and fetches, that arrive later than at once."""
    losses: int = 0
    """Responses that are lost. A request that never arrives is not counted."""
    discoveries: int = 1
    """How often an observer asks for the leader."""
    in_order: bool = True
    """Whether voters that do not differ time out for the first time in the order of their ids. Each history
    has one of these as its mirror image, so that a search of all states loses nothing."""


class Sent(NamedTuple):
    """A message in flight; a response has the request to which it belongs."""

    source: int
    target: int
    request: Any
    response: Any = None
    content: tuple[Any, ...] = ()
    """The records, or the parts of a snapshot."""

    @property
    def way(self) -> Hashable:
        """Two messages with the same one replace each other; responses never do."""
        if self.response is not None:
            return self
        request: object = self.request
        pre_vote = isinstance(request, VoteRequest) and request.pre_vote
        return self.source, self.target, type(request), pre_vote


class _Used(NamedTuple):
    timeouts: int = 0
    values: int = 0
    crashes: int = 0
    wipes: int = 0
    changes: int = 0
    snapshots: int = 0
    reads: int = 0
    late: int = 0
    losses: int = 0
    discoveries: int = 0
    timed_out: int = 0
    """The voters below this one have timed out, as far as they are interchangeable."""


class QuorumState(NamedTuple):
    nodes: tuple[int, ...]
    """The numbers of the processes in the table."""
    messages: frozenset[Sent]
    leaders: tuple[tuple[LeaderEpoch, int], ...] = ()
    votes: frozenset[tuple[VoterKey, LeaderEpoch, VoterKey]] = frozenset()
    committed: tuple[Record, ...] = ()
    """The longest prefix of a log that any replica has said to be committed."""
    used: _Used = _Used()
    violation: Violation | None = None


class SnapshotFile(NamedTuple):
    maker: int
    id: SnapshotId
    records: tuple[Record, ...]
    voters: VoterSet

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.id, self.voters, SNAPSHOT_BYTES)


class QuorumProcess:
    """One process: the real replica, a model log and the stored election. It executes effects in order."""

    __slots__ = ("file", "first", "log", "parts", "read", "replica", "sent", "shown", "stored", "wrong")

    def __init__(self, key: VoterKey, first: VoterSet) -> None:
        self.first = first
        self.log = ModelLog()
        self.stored = Election(LeaderEpoch(0))
        self.sent: list[Sent] = []
        self.file: SnapshotFile | None = None
        self.parts: tuple[SnapshotFile, ...] = ()
        """The snapshot that is fetched, one byte after another."""
        self.read: tuple[int, Offset, Offset] | None = None
        """A read that is not confirmed: its round, its high watermark, and what all had committed then."""
        self.shown = 0
        """The high watermark after the last event."""
        self.wrong = ""
        """What an effect has violated."""
        self.replica = self._started(key)

    def _started(self, key: VoterKey) -> RaftReplica:
        file, begin = self.file, self.log.log_start_offset
        first = self.first if file is None else file.voters
        return RaftReplica(
            self.log,
            key,
            VoterHistory(first, _voter_records(begin, self.log.records)),
            self.stored,
            NOW,
            origin=BEGINNING if file is None else file.id,
            snapshot=None if file is None else file.snapshot,
            timing=TIMING,
        )

    @property
    def node(self) -> int:
        return int(self.replica.key.node_id)

    @property
    def committed(self) -> tuple[Record, ...]:
        return tuple(self.whole[: self.replica.high_watermark])

    @property
    def whole(self) -> list[Record]:
        """The records of the snapshot and of the log."""
        return self.log.records if self.file is None else [*self.file.records, *self.log.records]

    def voters_of(self, records: Iterable[Record]) -> VoterSet:
        """Return those that the records name last."""
        found = _voter_records(0, records)
        return found[-1].voters if found else self.first

    def execute(self, effects: Effects, fetched: tuple[Any, ...] = ()) -> None:
        for effect in effects:
            if isinstance(effect, StoreElection):
                self.stored = effect.election
            elif isinstance(effect, Send):
                self.sent.append(Sent(self.node, int(effect.to.node_id), effect.request))
            elif isinstance(effect, AppendLeaderChange):
                self.log.append(effect.epoch, LEADER_CHANGE)
            elif isinstance(effect, AppendVoters):
                self.log.append(effect.epoch, _encoded(effect.voters))
            elif isinstance(effect, AppendFetched):
                for epoch, value in fetched:
                    self.log.append(epoch, value)
            elif isinstance(effect, TruncateLog):
                self.log.truncate_to(effect.offset)
            elif isinstance(effect, TrimLog):
                end = effect.origin.end_offset
                self.log = self._log_from(self.log.records[end - self.log.log_start_offset :], end)
            elif isinstance(effect, WriteSnapshotPart):
                self.parts = self.parts[: effect.position] + fetched
            elif isinstance(effect, ReadSnapshot):
                self.execute(self.replica.on_snapshot_fetched(self.parts[-1].snapshot, NOW))
            elif isinstance(effect, ReplaceLog):
                self._replace_log(self.parts[-1])

    def _replace_log(self, file: SnapshotFile) -> None:
        if len(set(self.parts)) > 1:
            self.wrong = ONE_SNAPSHOT
        elif file.id.end_offset <= self.shown:
            self.wrong = OVER_LESS
        self.file = file
        self.log = self._log_from([], file.id.end_offset)

    def _log_from(self, records: list[Record], begin: Offset) -> ModelLog:
        log = ModelLog(records, begin)
        self.replica._log._log = log  # pyright: ignore[reportPrivateUsage]
        return log

    def make_snapshot(self, snapshot: SnapshotId) -> tuple[None, Effects] | None:
        voters = self.replica.begin_snapshot(snapshot)
        if voters is None:
            return None
        self.file = SnapshotFile(self.node, snapshot, tuple(self.whole[: snapshot.end_offset]), voters)
        self.replica.on_snapshot(self.file.snapshot)
        effects = self.replica.trim_to(snapshot)
        self.execute(effects)
        return None, effects

    def begin_read(self, committed: Offset) -> tuple[int | None, Effects]:
        number = self.replica.begin_read()
        if number is not None:
            self.read = number, self.replica.high_watermark, committed
        return number, []

    def append(self, value: int) -> None:
        self.log.append(self.replica.epoch, value)

    def crash(self, *, keeps_all: bool) -> None:
        if not keeps_all:
            self.log.truncate_to(self.replica.flushed_end)
        self.parts = ()
        self.replica = self._started(self.replica.key)

    def wipe(self) -> None:
        self.log, self.stored = ModelLog(), Election(LeaderEpoch(0))
        self.file, self.parts = None, ()
        key = self.replica.key
        self.replica = self._started(VoterKey(key.node_id, f"{key.directory_id}'"))

    def normalise(self) -> None:
        """Forget what makes no difference."""
        self.shown = self.replica.high_watermark
        confirmed = self.replica.confirmed_round()
        if self.read is not None and (confirmed is None or confirmed >= self.read[0]):
            _, high_watermark, committed = self.read
            if confirmed is not None and high_watermark < committed:
                self.wrong = READS_ALL
            self.read = None
        role = self.replica.role
        if isinstance(role, Following) and role.awaited is None:
            self.replica._fetches = 0  # pyright: ignore[reportPrivateUsage]
        if not isinstance(role, Following) or role.download is None:
            self.parts = ()


def _encoded(voters: VoterSet) -> int:
    return VOTERS + sum(2**voter.node_id for voter in voters.voters)


def _voter_records(begin: Offset, records: Iterable[Record]) -> tuple[VoterRecord, ...]:
    """Return the sets of voters among records; a model's voters have the first folder of their ids."""
    return tuple(
        VoterRecord(
            begin + index, VoterSet.of(*(_key(node) for node in range(9) if value - VOTERS & 1 << node))
        )
        for index, (_, value) in enumerate(records)
        if value > VOTERS
    )


def _key(node: int) -> VoterKey:
    return VoterKey(BrokerId(node), "a")


class _Reaction(NamedTuple):
    """What a process does at an event; computed once."""

    number: int
    """The process afterwards, in the table."""
    result: Any
    effects: bool
    sent: tuple[Sent, ...]


class QuorumWorld:
    """A model for :func:`~.explorer.explore`."""

    def __init__(self, bounds: QuorumBounds) -> None:
        self._bounds = bounds
        self._processes: Table[QuorumProcess] = Table()
        self._reactions: dict[tuple[int, Hashable], _Reaction] = {}
        self._nodes = range(bounds.voters + bounds.observers)

    def first_state(self) -> QuorumState:
        """Node 0 leads epoch 1 if the model begins with a leader; else no node has voted yet."""
        first = VoterSet.of(*map(_key, range(self._bounds.voters)))
        processes = (QuorumProcess(_key(node), first) for node in self._nodes)
        state = QuorumState(tuple(map(self._number, processes)), frozenset())
        if self._bounds.begins_led:
            state = self._after(state, 0, self._timed_out(state, 0))
            behind = self._bounds.voters - 1 if self._bounds.is_behind else None
            others = [node for node in self._nodes if node != behind]
            state = self._settled(state, USUAL, others)
            if behind is not None:
                for node in others:
                    process = self.process(state, node)
                    end = SnapshotId(Offset(len(process.whole)), process.log.latest_epoch)
                    state = self._after(state, node, self._made_snapshot(state, node, end))
                state = self._settled(state, ("deliver",), self._nodes)
        return state._replace(used=_Used())

    def _settled(self, state: QuorumState, names: Container[str], nodes: Container[int]) -> QuorumState:
        """Return the state after all steps without a fault that some nodes take."""
        while True:
            steps = [(step, after) for step, after in self.steps(state) if after != state]
            afters = [after for (name, node, _), after in steps if name in names and node in nodes]
            if not afters:
                return state
            state = afters[-1]  # the last: votes arrive before the leader tells of itself

    def steps(self, state: QuorumState) -> Iterator[tuple[Step, QuorumState]]:
        if state.violation is not None:
            return
        for node in self._nodes:
            yield from self._times(state, node)
            yield from self._discoveries(state, node)
            yield from self._flushes(state, node)
            yield from self._fetches(state, node)
            yield from self._decisions(state, node)
            yield from self._snapshots(state, node)
            yield from self._reads(state, node)
            yield from self._faults(state, node)
        for index, message in enumerate(sorted(state.messages, key=repr)):
            yield from self._deliveries(state, message, index)

    def process(self, state: QuorumState, node: int) -> QuorumProcess:
        """Return a process, not to be changed."""
        return self._processes.values[state.nodes[node]]

    # ── what a process does by itself ───────────────────────────────────────────────────────────
    def _times(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        used = state.used
        if used.timeouts >= self._bounds.timeouts or not self._has_turn(used, node):
            return
        reaction = self._timed_out(state, node)
        if reaction.effects:
            timed_out = max(used.timed_out, node + 1) if self._is_interchangeable(node) else used.timed_out
            after = state._replace(used=used._replace(timeouts=used.timeouts + 1, timed_out=timed_out))
            yield ("time out", node, 0), self._after(after, node, reaction)

    def _has_turn(self, used: _Used, node: int) -> bool:
        if not self._bounds.in_order or not self._is_interchangeable(node):
            return True
        return node <= max(used.timed_out, int(self._bounds.begins_led))

    def _is_interchangeable(self, node: int) -> bool:
        return int(self._bounds.begins_led) <= node < self._bounds.voters - self._bounds.is_behind

    def _timed_out(self, state: QuorumState, node: int) -> _Reaction:
        return self._react(state, node, ("time out",), lambda replica: replica.on_time(NOW))

    def _discoveries(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        """An observer, which no leader tells of itself, asks another node for the leader."""
        replica = self.process(state, node).replica
        used = state.used
        if replica.is_voter or isinstance(replica.role, Following):
            return
        if used.discoveries >= self._bounds.discoveries:
            return
        after = state._replace(used=used._replace(discoveries=used.discoveries + 1))
        for other in self._nodes:
            told = self.process(state, other).replica
            response = EpochResponse(NONE, told.epoch, told.leader)
            learn = methodcaller("on_epoch_response", response, NOW)
            reaction = self._react(state, node, response, learn)
            if reaction.effects:
                yield ("discover", node, other), self._after(after, node, reaction)

    def _flushes(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        process = self.process(state, node)
        end = process.log.log_end_offset
        if process.replica.flushed_end < end:
            reaction = self._react(state, node, ("flush",), lambda replica: replica.on_flushed(end, NOW))
            yield ("flush", node, 0), self._after(state, node, reaction)

    def _decisions(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        process = self.process(state, node)
        if not isinstance(process.replica.role, Leading):
            return
        used = state.used
        if used.values < self._bounds.values:
            value = used.values + 1
            reaction = self._change(state, node, ("append", value), lambda one: one.append(value))
            after = state._replace(used=used._replace(values=value))
            yield ("append", node, value), self._after(after, node, reaction)
        if used.changes < self._bounds.changes:
            after = state._replace(used=used._replace(changes=used.changes + 1))
            for other, name in itertools.product(self._nodes, ("add_voter", "remove_voter")):
                decide = methodcaller(name, _key(other), NOW)
                reaction = self._react(state, node, (name, other), decide)
                if reaction.effects:
                    yield (name, node, other), self._after(after, node, reaction)

    def _snapshots(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        used, process = state.used, self.process(state, node)
        if used.snapshots >= self._bounds.snapshots:
            return
        after = state._replace(used=used._replace(snapshots=used.snapshots + 1))
        for end in sorted({process.replica.high_watermark, process.log.log_end_offset}):
            if end > process.log.log_start_offset:
                snapshot = SnapshotId(end, LeaderEpoch(process.whole[end - 1][0]))
                reaction = self._made_snapshot(state, node, snapshot)
                if reaction.effects:
                    yield ("snapshot", node, end), self._after(after, node, reaction)

    def _made_snapshot(self, state: QuorumState, node: int, snapshot: SnapshotId) -> _Reaction:
        make = methodcaller("make_snapshot", snapshot)
        return self._change(state, node, ("snapshot", snapshot), make)

    def _reads(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        used, committed = state.used, len(state.committed)
        if used.reads < self._bounds.reads:
            begin = methodcaller("begin_read", committed)
            reaction = self._change(state, node, ("read", committed), begin)
            if reaction.result is not None:
                after = state._replace(used=used._replace(reads=used.reads + 1))
                yield ("read", node, 0), self._after(after, node, reaction)

    def _faults(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        used, process = state.used, self.process(state, node)
        if used.crashes < self._bounds.crashes:
            after = state._replace(used=used._replace(crashes=used.crashes + 1))
            for keeps_all in (True, False):
                if keeps_all or process.replica.flushed_end < process.log.log_end_offset:
                    crash = methodcaller("crash", keeps_all=keeps_all)
                    reaction = self._change(state, node, ("crash", keeps_all), crash)
                    yield ("crash", node, keeps_all), self._after(after, node, reaction)
        if used.wipes < self._bounds.wipes:
            reaction = self._change(state, node, ("wipe",), QuorumProcess.wipe)
            after = state._replace(used=used._replace(wipes=used.wipes + 1))
            yield ("wipe", node, 0), self._after(after, node, reaction)

    # ── messages ────────────────────────────────────────────────────────────────────────────────
    def _fetches(self, state: QuorumState, node: int) -> Iterator[tuple[Step, QuorumState]]:
        reaction = self._react(state, node, ("fetch",), lambda replica: (replica.next_fetch(), []))
        fetch = reaction.result
        if fetch is not None and fetch.leader in self._nodes:
            asked = self._after(state, node, reaction)
            message = Sent(node, int(fetch.leader), fetch)
            yield from self._answered(asked, message, "fetch", 0)
            if isinstance(fetch, SnapshotFetch):
                return
            if state.used.late < self._bounds.late:
                late = asked.used._replace(late=asked.used.late + 1)
                sent = asked._replace(messages=asked.messages | {message}, used=late)
                yield ("send a fetch", node, 0), sent
            end = self.process(state, message.target).log.log_end_offset
            if end > fetch.fetch_offset + 1:
                yield from self._answered(asked, message, "fetch one record", 1, one_record=True)

    def _deliveries(
        self, state: QuorumState, message: Sent, index: int
    ) -> Iterator[tuple[Step, QuorumState]]:
        after = state._replace(messages=state.messages - {message})
        if message.response is not None:
            yield ("late response", message.target, index), self._told(after, message)
        else:
            yield from self._answered(after, message, "deliver", index)

    def _answered(
        self, state: QuorumState, message: Sent, name: str, index: int, *, one_record: bool = False
    ) -> Iterator[tuple[Step, QuorumState]]:
        """The request arrives; its response arrives too, is lost, or late."""
        node, request = message.target, message.request
        reaction = self._react(state, node, request, lambda replica: _answer(replica, request))
        response, content, votes = reaction.result, (), state.votes
        found: Violation | None = None
        process = self.process(state, node)
        if isinstance(request, VoteRequest) and response.granted and not request.pre_vote:
            votes |= {(process.replica.key, request.epoch, request.candidate)}
            found = _two_votes(votes)
        elif isinstance(request, QuorumFetch):
            if one_record and response.end_offset > request.fetch_offset + 1:
                response = response.cut_at(request.fetch_offset + 1)
            begin = max(0, request.fetch_offset - process.log.log_start_offset)
            content = tuple(process.log.records[begin : response.end_offset - process.log.log_start_offset])
        elif isinstance(request, SnapshotFetch) and response.error is NONE:
            response = response.cut_at(request.position + 1)
            content = (process.file,)
        arrived = self._after(state._replace(votes=votes), node, reaction, found)
        back = Sent(node, message.source, request, response, content)
        at = message.source if isinstance(request, QuorumFetch | SnapshotFetch) else node
        yield (name, at, index), self._told(arrived, back)
        if state.used.losses < self._bounds.losses:
            lost = arrived._replace(used=arrived.used._replace(losses=arrived.used.losses + 1))
            yield (f"{name}, and lose the response", at, index), lost
        if state.used.late < self._bounds.late:
            used = arrived.used._replace(late=arrived.used.late + 1)
            late = arrived._replace(messages=arrived.messages | {back}, used=used)
            yield (f"{name}, and keep the response", at, index), late

    def _told(self, state: QuorumState, message: Sent) -> QuorumState:
        """A response arrives."""
        request = message.request
        sender = request.voter if isinstance(request, VoteRequest) else _key(message.source)
        event = (sender, request, message.response, message.content)
        reaction = self._react(
            state, message.target, event, lambda replica: _hear(replica, sender, message), message.content
        )
        return self._after(state, message.target, reaction)

    # ── states ──────────────────────────────────────────────────────────────────────────────────
    def _react(
        self,
        state: QuorumState,
        node: int,
        event: Hashable,
        act: Callable[[RaftReplica], tuple[Any, Effects] | ChangeRefused | Effects],
        content: tuple[Any, ...] = (),
    ) -> _Reaction:
        """Return what a replica does at an event, and execute its effects."""

        def change(process: QuorumProcess) -> tuple[Any, Effects]:
            done = act(process.replica)
            result, effects = (None, []) if isinstance(done, ChangeRefused) else _pair(done)
            process.execute(effects, content)
            return result, effects

        return self._change(state, node, event, change)

    def _change(
        self,
        state: QuorumState,
        node: int,
        event: Hashable,
        change: Callable[[QuorumProcess], tuple[Any, Effects] | None],
    ) -> _Reaction:
        number = state.nodes[node]
        known = self._reactions.get((number, event))
        if known is None:
            process: QuorumProcess = clone(self._processes.values[number])
            reaction = change(process)
            result, effects = (None, False) if reaction is None else (reaction[0], bool(reaction[1]))
            sent, process.sent = tuple(process.sent), []
            known = _Reaction(self._number(process), result, effects, sent)
            self._reactions[number, event] = known
        return known

    def _number(self, process: QuorumProcess) -> int:
        process.normalise()
        return self._processes.number_of(process, fingerprint(process))

    def _after(
        self, state: QuorumState, node: int, reaction: _Reaction, found: Violation | None = None
    ) -> QuorumState:
        """Return the state in which a process has changed and its messages are in flight."""
        process = self._processes.values[reaction.number]
        if process.replica.epoch > self._bounds.epochs:
            return state  # beyond the bound
        nodes = (*state.nodes[:node], reaction.number, *state.nodes[node + 1 :])
        after = state._replace(nodes=nodes)
        messages = frozenset(
            one for one in _on_the_way(state.messages, reaction.sent) if self._counts(after, one)
        )
        return self._judged(after._replace(messages=messages), process, state.violation or found)

    def _counts(self, state: QuorumState, message: Sent) -> bool:
        """Whether the message makes a difference: see this module's text."""
        request = message.request
        if isinstance(request, EndEpochRequest):
            return False
        if not isinstance(request, VoteRequest) or not request.pre_vote:
            return True
        replica = self.process(state, message.source).replica
        asks = isinstance(replica.role, Electing) and replica.role.pre_vote
        return asks and replica.epoch == request.epoch

    def _judged(self, state: QuorumState, process: QuorumProcess, found: Violation | None) -> QuorumState:
        replica, leaders, committed = process.replica, state.leaders, state.committed
        whole, mine = process.whole, process.committed
        shorter = min(len(mine), len(committed))
        if mine[:shorter] != committed[:shorter] or len(mine) < replica.high_watermark:
            found = found or Violation(NEVER_CHANGED, f"{committed}, and {mine} at node {process.node}")
        longer = mine if len(mine) > len(committed) else committed
        found = found or _wrong_at(process, longer)
        if isinstance(replica.role, Leading):
            term = (replica.epoch, process.node)
            if term not in leaders:
                if any(epoch == replica.epoch for epoch, _ in leaders):
                    found = found or Violation(ONE_LEADER, f"{leaders}, then {term}")
                if tuple(whole[: len(committed)]) != committed:
                    found = found or Violation(LEADER_COMPLETE, f"{committed}, {whole}")
                leaders = tuple(sorted((*leaders, term)))
            changes = [one for _, one in whole[replica.high_watermark :] if one > VOTERS]
            if len(changes) > 1:
                found = found or Violation(ONE_CHANGE, f"node {process.node}: {whole}")
        if found is None:
            found = next(
                filter(None, (self._unequal(process, state.nodes[node]) for node in self._nodes)), None
            )
        return state._replace(leaders=leaders, committed=longer, violation=found)

    def _unequal(self, process: QuorumProcess, number: int) -> Violation | None:
        mine, others = process.whole, self._processes.values[number].whole
        if mine is others:
            return None
        for offset in range(min(len(mine), len(others)) - 1, -1, -1):
            if mine[offset][0] == others[offset][0]:
                if mine[: offset + 1] != others[: offset + 1]:
                    return Violation(LOGS_MATCH, f"{mine} at node {process.node}, elsewhere {others}")
                return None
        return None


def _pair(done: tuple[Any, Effects] | Effects) -> tuple[Any, Effects]:
    return done if isinstance(done, tuple) else (None, done)


def _wrong_at(process: QuorumProcess, committed: tuple[Record, ...]) -> Violation | None:
    found, file, voters = process.wrong, process.file, process.replica.voters.latest
    if file is not None:
        if file.records != committed[: file.id.end_offset]:
            found = ONLY_COMMITTED
        elif file.voters != process.voters_of(file.records) or voters != process.voters_of(process.whole):
            found = found or VOTERS_OF_LOG
    return Violation(found, f"node {process.node}: {file}, {process.log.records}") if found else None


def _answer(replica: RaftReplica, request: Any) -> tuple[Any, Effects]:
    if isinstance(request, VoteRequest):
        return replica.on_vote_request(request, NOW)
    if isinstance(request, BeginEpochRequest):
        return replica.on_begin_epoch(request, NOW)
    if isinstance(request, SnapshotFetch):
        return replica.on_snapshot_fetch(request, NOW)
    return replica.on_fetch(request, NOW)


def _hear(replica: RaftReplica, sender: VoterKey, message: Sent) -> Effects:
    response = message.response
    if isinstance(response, VoteResponse):
        return replica.on_vote_response(sender, message.request, response, NOW)
    if isinstance(response, QuorumFetchResponse):
        return replica.on_fetch_response(message.request, response, NOW)
    if isinstance(response, SnapshotFetchResponse):
        return replica.on_snapshot_response(message.request, response, NOW)
    return replica.on_epoch_response(response, NOW)


def _on_the_way(known: frozenset[Sent], sent: Iterable[Sent]) -> frozenset[Sent]:
    """Return the messages in flight after some were sent."""
    new = {message.way: message for message in sent}
    return frozenset(new.values()).union(one for one in known if one.way not in new)


def _two_votes(votes: Iterable[tuple[VoterKey, LeaderEpoch, VoterKey]]) -> Violation | None:
    seen: dict[tuple[VoterKey, LeaderEpoch], VoterKey] = {}
    for voter, epoch, candidate in votes:
        if seen.setdefault((voter, epoch), candidate) != candidate:
            return Violation(VOTE_KEPT, f"{voter} in epoch {epoch}: {candidate} and {seen[voter, epoch]}")
    return None


def quorum_violation(world: QuorumWorld, state: QuorumState) -> Violation | None:
    """Return what the step into ``state`` has violated."""
    return state.violation
