"""Changes of the voters while the quorum runs: the leader's part, and what a node asks for itself.

The leader makes one change after another, and answers when it is committed. Before it adds a voter it asks
the node at the given address who it is: a voter that cannot be reached, or whose folder is another one, would
only make majorities harder to find.

A node asks for itself that the log has the address at which it listens (UpdateRaftVoter), and, with
``controller.quorum.auto.join.enable``, that it is a voter (KIP-853).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from nilometer.coordination.quorum.peers import Identify, Peers, PeerUnavailable
from nilometer.identifiers import LeaderEpoch, Offset
from nilometer.raft.control_records import VoterEntry
from nilometer.raft.durable import DurableReplica, Turn
from nilometer.raft.exchange import ChangeRefused
from nilometer.raft.leading import Leading
from nilometer.raft.replica import Following
from nilometer.raft.voter_changes import (
    DONE,
    NOT_LEADER,
    PENDING,
    AddVoter,
    ChangeResult,
    RemoveVoter,
    UpdateVoter,
    VoterChange,
    at_listener,
    result_of,
    why_invalid,
)
from nilometer.raft.voters import NO_VOTERS, VoterKey
from nilometer.runtime import Clock
from nilometer.wire.errors import ErrorCode

REMOVAL_WAIT_MS = 10_000
"""How long a response waits until a removal is committed: RemoveRaftVoter has no time-out of its own."""
CATCH_UP_MS = 2_000
"""How long a node that is to be added may take to fetch what was committed when it was last looked at."""
JOIN_TIMEOUT_MS = 10_000

Change = Callable[[], ChangeRefused | Turn[None]]


class Node(Protocol):
    """A node of the quorum, for :class:`VoterChanges`."""

    @property
    def replica(self) -> DurableReplica: ...
    @property
    def leads(self) -> bool: ...
    @property
    def epoch(self) -> LeaderEpoch: ...
    async def change_voters(self, change: Change) -> ChangeRefused | Offset: ...
    async def wait_change(self, timeout_ms: int | None = None) -> None: ...


class VoterChanges:
    """The leader's: one change at a time."""

    def __init__(self, node: Node, peers: Peers, clock: Clock) -> None:
        self._node = node
        self._peers = peers
        self._clock = clock
        self._is_pending = False

    async def make(self, change: VoterChange) -> ChangeResult:
        """Make a change, if this node leads, and return what became of it."""
        node = self._node
        if not node.leads:
            return NOT_LEADER
        if self._is_pending:
            return PENDING
        core = node.replica.core
        own = node.replica.entry_of(core.key).endpoints
        listener = own[0].listener if own else None
        invalid = why_invalid(change, listener)
        if invalid is not None:
            return invalid
        self._is_pending = True
        try:
            if isinstance(change, AddVoter):
                return await self._add(change, at_listener(change.voter, listener))
            if isinstance(change, RemoveVoter):
                remove = partial(node.replica.remove_voter, change.voter)
                until_ms = self._clock.monotonic_ms() + REMOVAL_WAIT_MS
                return await self._made(change, remove, until_ms)
            return await self._update(change, at_listener(change.voter, listener))
        finally:
            self._is_pending = False

    async def _add(self, change: AddVoter, entry: VoterEntry) -> ChangeResult:
        node, now_ms = self._node, self._clock.monotonic_ms()
        until_ms = now_ms + change.timeout_ms
        refused = node.replica.core.why_not_added(entry.key)
        if refused not in (None, ChangeRefused.NOT_CAUGHT_UP):
            return result_of(refused, entry.key, node.replica.core)
        try:
            async with asyncio.timeout(change.timeout_ms / 1000):
                found = await self._who_listens(entry)
        except (PeerUnavailable, TimeoutError) as error:
            why = str(error) or f"it has not said who it is within {change.timeout_ms} ms"
            return ChangeResult(
                ErrorCode.request_timed_out, f"New voter {entry.key} is not ready to receive requests: {why}"
            )
        if found != entry.key:
            return ChangeResult(
                ErrorCode.invalid_request, f"New voter {entry.key}: at its endpoint listens {found}"
            )
        caught_up_ms = min(until_ms, now_ms + CATCH_UP_MS)
        while node.replica.core.why_not_added(entry.key) is ChangeRefused.NOT_CAUGHT_UP:
            left_ms = caught_up_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                break
            await node.wait_change(left_ms)
        return await self._made(change, partial(node.replica.add_voter, entry), until_ms)

    async def _who_listens(self, entry: VoterEntry) -> VoterKey:
        """Return who listens at the first endpoint; this node does not connect to itself."""
        replica = self._node.replica
        own = replica.entry_of(replica.core.key)
        return own.key if entry.endpoints[0] in own.endpoints else await self._peers.ask(entry, Identify())

    async def _update(self, change: UpdateVoter, entry: VoterEntry) -> ChangeResult:
        """Does not wait until it is committed, as in Kafka."""
        epoch = self._node.epoch
        if change.epoch != epoch:
            is_old = change.epoch < epoch
            return ChangeResult(ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)
        refused = await self._node.change_voters(partial(self._node.replica.update_voter, entry))
        if isinstance(refused, ChangeRefused):
            return result_of(refused, entry.key, self._node.replica.core)
        return DONE

    async def _made(self, change: AddVoter | RemoveVoter, event: Change, until_ms: int) -> ChangeResult:
        node = self._node
        epoch = node.epoch
        offset = await node.change_voters(event)
        if isinstance(offset, ChangeRefused):
            key = change.voter if isinstance(change, RemoveVoter) else change.voter.key
            return result_of(offset, key, node.replica.core)
        if isinstance(change, AddVoter) and not change.waits:
            return DONE
        while True:
            # A leader that has removed itself resigns as soon as that is committed.
            if node.epoch == epoch and node.replica.high_watermark > offset:
                return DONE
            left_ms = until_ms - self._clock.monotonic_ms()
            if left_ms <= 0 or not node.leads or node.epoch != epoch:
                why = "in time" if left_ms <= 0 else f"while {node.replica.core.key} led the quorum"
                return ChangeResult(
                    ErrorCode.request_timed_out,
                    f"The change is in the log at offset {offset}, but was not committed {why}: describe the "
                    "quorum to see what became of it",
                )
            await node.wait_change(left_ms)


def wanted_change(replica: DurableReplica, own: VoterEntry, *, joins: bool) -> VoterChange | None:
    """Return the change that a node asks for itself now; None if there is none, or the log may have it.

    ``own``: where it listens. ``joins``: whether it becomes a voter by itself. A voter of the same id with
    another directory is removed first: its folder was this node's, and is lost.
    """
    core = replica.core
    voters, role = core.voters.latest, core.role
    is_up_to_date = isinstance(role, Leading) or (isinstance(role, Following) and role.has_fetched)
    is_committed = core.voters.latest_offset < core.high_watermark
    if not is_up_to_date or not is_committed or voters == NO_VOTERS:
        return None
    if own.key in voters:
        if replica.entry_of(own.key).endpoints == own.endpoints:
            return None
        return UpdateVoter(own, core.epoch)
    if not joins:
        return None
    former = voters.key_of(own.key.node_id)
    return AddVoter(own, JOIN_TIMEOUT_MS, waits=False) if former is None else RemoveVoter(former)
