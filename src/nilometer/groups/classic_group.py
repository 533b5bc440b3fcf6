"""A group of the classic protocol: its members, its generation, its state, and why it rebalanced last.

A group knows which states may follow which (SPEC C-4); what requests and time-outs do to it is in
``classic_groups``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final

import msgspec

from nilometer.coordinators import Token
from nilometer.groups.records import CoordinatorRecord, GroupMetadataKey, GroupMetadataValue, MemberMetadata
from nilometer.groups.requests import (
    DescribedGroup,
    DescribedGroupMember,
    JoinGroup,
    JoinGroupMember,
    JoinGroupProtocol,
    LastRebalance,
    ListedGroup,
    OffsetCommit,
    OffsetFetch,
    metadata_bytes,
)
from nilometer.groups.turn import SINCE_COMMIT, RetentionStart
from nilometer.wire.errors import ErrorCode, MalformedMessage
from nilometer.wire.value_bytes import PROTOCOL_TYPE, decode_topics


class ClassicGroupState(Enum):
    """The state, with its name in responses to clients."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREVIOUS: Final[dict[ClassicGroupState, frozenset[ClassicGroupState]]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.PREPARING_REBALANCE: frozenset(
        {ClassicGroupState.EMPTY, ClassicGroupState.COMPLETING_REBALANCE, ClassicGroupState.STABLE}
    ),
    ClassicGroupState.COMPLETING_REBALANCE: frozenset({ClassicGroupState.PREPARING_REBALANCE}),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.COMPLETING_REBALANCE}),
    ClassicGroupState.DEAD: frozenset(ClassicGroupState),
}


NO_ASSIGNMENT = b""
SUBSCRIBED_TOPICS_MAX: Final = 10_000
"""If the different subscriptions of a group have more names, each topic counts as one of them."""
_VERSION_BYTES: Final = 2
_BEGINNING: Final = 64


def _to_none(topic: str) -> bool:
    return False


def _to_all(topic: str) -> bool:
    return True


