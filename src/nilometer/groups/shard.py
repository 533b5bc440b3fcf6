"""One partition of ``__consumer_offsets``: the groups kept there, and the requests to their coordinator.

A shard does no I/O: its *shell*, the broker's code around it (``broker.coordinator_shell``), passes requests
to it and carries out the *effects* that it returns, which are records to append, and the results of
requests. A *token* identifies a request until its result. An *image* is the cluster's metadata after some
entry of the metadata log.

A shard is loaded (``replay`` for every record of the partition, then ``on_loaded``), processes requests, new
images and timers, and is dropped when the broker no longer leads the partition. If an append fails, the shell
drops the shard and loads another one, since its state has changes that are not in the log.

Invariants:
- the shard's state already contains the records that it returns;
- every token gets exactly one result, unless :meth:`GroupShard.forget` was called for it first;
- the same calls with the same arguments give the same effects.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, assert_never

from nilometer.cluster.image import ClusterImage
from nilometer.coordinators import Token, TransactionalRecord, TransactionEnd
from nilometer.groups.classic_group import ClassicGroup
from nilometer.groups.classic_groups import ClassicGroups, ClassicTimer
from nilometer.groups.consumer.consumer_groups import ConsumerGroups
from nilometer.groups.consumer.group import ConsumerGroup
from nilometer.groups.offsets import OffsetExpiry, Offsets, OffsetsTimer
from nilometer.groups.records import (
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupKey,
    StreamsGroupKey,
)
from nilometer.groups.requests import (
    AlterShareGroupOffsets,
    ConsumerGroupDescribe,
    ConsumerGroupDescribeResult,
    ConsumerGroupHeartbeat,
    DeleteGroups,
    DeleteShareGroupOffsets,
    DescribeGroups,
    DescribeGroupsResult,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListedGroup,
    ListGroups,
    ListGroupsResult,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OfOneGroup,
    ShareGroupDescribe,
    ShareGroupDescribeResult,
    ShareGroupHeartbeat,
    ShareGroupPartitions,
    StreamsGroupDescribe,
    StreamsGroupDescribeResult,
    StreamsGroupHeartbeat,
    SyncGroup,
    refusal,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.share_group import ShareGroup
from nilometer.groups.share_groups import Deletion, ShareGroups, ShareTimer
from nilometer.groups.streams.group import StreamsGroup
from nilometer.groups.streams.streams_groups import StreamsGroups, StreamsTimer
from nilometer.groups.topics import Topics
from nilometer.groups.turn import (
    Computation,
    ConsumerGroupHandler,
    Effects,
    Group,
    ShardState,
    ShareStateResult,
    TimerKey,
    Turn,
    unlimited,
)
from nilometer.steps import listing
from nilometer.wire.errors import ErrorCode

RECORDS_PER_CALL_MAX = 1_000
"""A call writes one batch: after so many records the timers that are due wait for the next call."""
EFFORT_PER_CALL_MAX = 256
"""So many members of classic groups are taken out in one call, or fewer of other groups."""
EFFORT_OF_A_CONSUMER_GROUP = 32
"""A group of another kind looks at all its members when one of them has gone."""


class GroupShard:
    def __init__(
        self,
        config: GroupConfig,
        new_member_id: Callable[[str], str],
        image: ClusterImage,
        has_room: Callable[[int], bool] = unlimited,
    ) -> None:
        self._state = ShardState(config, new_member_id, image, Topics(image), has_room=has_room)
        self._classic = ClassicGroups(self._state)
        self._consumer: ConsumerGroupHandler = ConsumerGroups(self._state, self._classic)
        self._share = ShareGroups(self._state, self._classic)
        self._streams = StreamsGroups(self._state, self._classic)
        self._offsets = Offsets(self._state)
        self._expiry = OffsetExpiry(self._state, self._offsets, self._classic)
        self._waiting: set[Token] = set()

    # -- loading ---------------------------------------------------------------------------------------

    def replay(self, record: CoordinatorRecord) -> None:
        """Apply a record that is in the partition already, while loading."""
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self._offsets.replay(key, value)
        elif isinstance(key, GroupMetadataKey):
            assert value is None or isinstance(value, GroupMetadataValue)
            self._classic.replay(key, value)
        elif isinstance(key, ShareGroupKey):
            self._share.replay(record)
        elif isinstance(key, StreamsGroupKey):
            self._streams.replay(record)
        else:
            self._consumer.replay(record)

    def replay_transactional(self, transactional: TransactionalRecord[CoordinatorRecord]) -> None:
        """Apply a record that was written in a transaction, while loading: only offsets are."""
        record = transactional.record
        if isinstance(record.key, OffsetCommitKey) and isinstance(record.value, OffsetCommitValue):
            self._offsets.replay_pending(transactional.producer_id, record.key, record.value)

    def replay_end(self, end: TransactionEnd) -> None:
        """Apply the end of a producer's transaction: while loading, or when its marker was written."""
        self._offsets.replay_end(end.producer_id, committed=end.committed)

    def on_loaded(self, now_ms: int, wall_ms: int) -> Generator[int, None, Effects]:
        """Start the timers: the partition has been read to its end."""
        turn = Turn(now_ms, wall_ms)
        yield from self._classic.on_loaded(turn)
        yield from self._consumer.on_loaded(turn)
        yield from self._share.on_loaded(turn)
        yield from self._streams.on_loaded(turn)
        self._expiry.on_loaded(turn)
        for group_id in list(self._state.groups):
            self._state.count(group_id)
            yield 1
        return turn.effects(self._waiting)

    # -- requests --------------------------------------------------------------------------------------

    def handle(self, token: Token, request: GroupRequest, now_ms: int, wall_ms: int) -> Effects:
        """Process a request. The result of a JoinGroup or SyncGroup may come with a later call."""
        turn = Turn(now_ms, wall_ms)
        self._waiting.add(token)
        self._handle(turn, token, request)
        if isinstance(request, OfOneGroup):
            self._state.count(request.group_id)
        self._expiry.check_number(turn)
        return turn.effects(self._waiting)

    def _handle(self, turn: Turn, token: Token, request: GroupRequest) -> None:
        match request:
            case Heartbeat() | JoinGroup() | SyncGroup() | LeaveGroup():
                self._handle_member(turn, token, request)
            case OffsetCommit():
                self._commit(turn, token, request)
            case OffsetFetch():
                self._offsets.fetch(turn, token, request)
            case OffsetDelete():
                self._offsets.delete(turn, token, request)
            case ConsumerGroupHeartbeat():
                self._consumer.heartbeat(turn, token, request)
            case ConsumerGroupDescribe():
                described = tuple(self._consumer.describe(group_id) for group_id in request.group_ids)
                turn.resolve(token, ConsumerGroupDescribeResult(described))
            case ShareGroupHeartbeat():
                self._share.heartbeat(turn, token, request)
            case ShareGroupDescribe():
                described_shares = tuple(self._share.describe(group_id) for group_id in request.group_ids)
                turn.resolve(token, ShareGroupDescribeResult(described_shares))
            case ShareGroupPartitions() | AlterShareGroupOffsets() | DeleteShareGroupOffsets():
                self._share.offsets(turn, token, request)
            case StreamsGroupHeartbeat():
                self._streams.heartbeat(turn, token, request)
            case StreamsGroupDescribe():
                described_streams = tuple(self._streams.describe(group_id) for group_id in request.group_ids)
                turn.resolve(token, StreamsGroupDescribeResult(described_streams))
            case DescribeGroups():
                turn.resolve(
                    token,
                    DescribeGroupsResult(tuple(self._classic.describe(each) for each in request.groups)),
                )
            case ListGroups():
                turn.resolve(token, self._list(request))
            case DeleteGroups():
                self._delete(turn, token, request)
            case _:
                assert_never(request)

    def _handle_member(
        self, turn: Turn, token: Token, request: Heartbeat | JoinGroup | SyncGroup | LeaveGroup
    ) -> None:
        """Process a request of a classic member, whether its group is a classic or a consumer group; others
        have no such members."""
        group = self._state.groups.get(request.group_id)
        if isinstance(request, JoinGroup):
            if isinstance(group, ConsumerGroup) and not group.is_empty:
                self._consumer.classic_join(turn, token, request)
            else:
                self._classic.join(turn, token, request)
            return
        error = ErrorCode.none if request.group_id else ErrorCode.invalid_group_id
        if error is ErrorCode.none and not isinstance(group, ClassicGroup | ConsumerGroup):
            error = ErrorCode.unknown_member_id
        match request:
            case _ if error is not ErrorCode.none:
                turn.resolve(token, refusal(request, error))
            case Heartbeat() if isinstance(group, ClassicGroup):
                self._classic.heartbeat(turn, token, group, request)
            case SyncGroup() if isinstance(group, ClassicGroup):
                self._classic.sync(turn, token, group, request)
            case LeaveGroup() if isinstance(group, ClassicGroup):
                self._classic.leave(turn, token, group, request)
            case Heartbeat():
                self._consumer.classic_heartbeat(turn, token, request)
            case SyncGroup():
                self._consumer.classic_sync(turn, token, request)
            case LeaveGroup():
                self._consumer.classic_leave(turn, token, request)
            case _:
                assert_never(request)

    def _commit(self, turn: Turn, token: Token, request: OffsetCommit) -> None:
        self._expiry.before_commit(turn)
        if self._offsets.commit(turn, token, request) is not ErrorCode.none:
            return
        self._expiry.note_commit([topic.name for topic in request.topics])
        group = self._state.groups.get(request.group_id)
        if isinstance(group, ClassicGroup) and not request.is_transactional:
            self._classic.on_offsets_committed(turn, group, request)

    def states(self) -> Iterator[str]:
        """Yield the state of each group, under Kafka's name."""
        return (group.listed().group_state for group in self.groups())

    def metadata_bytes(self) -> int:
        """Return how much the members of all groups have sent that stays: protocols, subscriptions."""
        return self._state.held.total

    def _list(self, request: ListGroups) -> ListGroupsResult:
        states, types, groups = request.states_filter, request.types_filter, self._state.groups

        def show(group_id: str) -> ListedGroup | None:
            group = groups.get(group_id)
            if group is None:
                return None  # deleted meanwhile
            listed = group.listed()
            is_wanted = (not states or listed.group_state.lower() in states) and (
                not types or listed.group_type in types
            )
            return listed if is_wanted else None

        return ListGroupsResult(listing(list(groups), show))

    def _delete(self, turn: Turn, token: Token, request: DeleteGroups) -> None:
        """Delete groups. The result waits until the state of share groups is deleted, too."""
        deletion = Deletion(token, dict.fromkeys(request.groups_names))
        for group_id in deletion.results:
            group = self._state.groups.get(group_id)
            if isinstance(group, ShareGroup):
                error = self._share.delete(turn, group, deletion)
            else:
                error = self._delete_group(turn, group, deletion)
            if error is not None:
                deletion.results[group_id] = error
        deletion.resolve_if_known(turn)

    def _delete_group(self, turn: Turn, group: Group | None, deletion: Deletion) -> ErrorCode | None:
        """Return the error, or None if ``deletion`` has to wait until all tombstones are written."""
        if group is None:
            return ErrorCode.group_id_not_found
        error, group_id = group.check_delete(), group.group_id
        if error is not ErrorCode.none:
            return error

        def done(at: Turn) -> None:
            deletion.results[group_id] = ErrorCode.none
            if at is not turn:
                deletion.resolve_if_known(at)

        self._offsets.delete_all(turn, group_id, done)
        self._classic.remove(turn, group)
        return deletion.results[group_id]

    def forget(self, token: Token) -> None:
        """Drop the result of a request whose connection was lost; the member stays in its group."""
        self._waiting.discard(token)

    def on_computed(self, needed: Computation, result: Any, now_ms: int, wall_ms: int) -> Effects:
        """Process the result of ``needed.compute``, an action of this shard."""
        turn = Turn(now_ms, wall_ms)
        group = self._state.groups.get(needed.group_id)
        if isinstance(group, ShareGroup):
            self._share.on_computed(turn, group, needed, result)
        elif isinstance(group, StreamsGroup):
            self._streams.on_computed(turn, group, needed, result)
        else:
            self._consumer.on_computed(turn, needed, result)
        self._state.count(needed.group_id)
        return turn.effects(self._waiting)

    def on_share_state(self, result: ShareStateResult, now_ms: int, wall_ms: int) -> Effects:
        """Process the share coordinator's answer to an action of this shard."""
        turn = Turn(now_ms, wall_ms)
        self._share.on_share_state(turn, result)
        self._state.count(result.action.group_id)
        return turn.effects(self._waiting)

    # -- metadata and time -------------------------------------------------------------------------------

    def on_image(self, image: ClusterImage, now_ms: int, wall_ms: int) -> Effects:
        """Process a new image, in which topics were created, extended or deleted."""
        self._state.image = image
        self._state.topics.changed(image)
        turn = Turn(now_ms, wall_ms)
        self._share.on_image(turn)
        self._expiry.on_image(turn)
        return turn.effects(self._waiting)

    def next_deadline_ms(self) -> int | None:
        return self._state.timers.next_deadline_ms()

    def on_time(self, now_ms: int, wall_ms: int) -> Effects:
        """Process the timers that are due; if that is too much for one batch, the rest stays due."""
        turn = Turn(now_ms, wall_ms)
        effort = 0
        while turn.records_count < RECORDS_PER_CALL_MAX and effort < EFFORT_PER_CALL_MAX:
            key = self._state.timers.take_due(now_ms)
            if key is None:
                break
            self._on_timer(turn, key)
            effort += 1 if isinstance(key.kind, ClassicTimer) else EFFORT_OF_A_CONSUMER_GROUP
        return turn.effects(self._waiting)

    def _on_timer(self, turn: Turn, key: TimerKey) -> None:
        match key.kind:
            case OffsetsTimer():
                self._expiry.on_timer(turn, key)
            case ClassicTimer():
                self._classic.on_timer(turn, key)
            case ShareTimer():
                self._share.on_timer(turn, key)
            case StreamsTimer():
                self._streams.on_timer(turn, key)
            case _:
                self._consumer.on_timer(turn, key)
        self._state.count(key.group_id)

    # -- observation -------------------------------------------------------------------------------------

    @property
    def offsets_count(self) -> int:
        return len(self._offsets.table)

    def groups(self) -> list[Group]:
        """Return all groups; callers must not change them."""
        return list(self._state.groups.values())
