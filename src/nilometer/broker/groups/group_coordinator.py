"""The group coordinators of one broker: which requests about groups reach the shards that keep them.

A request on a group that the client has no right to never reaches a shard. A request that never reached a
group, or whose outcome is not known, gets an error in every field.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import Request
from nilometer.broker.control.internal_topics import InternalTopics
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.coordinator_shell import CoordinatorKind, CoordinatorShell
from nilometer.broker.coordinator_shells import NOT_AVAILABLE, CoordinatorShells, coordinator_error
from nilometer.broker.decision_lines import log_decision
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.features import DEAD_LETTERS_SHARE_VERSION, FEATURES_OF_GROUPS, SHARE_VERSION
from nilometer.cluster.records import ConfigResourceType
from nilometer.cluster.states import GROUP_METADATA_TOPIC
from nilometer.groups.records import CoordinatorRecord, decode_record, encode_record
from nilometer.groups.requests import (
    FOUNDING,
    OF_NAMED_GROUPS,
    RECORD_BYTES_MAX,
    GroupRequest,
    GroupResult,
    Heartbeat,
    HeartbeatResult,
    JoinGroup,
    JoinGroupResult,
    OffsetFetch,
    OfOneGroup,
    SyncGroup,
    member_bytes,
    refusal,
)
from nilometer.groups.settings import ShareGroupConfig, share_group_config
from nilometer.groups.turn import (
    Computation,
    DeleteShareState,
    GroupAction,
    InitializeShareState,
    MatchesNeeded,
    RebalanceNote,
    ShareStateAction,
    ShareStateResult,
)
from nilometer.runtime import Disk, Runtime
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode

if TYPE_CHECKING:
    from nilometer.groups.shard import GroupShard


def refuse(request: GroupRequest, error: ErrorCode) -> GroupResult:
    """Return the result with ``error`` for the whole ``request``."""
    if isinstance(request, Heartbeat) and error is ErrorCode.coordinator_load_in_progress:
        return HeartbeatResult(ErrorCode.none)
    return refusal(request, error)


def refuse_for_log(request: GroupRequest, error: ErrorCode) -> GroupResult:
    """Return the result to ``request`` if its append, or the wait for its commit, failed with ``error``."""
    if isinstance(request, OffsetFetch) and error in NOT_AVAILABLE:
        return refuse(request, ErrorCode.not_coordinator)
    return refuse(request, coordinator_error(error))


logger = logging.getLogger("nilometer.broker.groups")

R = TypeVar("R", bound=GroupResult)
Respond = Callable[[Sequence[GroupResult]], Response]

GROUP_ID_MAX = 1_024
"""Characters of the id of a group that is created: each offset that it commits is a record with the id."""
METADATA_BYTES_MAX = 64 * 1024 * 1024
"""Of the members of all groups that this broker coordinates, and of ids given to clients that have not joined
with them: protocols and assignments of classic members, names of topics that others subscribe to, tasks of
streams groups, and what else clients choose. They stay in memory while their members do, up to
``group.max.session.timeout.ms``. A member for which there is no room may not join."""

ShareStates: TypeAlias = Callable[[ShareStateAction], Awaitable[ShareStateResult]]
"""Has the share coordinator begin or delete the state of partitions of a share group; never raises."""

GroupShell: TypeAlias = CoordinatorShell[GroupRequest, GroupResult, CoordinatorRecord, GroupAction]


class Computations:
    """What is computed for groups on other threads: one target assignment, and one match of an expression, at
    a time, since threads are left for the disks.

    A group has one assignment at most that is computed or waits, and the first that waits is the next: so
    each waits for one of every other group. Of expressions, clients may have any number matched that take
    seconds each: no assignment waits for them, and those that take less go first.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._assigning, self._matching = _OneAtATime(), _OneAtATime()

    async def run(self, needed: Computation, is_wanted: Callable[[], bool]) -> asyncio.Future[object] | None:
        """Compute it when it is its turn; return the future that has the result or the error. None if it is
        not wanted any more."""
        is_match = isinstance(needed, MatchesNeeded)
        queue = self._matching if is_match else self._assigning
        await queue.wait(needed.weight if is_match else 0)
        try:
            if not is_wanted():
                return None
            compute = cast("Callable[[], object]", needed.compute)
            computing = asyncio.ensure_future(self._disk.offload(compute))
            await asyncio.wait([computing])
            return computing
        finally:
            queue.end()