class ClassicMember(msgspec.Struct):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    """The protocols that the member supports, in its order of preference."""
    assignment: bytes = NO_ASSIGNMENT
    is_new: bool = False
    """Whether the member's first rebalance is not complete: it may not know its id to send heartbeats."""
    awaiting_join: Token | None = None
    awaiting_sync: Token | None = None

    @classmethod
    def joining(cls, request: JoinGroup, member_id: str) -> ClassicMember:
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocol_type,
            request.protocols,
            is_new=True,
        )

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def is_excused(self) -> bool:
        """Whether the member waits for a result, so that it need not send heartbeats."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    @property
    def protocol_names(self) -> frozenset[str]:
        return frozenset(protocol.name for protocol in self.protocols)

    def metadata_bytes(self) -> int:
        """Return about how much memory the member takes."""
        names = (self.member_id, self.client_id, self.group_instance_id, self.protocol_type)
        return metadata_bytes(self.protocols, *names) + len(self.assignment)

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not support the protocol."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def vote(self, candidates: frozenset[str]) -> str | None:
        """Return the candidate that the member prefers; None if it supports none of them."""
        return next((protocol.name for protocol in self.protocols if protocol.name in candidates), None)

    def to_record(self, protocol_name: str | None) -> MemberMetadata:
        return MemberMetadata(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol_name),
            self.assignment,
        )

    @classmethod
    def from_record(cls, record: MemberMetadata, protocol_type: str, protocol: str | None) -> ClassicMember:
        return cls(
            record.member_id,
            record.group_instance_id,
            record.client_id,
            record.client_host,
            record.session_timeout if record.rebalance_timeout == -1 else record.rebalance_timeout,
            record.session_timeout,
            protocol_type,
            () if protocol is None else (JoinGroupProtocol(protocol, record.subscription),),
            record.assignment,
        )

    def to_result(self, protocol_name: str | None) -> JoinGroupMember:
        return JoinGroupMember(self.member_id, self.group_instance_id, self.metadata(protocol_name))


REASON_MAX: Final = 1_000
"""So many characters are kept of the reason of the last rebalance: clients choose their ids and reasons, and
a group may stay for days after its members have left."""
NAME_MAX: Final = 256
"""So many characters are kept of each name in the last rebalance, and of the protocol type of a group without
members."""


class RebalanceCause(msgspec.Struct, frozen=True):
    """The reason of a rebalance, and the member that caused it, as it was then; it may have left since."""

    reason: str
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""

    def __str__(self) -> str:
        """Return the cause as the log has it."""
        if not self.member_id:
            return self.reason
        instance = f" (instance {self.group_instance_id})" if self.group_instance_id is not None else ""
        client = f", client {self.client_id!r} at {self.client_host}" if self.client_host else ""
        return f"{self.reason}: member {self.member_id}{instance}{client}"

    @classmethod
    def by(cls, member: ClassicMember, reason: str) -> RebalanceCause:
        return cls(reason, member.member_id, member.group_instance_id, member.client_id, member.client_host)

    def cut(self) -> RebalanceCause:
        """Return the cause as a group remembers it, and the log has it: within bounds."""
        instance_id = self.group_instance_id
        return RebalanceCause(
            self.reason[:REASON_MAX],
            self.member_id[:NAME_MAX],
            None if instance_id is None else instance_id[:NAME_MAX],
            self.client_id[:NAME_MAX],
            self.client_host,
        )

    def is_same_member(self, last: LastRebalance) -> bool:
        """Whether the same member caused the last rebalance; of the cut cause, as ``last`` is.

        A static member is the same under all its member ids. A dynamic member that joins with a new id each
        time is recognised by client id and host; several such clients on one host count as one.
        """
        if self.group_instance_id is not None or last.group_instance_id is not None:
            return self.group_instance_id == last.group_instance_id
        if self.member_id == last.member_id:
            return True
        return bool(self.client_id) and (self.client_id, self.client_host) == (
            last.client_id,
            last.client_host,
        )


def last_rebalance(
    cause: RebalanceCause, previous: LastRebalance | None, wall_ms: int, generation: int
) -> LastRebalance:
    cause = cause.cut()
    repeats = previous is not None and cause.is_same_member(previous)
    return LastRebalance(
        cause.reason,
        cause.member_id,
        cause.group_instance_id,
        cause.client_id,
        cause.client_host,
        wall_ms,
        generation,
        previous.times_in_a_row + 1 if repeats and previous is not None else 1,
    )


_REBALANCING_OR_STABLE = (
    ClassicGroupState.PREPARING_REBALANCE,
    ClassicGroupState.COMPLETING_REBALANCE,
    ClassicGroupState.STABLE,
)


class BrokenGroup(Exception):
    """A bug of the coordinator: a change that is not possible for a group."""


class ClassicGroup:
    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.DEAD
        self.state_wall_ms: int | None = None
        """When the state was entered (ms since the epoch); None if not known."""
        self.generation = 0
        self.protocol_type: str | None = None
        """None: no member has ever joined; clients commit offsets without joining (a *simple* group)."""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: dict[str, None] = {}
        """The ids that were given to clients which have not joined with them."""
        self._pending_bytes = 0
        self.pending_sync: set[str] = set()
        self._protocol_counts: Counter[str] = Counter()
        """How many members support each protocol."""
        self._members_bytes = 0
        """The sum of what the members hold."""
        self.new_member_added = False
        """Whether a member was added since the initial rebalance delay began: the delay is extended."""
        self.initial_delay_remaining_ms = 0
        self.last_rebalance: LastRebalance | None = None

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def group_id(self) -> str:
        return self._group_id

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def is_replaceable(self) -> bool:
        return self.is_empty

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members are consumers, rather than for example Connect workers."""
        return self.protocol_type == PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def awaiting_join_count(self) -> int:
        return sum(member.awaiting_join is not None for member in self.members.values())

    @property
    def has_all_members_joined(self) -> bool:
        return not self.pending_members and all(
            member.awaiting_join is not None for member in self.members.values()
        )

    @property
    def can_prepare_rebalance(self) -> bool:
        return self.state in VALID_PREVIOUS[ClassicGroupState.PREPARING_REBALANCE]

    def is_leader(self, member_id: str) -> bool:
        return self.leader == member_id

    def joined_members(self) -> tuple[JoinGroupMember, ...]:
        """Return all members, as the leader's JoinGroup response lists them."""
        return tuple(member.to_result(self.protocol_name) for member in self.members.values())

    # -- transitions -----------------------------------------------------------------------------------

    def become(self, state: ClassicGroupState, wall_ms: int) -> None:
        if self.state not in VALID_PREVIOUS[state]:
            raise BrokenGroup(f"group {self.group_id}: {state.value} cannot follow {self.state.value}")
        self.previous_state = self.state
        self.state = state
        self.state_wall_ms = wall_ms
        if self.is_empty and self.protocol_type is not None:
            self.protocol_type = self.protocol_type[:NAME_MAX]

    def become_next_generation(self, wall_ms: int) -> None:
        """End the join phase: begin a new generation with the current members, and choose its protocol."""
        self.generation += 1
        self.pending_sync.clear()
        self.protocol_name = self.choose_protocol() if self.members else None
        self.become(
            ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY, wall_ms
        )

    def note_cause(self, cause: RebalanceCause, wall_ms: int) -> None:
        self.last_rebalance = last_rebalance(cause, self.last_rebalance, wall_ms, self.generation)

    # -- members ---------------------------------------------------------------------------------------

    def add(self, member: ClassicMember) -> None:
        instance_id = member.group_instance_id
        if member.member_id in self.members or instance_id in self.static_members:
            raise BrokenGroup(
                f"group {self.group_id}: {member.member_id} ({instance_id}) is a member already"
            )
        if not self.members:
            self.protocol_type = member.protocol_type
        if instance_id is not None:
            self.static_members[instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._members_bytes += member.metadata_bytes()
        self.discard_pending(member.member_id)
        self._protocol_counts.update(member.protocol_names)

    def add_pending(self, member_id: str) -> None:
        self.pending_members[member_id] = None
        self._pending_bytes += metadata_bytes((), member_id)

    def discard_pending(self, member_id: str) -> None:
        if member_id in self.pending_members:
            del self.pending_members[member_id]
            self._pending_bytes -= metadata_bytes((), member_id)

    def update(self, member: ClassicMember, request: JoinGroup) -> None:
        """Update a member's protocols and timeouts from its new JoinGroup."""
        self._forget_protocols(member)
        self._members_bytes -= member.metadata_bytes()
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        self._protocol_counts.update(member.protocol_names)
        self._members_bytes += member.metadata_bytes()

    def remove(self, member_id: str) -> ClassicMember | None:
        """Remove a member, or a pending one; returns the member, None if it was pending or unknown.

        Its waiting requests must have got their results before.
        """
        self.discard_pending(member_id)
        self.pending_sync.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._forget_protocols(member)
            self._members_bytes -= member.metadata_bytes()
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.is_leader(member_id):
            self.leader = next(iter(self.members), None)
        return member

    def replace_static_member(
        self, old_member_id: str, new_member_id: str, client_id: str, client_host: str
    ) -> ClassicMember:
        """Give a static member a new member id and client; it keeps its place in the group and has no waiting
        request.

        Returns the member.
        """
        member = self.members[old_member_id]
        if member.group_instance_id is None:
            raise BrokenGroup(f"group {self.group_id}: {old_member_id} is not a static member")
        self._members_bytes -= member.metadata_bytes()
        member.member_id = new_member_id
        member.client_id, member.client_host = client_id, client_host
        self._members_bytes += member.metadata_bytes()
        member.awaiting_join = member.awaiting_sync = None
        self.members = {each.member_id: each for each in self.members.values()}
        self.static_members[member.group_instance_id] = new_member_id
        if self.is_leader(old_member_id):
            self.leader = new_member_id
        if old_member_id in self.pending_sync:
            self.pending_sync.remove(old_member_id)
            self.pending_sync.add(new_member_id)
        return member

    def assign(self, member: ClassicMember, assignment: bytes) -> None:
        self._members_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def elect_joined_leader(self) -> bool:
        """Make a member the leader that has joined in this phase, unless the leader has; false if none
        has."""
        if self.leader is None:
            return False
        if self.members[self.leader].awaiting_join is None:
            joined = (each for each in self.members.values() if each.awaiting_join is not None)
            successor = next(joined, None)
            if successor is None:
                return False
            self.leader = successor.member_id
        return True

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            known = self.static_members.get(group_instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    # -- protocols -------------------------------------------------------------------------------------

    def _forget_protocols(self, member: ClassicMember) -> None:
        """Count the member's protocols no longer, and keep no names that only it supported."""
        for name in member.protocol_names:
            self._protocol_counts[name] -= 1
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]

    def common_protocols(self) -> frozenset[str]:
        everyone = len(self.members)
        return frozenset(name for name, count in self._protocol_counts.items() if count == everyone)

    def supports_protocols_of(self, request: JoinGroup) -> bool:
        """Whether all members, with the one that joins, would still have a protocol in common."""
        if self.is_empty:
            return bool(request.protocol_type and request.protocols)
        if request.protocol_type != self.protocol_type:
            return False
        if not self.members:  # all have left before the first rebalance was over
            return bool(request.protocols)
        common = self.common_protocols()
        return any(protocol.name in common for protocol in request.protocols)

    def choose_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all support; of several, the one with
        the vote of the member that joined first."""
        candidates = self.common_protocols()
        votes: Counter[str] = Counter()
        for member in self.members.values():
            vote = member.vote(candidates)
            if vote is None:
                raise BrokenGroup(f"group {self.group_id}: no protocol that all members support")
            votes[vote] += 1
        return max(votes, key=votes.__getitem__)

    def subscription(self) -> Callable[[str], bool]:
        """Return what says of a topic whether a member is subscribed to it, or may be."""
        if not self.uses_consumer_protocol:
            return _to_none
        topics = self._subscribed_topics()
        return _to_all if topics is None else topics.__contains__

    def _subscribed_topics(self) -> set[str] | None:
        """Return the topics that the members subscribe to; None: they are not known, or too many. They are
        not kept: they take ten times the memory of the members' bytes."""
        if self.members and self.protocol_name is None:
            return None
        found: set[str] = set()
        known: dict[bytes, bytes] = {}  # the encoded topics that were decoded, by how they begin
        left = SUBSCRIBED_TOPICS_MAX
        try:
            for member in self.members.values():
                metadata = member.metadata(self.protocol_name)
                encoded = known.get(metadata[:_BEGINNING])
                if encoded is None or not metadata.startswith(encoded, _VERSION_BYTES):
                    names, encoded = decode_topics(metadata, left)
                    left -= len(names)
                    found.update(names)
                    known[metadata[:_BEGINNING]] = encoded
        except MalformedMessage:
            return None
        return found

    # -- requests about offsets ------------------------------------------------------------------------

    def check_offset_commit(self, request: OffsetCommit) -> ErrorCode:
        generation = request.generation_id_or_member_epoch
        if generation < 0 and (self.is_empty or (request.is_transactional and not request.names_member)):
            return ErrorCode.none
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            return ErrorCode.unknown_member_id
        error = self.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if generation != self.generation:
            return ErrorCode.illegal_generation
        # The member knows this generation, but not yet its assignment.
        if self.state is ClassicGroupState.COMPLETING_REBALANCE and not request.is_transactional:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def check_offset_fetch(self, request: OffsetFetch) -> ErrorCode:
        return ErrorCode.none

    def check_offset_delete(self) -> ErrorCode:
        """Reject deletions from a group with members, unless they are consumers: then the topics they
        subscribe to are known, and are checked one by one."""
        if self.state in _REBALANCING_OR_STABLE and not self.uses_consumer_protocol:
            return ErrorCode.non_empty_group
        return ErrorCode.none

    def check_delete(self) -> ErrorCode:
        return ErrorCode.non_empty_group if self.state in _REBALANCING_OR_STABLE else ErrorCode.none

    def retention_start(self) -> RetentionStart | None:
        if self.protocol_type is None:
            return SINCE_COMMIT
        if self.is_empty:
            return RetentionStart(self.state_wall_ms)
        is_stable = self.state is ClassicGroupState.STABLE
        return SINCE_COMMIT if self.uses_consumer_protocol and is_stable else None

    # -- records and descriptions ------------------------------------------------------------------------

    def to_record(self) -> CoordinatorRecord:
        is_empty = not self.members
        value = GroupMetadataValue(
            self.protocol_type or "",
            self.generation,
            None if is_empty else self.protocol_name,
            None if is_empty else self.leader,
            -1 if self.state_wall_ms is None else self.state_wall_ms,
            tuple(member.to_record(self.protocol_name) for member in self.members.values()),
        )
        return CoordinatorRecord(GroupMetadataKey(self.group_id), value)

    @classmethod
    def from_record(cls, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        group = cls(group_id)
        for record in value.members:
            group.add(ClassicMember.from_record(record, value.protocol_type, value.protocol))
        group.state = ClassicGroupState.STABLE if group.members else ClassicGroupState.EMPTY
        group.state_wall_ms = None if value.current_state_timestamp == -1 else value.current_state_timestamp
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol_name = value.protocol
        if value.leader in group.members:
            group.leader = value.leader
        return group

    @classmethod
    def stable(
        cls, group_id: str, generation: int, members: Sequence[ClassicMember], wall_ms: int
    ) -> ClassicGroup:
        """Make a stable group of ``members``, which have their assignments already; at least one."""
        group = cls(group_id)
        for member in members:
            group.add(member)
        group.state, group.state_wall_ms = ClassicGroupState.STABLE, wall_ms
        group.generation = generation
        group.protocol_name = group.choose_protocol()
        return group

    def tombstones(self) -> list[CoordinatorRecord]:
        return [CoordinatorRecord(GroupMetadataKey(self.group_id), None)]

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type or "", self.state.value, "classic")

    def record_bytes(self, assignments: Iterable[bytes]) -> int:
        """Return the size of the group's record with these assignments, without ids."""
        metadata = sum(len(member.metadata(self.protocol_name)) for member in self.members.values())
        return metadata + sum(map(len, assignments))

    @property
    def members_bytes(self) -> int:
        """About how much memory the members take."""
        return self._members_bytes

    def metadata_bytes(self) -> int:
        return self._members_bytes + self._pending_bytes

    def described(self) -> DescribedGroup:
        """Describe the group; only a stable one with its protocol and the members' metadata."""
        protocol = self.protocol_name if self.state is ClassicGroupState.STABLE else None
        return DescribedGroup(
            self.group_id,
            group_state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=protocol or "",
            members=tuple(
                DescribedGroupMember(
                    member.member_id,
                    member.group_instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(protocol),
                    member.assignment,
                )
                for member in self.members.values()
            ),
            last_rebalance=self.last_rebalance,
        )
