"""A group shard with a clock, a log and members that speak short.

What the shard writes goes through Kafka's bytes into ``log``; ``fail_over`` makes a new shard from nothing
but that. Member ids are counted: the first that is given out for client ``a`` is ``a-1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from nilometer.cluster.image import ClusterImage
from nilometer.coordinators import Producer, Token, TransactionalRecord, TransactionEnd
from nilometer.groups.records import (
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    decode_record,
    encode_record,
)
from nilometer.groups.requests import (
    DescribedGroup,
    DescribeGroups,
    DescribeGroupsResult,
    GroupRequest,
    GroupResult,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinGroupProtocol,
    JoinGroupResult,
    LeaveGroup,
    LeaveGroupMember,
    LeaveGroupResult,
    ListedGroup,
    ListGroups,
    ListGroupsResult,
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitResult,
    OffsetCommitTopic,
    OffsetFetch,
    OffsetFetchResult,
    OffsetFetchTopicResult,
    SyncGroup,
    SyncGroupAssignment,
    SyncGroupResult,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.shard import GroupShard
from nilometer.groups.turn import AssignmentNeeded, Computation, Effects, MatchesNeeded, RebalanceNote
from nilometer.steps import at_once
from nilometer.wire.errors import ErrorCode
from nilometer.wire.value_bytes import Subscription, encode_subscription

SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 3_000
WALL_MS = 1_700_000_000_000
"""What the wall clock says when the monotonic one says 0."""

COMPUTED = (AssignmentNeeded, MatchesNeeded)

AnyResult = TypeVar("AnyResult", bound=GroupResult)


def protocols(*names: str, topics: Iterable[str] = ("t",)) -> tuple[JoinGroupProtocol, ...]:
    metadata = encode_subscription(Subscription(tuple(topics)))
    return tuple(JoinGroupProtocol(name, metadata) for name in names)


RANGE = protocols("range")


def counted_ids() -> Callable[[str], str]:
    count = 0

    def new_member_id(prefix: str) -> str:
        nonlocal count
        count += 1
        return f"{prefix}-{count}"

    return new_member_id


def _whole(reply: OffsetFetchResult) -> OffsetFetchResult:
    """Return the reply with all its parts made."""
    topics = (
        OffsetFetchTopicResult(topic.name, tuple(topic.partitions), topic.topic_id) for topic in reply.topics
    )
    return OffsetFetchResult(reply.group_id, reply.error_code, tuple(topics))


@dataclass
class GroupWorld:
    config: GroupConfig = field(default_factory=GroupConfig)
    image: ClusterImage = field(default_factory=ClusterImage)
    now_ms: int = 0
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list[tuple[bytes, bytes | None]])
    log_of_transactions: dict[int, Producer | TransactionEnd] = field(
        default_factory=dict[int, "Producer | TransactionEnd"]
    )
    """By position in ``log``: whose transaction a record is written in; or a marker, with nothing else."""
    replies: dict[Token, GroupResult] = field(default_factory=dict[Token, GroupResult])
    written: list[CoordinatorRecord] = field(default_factory=list[CoordinatorRecord])
    """By the last call."""
    needed: list[Computation] = field(default_factory=list[Computation])
    notes: list[RebalanceNote] = field(default_factory=list[RebalanceNote])
    """What is to be computed outside of the shard."""

    def __post_init__(self) -> None:
        self._new_member_id = counted_ids()
        self._tokens = 0
        self._forgotten: set[Token] = set()
        self.load()

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    # -- the shard ---------------------------------------------------------------------------------------

    def load(self) -> None:
        """A coordinator that knows nothing but the log. A request that waited for the former one waits no
        more."""
        self._forgotten.update(self.unanswered())
        self.shard = GroupShard(self.config, self._new_member_id, self.image)
        for position, (key, value) in enumerate(self.log):
            transactional = self.log_of_transactions.get(position)
            if isinstance(transactional, TransactionEnd):
                self.shard.replay_end(transactional)
                continue
            record = decode_record(key, value)
            assert record is not None
            if transactional is None:
                self.shard.replay(record)
            else:
                self.shard.replay_transactional(TransactionalRecord(transactional.producer_id, record))
        self._take(at_once(self.shard.on_loaded(self.now_ms, self.wall_ms)))

    fail_over = load

    def _take(self, effects: Effects) -> Effects:
        self.written = list(effects.records)
        for record in effects.records:
            key, value = encode_record(record)
            assert decode_record(key, value) == record
            if effects.producer is not None:
                self.log_of_transactions[len(self.log)] = effects.producer
            self.log.append((key, value))
        self.needed += [action for action in effects.actions if isinstance(action, COMPUTED)]
        self.notes += [action for action in effects.actions if isinstance(action, RebalanceNote)]
        for token, reply in effects.results:
            assert token not in self.replies, f"{token} is answered twice"
            self.replies[token] = _whole(reply) if isinstance(reply, OffsetFetchResult) else reply
        return effects

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Its marker is written."""
        end = TransactionEnd(producer_id, committed)
        self.log_of_transactions[len(self.log)] = end
        self.log.append((b"", None))
        self.shard.replay_end(end)

    def send(self, request: GroupRequest) -> Token:
        self._tokens += 1
        token = Token(self._tokens)
        self._take(self.shard.handle(token, request, self.now_ms, self.wall_ms))
        return token

    def ask(self, request: GroupRequest, reply_type: type[AnyResult]) -> AnyResult:
        """Of what is answered at once."""
        return self.answer(self.send(request), reply_type)

    def listed(self, request: ListGroups) -> list[ListedGroup]:
        steps = self.ask(request, ListGroupsResult).groups
        assert steps is not None
        return at_once(steps)

    def answer(self, token: Token, reply_type: type[AnyResult]) -> AnyResult:
        reply = self.replies[token]
        assert isinstance(reply, reply_type)
        return reply

    def is_answered(self, token: Token) -> bool:
        return token in self.replies

    def forget(self, token: Token) -> None:
        self._forgotten.add(token)
        self.shard.forget(token)

    def unanswered(self) -> set[Token]:
        sent = {Token(number) for number in range(1, self._tokens + 1)}
        return sent - self._forgotten - set(self.replies)

    def pass_time(self, ms: int) -> None:
        """Every timer on the way goes off at its own time. What is computed outside is done meanwhile."""
        while self.needed:
            self.compute()
        end_ms = self.now_ms + ms
        while (deadline_ms := self.shard.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.on_time()
        self.now_ms = end_ms

    def on_time(self) -> None:
        """Call the shard once for the timers that are due."""
        self._take(self.shard.on_time(self.now_ms, self.wall_ms))

    def compute(self) -> None:
        """Compute the first thing that is needed."""
        needed = self.needed.pop(0)
        self._take(self.shard.on_computed(needed, needed.compute(), self.now_ms, self.wall_ms))

    def see_image(self, image: ClusterImage) -> None:
        self.image = image
        self._take(self.shard.on_image(image, self.now_ms, self.wall_ms))

    def check_held_bytes(self) -> None:
        """The sum that the shard keeps is what its groups say."""
        assert self.shard.metadata_bytes() == sum(one.metadata_bytes() for one in self.shard.groups())

    def written_generation(self, group: str = "g") -> int:
        """Return the generation that a coordinator finds in the log; 0: it finds no such group."""
        for key, value in reversed(self.log):
            record = decode_record(key, value) if key else None
            if record is not None and record.key == GroupMetadataKey(group):
                return record.value.generation if isinstance(record.value, GroupMetadataValue) else 0
        return 0

    # -- members -----------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        client: str = "a",
        instance: str | None = None,
        offers: tuple[JoinGroupProtocol, ...] = RANGE,
        group: str = "g",
        protocol_type: str = "consumer",
        version: int = 3,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        reason: str = "",
    ) -> Token:
        return self.send(
            JoinGroup(
                group,
                member_id,
                protocol_type,
                offers,
                session_ms,
                rebalance_ms,
                instance,
                reason,
                client,
                f"/{client}.host",
                requires_known_member_id=version >= 4,
                supports_skipping_assignment=version >= 9,
            )
        )

    def joined(self, token: Token) -> JoinGroupResult:
        return self.answer(token, JoinGroupResult)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        group: str = "g",
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Token:
        given = tuple(SyncGroupAssignment(*each) for each in (assignments or {}).items())
        return self.send(
            SyncGroup(group, generation, member_id, instance, protocol_type, protocol_name, given)
        )

    def synced(self, token: Token) -> SyncGroupResult:
        return self.answer(token, SyncGroupResult)

    def heartbeat(
        self, member_id: str, generation: int, *, instance: str | None = None, group: str = "g"
    ) -> ErrorCode:
        return self.ask(Heartbeat(group, generation, member_id, instance), HeartbeatResult).error_code

    def leave(self, *leavers: tuple[str, str | None] | str, group: str = "g") -> list[ErrorCode]:
        members = tuple(
            LeaveGroupMember(each) if isinstance(each, str) else LeaveGroupMember(*each) for each in leavers
        )
        reply = self.ask(LeaveGroup(group, members), LeaveGroupResult)
        if reply.error_code is not ErrorCode.none:
            return [reply.error_code]
        return [member.error_code for member in reply.members]

    def commit(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = "g",
        topic: str = "t",
        partition: int = 0,
        metadata: str | None = None,
        retention_ms: int = -1,
        knows_member_epochs: bool = True,
        producer: Producer | None = None,
    ) -> ErrorCode:
        reply = self.ask(
            OffsetCommit(
                group,
                (OffsetCommitTopic(topic, (OffsetCommitPartition(partition, offset, -1, metadata),)),),
                generation,
                member_id,
                instance,
                retention_ms,
                knows_member_epochs,
                producer,
            ),
            OffsetCommitResult,
        )
        return reply.topics[0].partitions[0].error_code

    def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        reply = self.ask(OffsetFetch(group), OffsetFetchResult)
        return {
            (topic.name, partition.partition_index): partition.committed_offset
            for topic in reply.topics
            for partition in topic.partitions
        }

    def describe(self, group: str = "g") -> DescribedGroup:
        return self.ask(DescribeGroups((group,)), DescribeGroupsResult).groups[0]

    def state(self, group: str = "g") -> str:
        return self.describe(group).group_state

    # -- short ways into a state ---------------------------------------------------------------------------

    def member(self, client: str = "a", **also: object) -> str:
        """The id of a member that has joined a group without members, at the end of its initial delay."""
        token = self.join(client=client, **also)  # type: ignore[arg-type]
        self.pass_time(DELAY_MS)
        return self.joined(token).member_id

    def stable(self, *clients: str, **also: object) -> list[str]:
        """The ids of members of a stable group in generation 1; the first is the leader, and each is assigned
        its own name."""
        tokens = [self.join(client=client, **also) for client in clients]  # type: ignore[arg-type]
        while not all(self.is_answered(token) for token in tokens):
            self.pass_time(DELAY_MS)
        ids = [self.joined(token).member_id for token in tokens]
        self.settle(ids, 1)
        return ids

    def settle(self, ids: list[str], generation: int) -> None:
        """Everyone asks for its assignment; the first, which must be the leader, last."""
        tokens = [self.sync(member_id, generation) for member_id in ids[1:]]
        tokens.append(self.sync(ids[0], generation, {each: each.encode() for each in ids}))
        for token in tokens:
            assert self.synced(token).error_code is ErrorCode.none, self.synced(token)
        assert self.state() == "Stable"


def group_record(world: GroupWorld) -> GroupMetadataValue:
    """Return the group metadata that the last call wrote; it must be the only record."""
    [record] = world.written
    assert record.key == GroupMetadataKey("g")
    assert isinstance(record.value, GroupMetadataValue)
    return record.value