class _OneAtATime:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap: by weight, and by when they came."""
        self._count = 0
        self._is_taken = False

    async def wait(self, weight: int) -> None:
        """Wait for a turn; :meth:`end` must follow."""
        if not self._is_taken:
            self._is_taken = True
            return
        self._count += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (weight, self._count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end()
            raise

    def end(self) -> None:
        while self._waiting:
            _, _, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


class GroupCoordinator(CoordinatorShells[GroupRequest, GroupResult, CoordinatorRecord, GroupAction]):
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: ReplicaManager,
        topics: InternalTopics,
        share_states: ShareStates,
        rights: Rights,
    ) -> None:
        self._config = config
        self._share_states = share_states
        self._rights = rights
        self._kinds = {"share", *config.strings("group.coordinator.rebalance.protocols")}
        kind: CoordinatorKind[GroupRequest, GroupResult, CoordinatorRecord, GroupAction] = CoordinatorKind(
            name="group",
            subject="groups",
            topic=GROUP_METADATA_TOPIC,
            num_partitions=config.integer("offsets.topic.num.partitions"),
            commit_timeout_ms=config.integer("offsets.commit.timeout.ms"),
            load_buffer_bytes=config.integer("offsets.load.buffer.size"),
            codec=Codec(config.integer("offsets.topic.compression.codec")),
            make_shard=self._make_shard,
            encode=encode_record,
            decode=decode_record,
            refuse=refuse,
            refuse_for_log=refuse_for_log,
            carry_out=self._carry_out,
        )
        super().__init__(kind, runtime, tasks, metadata, replicas, topics)
        self._computations = Computations(runtime.disk)

    def serves(self, kind: str) -> bool:
        """Whether groups of this kind are on: on this broker, and in the cluster."""
        return kind in self._kinds and self._metadata.image.feature_level(FEATURES_OF_GROUPS[kind]) >= 1

    def share_group_config(self, group_id: str) -> ShareGroupConfig:
        """Return the settings in force for the partitions of a share group; any broker may ask."""
        texts = self._metadata.image.config(ConfigResourceType.GROUP, group_id)
        level = self._metadata.image.feature_level(SHARE_VERSION)
        return share_group_config(
            self._config.groups, texts, may_have_dead_letters=level >= DEAD_LETTERS_SHARE_VERSION
        )

    # ── requests of clients ─────────────────────────────────────────────────────────────────────
    def ask_group(
        self,
        request: Request,
        operation: Operation,
        asked: OfOneGroup,
        kind: type[R],
        respond: Callable[[R], Response],
    ) -> Response | asyncio.Future[Response]:
        """Submit one request, whose result must be of type ``kind``, otherwise as :meth:`ask_groups`."""
        access = self._rights.access(request)
        if access.is_full or access.allows(operation, ResourceType.GROUP, asked.group_id):
            return self.ask_one(asked.group_id, asked, kind, respond)
        denied = _denied(asked)
        assert isinstance(denied, kind), f"{type(asked).__name__} is answered with {kind.__name__}"
        return respond(denied)

    def ask_groups(
        self,
        request: Request,
        operation: Operation,
        asked: Sequence[tuple[str, GroupRequest]],
        respond: Respond,
    ) -> Response | asyncio.Future[Response]:
        """Submit each request of ``asked``, a list of (group id, request), on whose group ``operation`` is
        allowed: the others never reach a shard.

        ``respond`` makes the response from all results, in the order of ``asked``: a group on which it is not
        allowed has the result GROUP_AUTHORIZATION_FAILED.
        """
        may, allowed = self._sorted_by_right(request, operation, asked)
        if len(allowed) == len(asked):
            return self.ask(asked, respond)
        if not allowed:
            return respond(_in_order(may, asked, ()))
        return self.ask(allowed, lambda results: respond(_in_order(may, asked, results)))

    async def ask_groups_in_turns(
        self,
        request: Request,
        operation: Operation,
        asked: Sequence[tuple[str, GroupRequest]],
        work: LongWork,
    ) -> list[GroupResult]:
        """Return the results as :meth:`ask_groups` passes them on, where each group may take long."""
        may, allowed = self._sorted_by_right(request, operation, asked)
        return _in_order(may, asked, await self.ask_in_turns(allowed, work))

    def _sorted_by_right(
        self, request: Request, operation: Operation, asked: Sequence[tuple[str, GroupRequest]]
    ) -> tuple[list[bool], list[tuple[str, GroupRequest]]]:
        """Return of each request whether ``operation`` is allowed, and those of which it is."""
        access = self._rights.access(request)
        may = [access.is_full or access.allows(operation, ResourceType.GROUP, group) for group, _ in asked]
        return may, [one for is_allowed, one in zip(may, asked, strict=True) if is_allowed]

    # ── shards ──────────────────────────────────────────────────────────────────────────────────
    def _make_shard(self) -> GroupShard:
        from nilometer.groups.shard import GroupShard

        return GroupShard(self._config.groups, self._new_member_id, self._metadata.image, self._has_room)

    def _check(self, key: str, request: GroupRequest) -> ErrorCode:
        if not key and isinstance(request, OF_NAMED_GROUPS):
            return ErrorCode.invalid_group_id
        if len(key) > GROUP_ID_MAX and isinstance(request, FOUNDING):
            return ErrorCode.invalid_group_id
        if isinstance(request, SyncGroup):
            # What Kafka answers if a group's record is too large for its topic.
            may_assign = self._may_assign(request)
            return ErrorCode.none if may_assign else ErrorCode.unknown_server_error
        size = member_bytes(request)
        return ErrorCode.group_max_size_reached if size and not self._has_room(size) else ErrorCode.none

    def _may_assign(self, request: SyncGroup) -> bool:
        size = sum(len(one.assignment) for one in request.assignments)
        return size <= RECORD_BYTES_MAX and (not size or self._has_room(size))

    def _has_room(self, size: int) -> bool:
        """Whether there is room for ``size`` bytes of a member's metadata."""
        shards = cast("Iterator[GroupShard]", self.shards())
        return sum(shard.metadata_bytes() for shard in shards) + size <= METADATA_BYTES_MAX

    # ── actions of shards ───────────────────────────────────────────────────────────────────────
    def _carry_out(self, shell: GroupShell, action: GroupAction) -> None:
        if isinstance(action, RebalanceNote):
            _log_rebalance(shell, action)
        elif isinstance(action, InitializeShareState | DeleteShareState):
            self._tasks.spawn(self._keep_share_state(shell, action), name=f"share state of {action.group_id}")
        else:
            self._tasks.spawn(self._compute(shell, action), name="computing for groups")

    async def _compute(self, shell: GroupShell, needed: Computation) -> None:
        """Compute what a shard needs on another thread, and pass it to the shard."""
        shard, clock = cast("GroupShard", shell.shard), self._runtime.clock
        computing = await self._computations.run(needed, lambda: shell.shard is shard)
        if computing is not None and shell.shard is shard:
            shell.carry_out(
                lambda: shard.on_computed(needed, computing.result(), clock.monotonic_ms(), clock.wall_ms())
            )

    async def _keep_share_state(self, shell: GroupShell, action: ShareStateAction) -> None:
        shard, clock = cast("GroupShard", shell.shard), self._runtime.clock
        result = await self._share_states(action)
        if shell.shard is shard:
            shell.carry_out(lambda: shard.on_share_state(result, clock.monotonic_ms(), clock.wall_ms()))

    def _new_member_id(self, client_id: str) -> str:
        return f"{client_id}-{self._runtime.entropy.uuid()}"


