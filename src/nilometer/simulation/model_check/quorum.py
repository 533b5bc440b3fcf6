"""The model of a metadata quorum: voters that crash, lose what they have not flushed, and change.

The replicas are the product's :class:`~nilometer.raft.replica.RaftReplica`. A request may take any time or
never arrive; a new one takes the place of an older one of its kind on the same way. Its response is processed
at once or never, or, as far as the bound of late messages goes, at any time later. A crashed process is back
at once, with or without the unflushed end of its log; one whose folder was wiped is back with a new id and
nothing else. Time does not pass: any time-out may end at any moment. So EndQuorumEpoch, which shortens one,
is not sent, and a pre-vote is asked for only while its sender counts the responses.

A step checks what it does, and the state after it has the violation; :func:`quorum_violation` returns it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
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
    Send,
    StoreElection,
    Timing,
    TruncateLog,
    VoteRequest,
    VoteResponse,
)
from nilometer.raft.leading import Leading
from nilometer.raft.replica import Electing, Following, RaftReplica
from nilometer.raft.voters import VoterHistory, VoterKey, VoterRecord, VoterSet
from nilometer.simulation.model_check.explorer import Violation
from nilometer.simulation.model_check.process import ModelLog, Record
from nilometer.simulation.model_check.snapshots import clone, fingerprint
from nilometer.simulation.model_check.tables import Table
from nilometer.simulation.model_check.world import Step
from nilometer.wire.errors import NONE

ONE_LEADER = "an epoch has one leader"
LOGS_MATCH = "logs with a record of the same offset and epoch are equal up to it"
LEADER_COMPLETE = "a leader has every record that was committed before its election"
NEVER_CHANGED = "what is committed never changes"
ONE_CHANGE = "at most one change of the voters is not committed"
VOTE_KEPT = "a voter has one vote in an epoch"

NOW = Moment(0)
TIMING = Timing(election_ms=0, fetch_ms=0, resend_ms=0)
LEADER_CHANGE = 0
USUAL = ("deliver", "discover", "flush", "fetch")
VOTERS = 1_000
"""A record with more than this is a set of voters: the sum of 2 to the power of each node's id."""


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
    late: int = 0
    """Responses that arrive later than at once."""
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
    records: tuple[Record, ...] = ()

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