def _in_order(
    may: Sequence[bool], asked: Sequence[tuple[str, GroupRequest]], of_allowed: Sequence[GroupResult]
) -> list[GroupResult]:
    """Return the result of each request: of those that are allowed the next one of ``of_allowed``."""
    results = iter(of_allowed)
    return [
        next(results) if is_allowed else _denied(one) for is_allowed, (_, one) in zip(may, asked, strict=True)
    ]


def _denied(asked: GroupRequest) -> GroupResult:
    if isinstance(asked, JoinGroup):
        return JoinGroupResult(ErrorCode.group_authorization_failed)  # without the member id, as Kafka
    return refusal(asked, ErrorCode.group_authorization_failed)


def client_id(request: Request) -> str:
    return request.header.client_id or ""


def client_host(request: Request) -> str:
    """Return the client's IP address after a slash, as Kafka (Java) prints an address without a host name."""
    return f"/{request.connection.peer[0]}"


def _log_rebalance(shell: GroupShell, note: RebalanceNote) -> None:
    """Write the line about a rebalance; of other than classic groups the number is the new epoch."""
    sentence = f"Group {note.group_id} rebalances (generation {note.generation})"
    partition = shell.partition.key.partition
    fields = {"group": note.group_id, "generation": note.generation, "partition": partition}
    log_decision(logger, "group-rebalanced", sentence, note.cause, fields)