class QuorumProcess:
    """One process: the real replica, a model log and the stored election. It executes effects in order."""

    __slots__ = ("first", "log", "replica", "sent", "stored")

    def __init__(self, key: VoterKey, first: VoterSet) -> None:
        self.first = first
        self.log = ModelLog()
        self.stored = Election(LeaderEpoch(0))
        self.sent: list[Sent] = []
        self.replica = self._started(key)

    def _started(self, key: VoterKey) -> RaftReplica:
        history = VoterHistory(self.first, _voter_records(0, self.log.records))
        return RaftReplica(self.log, key, history, self.stored, NOW, timing=TIMING)

    @property
    def node(self) -> int:
        return int(self.replica.key.node_id)

    @property
    def committed(self) -> tuple[Record, ...]:
        return tuple(self.log.records[: self.replica.high_watermark])

    def execute(self, effects: Effects, fetched: Iterable[Record] = ()) -> None:
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

    def append(self, value: int) -> None:
        self.log.append(self.replica.epoch, value)

    def crash(self, *, keeps_all: bool) -> None:
        if not keeps_all:
            self.log.truncate_to(self.replica.flushed_end)
        self.replica = self._started(self.replica.key)

    def wipe(self) -> None:
        self.log, self.stored = ModelLog(), Election(LeaderEpoch(0))
        key = self.replica.key
        self.replica = self._started(VoterKey(key.node_id, f"{key.directory_id}'"))

    def normalise(self) -> None:
        """Forget what makes no difference."""
        role = self.replica.role
        if isinstance(role, Following) and role.awaited is None:
            self.replica._fetches = 0  # pyright: ignore[reportPrivateUsage]


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
            while (after := self._as_usual(state)) is not None:
                state = after
        return state._replace(used=_Used())

    def _as_usual(self, state: QuorumState) -> QuorumState | None:
        """Return the state after one step without a fault; None if all is done."""
        afters = [after for step, after in self.steps(state) if step[0] in USUAL and after != state]
        return afters[-1] if afters else None  # the last: votes arrive before the leader tells of itself

    def steps(self, state: QuorumState) -> Iterator[tuple[Step, QuorumState]]:
        if state.violation is not None:
            return
        for node in self._nodes:
            yield from self._times(state, node)
            yield from self._discoveries(state, node)
            yield from self._flushes(state, node)
            yield from self._fetches(state, node)
            yield from self._decisions(state, node)
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
        return int(self._bounds.begins_led) <= node < self._bounds.voters

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
        response, records, votes = reaction.result, (), state.votes
        found: Violation | None = None
        process = self.process(state, node)
        if isinstance(request, VoteRequest) and response.granted and not request.pre_vote:
            votes |= {(process.replica.key, request.epoch, request.candidate)}
            found = _two_votes(votes)
        elif isinstance(request, QuorumFetch):
            if one_record and response.end_offset > request.fetch_offset + 1:
                response = response.cut_at(request.fetch_offset + 1)
            records = tuple(process.log.records[request.fetch_offset : response.end_offset])
        arrived = self._after(state._replace(votes=votes), node, reaction, found)
        back = Sent(node, message.source, request, response, records)
        at = message.source if isinstance(request, QuorumFetch) else node
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
        event = (sender, request, message.response, message.records)
        reaction = self._react(
            state, message.target, event, lambda replica: _hear(replica, sender, message), message.records
        )
        return self._after(state, message.target, reaction)

    # ── states ──────────────────────────────────────────────────────────────────────────────────
    def _react(
        self,
        state: QuorumState,
        node: int,
        event: Hashable,
        act: Callable[[RaftReplica], tuple[Any, Effects] | ChangeRefused | Effects],
        records: tuple[Record, ...] = (),
    ) -> _Reaction:
        """Return what a replica does at an event, and execute its effects."""

        def change(process: QuorumProcess) -> tuple[Any, Effects]:
            done = act(process.replica)
            result, effects = (None, []) if isinstance(done, ChangeRefused) else _pair(done)
            process.execute(effects, records)
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
        mine = process.committed
        shorter = min(len(mine), len(committed))
        if mine[:shorter] != committed[:shorter]:
            found = found or Violation(NEVER_CHANGED, f"{committed}, and {mine} at node {process.node}")
        if isinstance(replica.role, Leading):
            term = (replica.epoch, process.node)
            if term not in leaders:
                if any(epoch == replica.epoch for epoch, _ in leaders):
                    found = found or Violation(ONE_LEADER, f"{leaders}, then {term}")
                if tuple(process.log.records[: len(committed)]) != committed:
                    found = found or Violation(LEADER_COMPLETE, f"{committed}, {process.log.records}")
                leaders = tuple(sorted((*leaders, term)))
            changes = [one for _, one in process.log.records[replica.high_watermark :] if one > VOTERS]
            if len(changes) > 1:
                found = found or Violation(ONE_CHANGE, f"node {process.node}: {process.log.records}")
        longer = mine if len(mine) > len(committed) else committed
        if found is None:
            found = next(
                filter(None, (self._unequal(process, state.nodes[node]) for node in self._nodes)), None
            )
        return state._replace(leaders=leaders, committed=longer, violation=found)

    def _unequal(self, process: QuorumProcess, number: int) -> Violation | None:
        mine, others = process.log.records, self._processes.values[number].log.records
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


def _answer(replica: RaftReplica, request: Any) -> tuple[Any, Effects]:
    if isinstance(request, VoteRequest):
        return replica.on_vote_request(request, NOW)
    if isinstance(request, BeginEpochRequest):
        return replica.on_begin_epoch(request, NOW)
    return replica.on_fetch(request, NOW)


def _hear(replica: RaftReplica, sender: VoterKey, message: Sent) -> Effects:
    response = message.response
    if isinstance(response, VoteResponse):
        return replica.on_vote_response(sender, message.request, response, NOW)
    if isinstance(response, QuorumFetchResponse):
        return replica.on_fetch_response(message.request, response, NOW)
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
