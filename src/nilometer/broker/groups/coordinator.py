"""The group coordinators of one broker: a shell for each partition of ``__consumer_offsets`` that it leads.

Finds the shell of a group, and keeps shells in step with leadership. Where the same broker leads on in the
very next epoch, nobody else has led between, and the shell goes on; after any other change it is loaded anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from nilometer.broker.connection import Reply as Frame
from nilometer.broker.control.internal_topics import InternalTopics
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.groups.answers import GroupAnswer
from nilometer.broker.groups.coordinator_shell import CoordinatorShell, ShellOptions
from nilometer.broker.groups.refusals import refuse
from nilometer.broker.replicas.partition import Partition
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.topic import GROUP_METADATA_TOPIC
from nilometer.groups.partitioning import partition_for_group
from nilometer.groups.requests import (
    GroupRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OffsetDelete,
    Reply,
    SyncGroup,
)
from nilometer.replication import LeaderRole
from nilometer.runtime import Runtime
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from nilometer.groups.shard import GroupShard

logger = logging.getLogger("nilometer.broker")

R = TypeVar("R")
Respond = Callable[[Sequence[Reply]], Frame]

_OF_NAMED_GROUPS = (JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetDelete)
"""Offsets may be kept under the empty name, as old consumers do; members need a group with a name."""


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        metadata: MetadataLog,
        replicas: ReplicaManager,
        topics: InternalTopics,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._tasks = tasks
        self._metadata = metadata
        self._replicas = replicas
        self._topics = topics
        self._options = ShellOptions(
            commit_timeout_ms=config.integer("offsets.commit.timeout.ms"),
            load_buffer_bytes=config.integer("offsets.load.buffer.size"),
            codec=Codec(config.integer("offsets.topic.compression.codec")),
        )
        self.serves_consumer_groups = "consumer" in config.strings("group.coordinator.rebalance.protocols")
        """Whether the protocol of KIP-848 is on."""
        self._shells: dict[int, CoordinatorShell] = {}
        replicas.on_hosted = self._on_hosted
        metadata.subscribe(self._on_delta, self._on_image)

    # ── where a group is ────────────────────────────────────────────────────────────────────────
    def partition_for(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that keeps the group."""
        topic = self._metadata.image.topic(GROUP_METADATA_TOPIC)
        count = self._config.integer("offsets.topic.num.partitions")
        return partition_for_group(group_id, count if topic is None else len(topic.partitions))

    async def ensure_topic(self) -> bool:
        return await self._topics.ensure(GROUP_METADATA_TOPIC)

    # ── requests ────────────────────────────────────────────────────────────────────────────────
    def ask(
        self, asked: Sequence[tuple[str, GroupRequest]], respond: Respond
    ) -> Frame | asyncio.Future[Frame]:
        """Have each of ``asked`` (with its group) answered, and the whole by ``respond`` of all replies in
        their order. Requests whose client goes away are forgotten."""
        answer = GroupAnswer(len(asked), respond)
        for index, (group_id, request) in enumerate(asked):
            shell = self._shells.get(self.partition_for(group_id))
            try:
                if not group_id and isinstance(request, _OF_NAMED_GROUPS):
                    raise KafkaError(ErrorCode.invalid_group_id)
                if shell is None:
                    raise KafkaError(ErrorCode.not_coordinator)
                answer.submit(index, shell, request)
            except KafkaError as problem:
                answer.give(index, refuse(request, problem.code))
        return answer.frame()

    def ask_one(
        self, group_id: str, request: GroupRequest, kind: type[R], respond: Callable[[R], Frame]
    ) -> Frame | asyncio.Future[Frame]:
        """As :meth:`ask`, for one request whose reply is a ``kind``."""

        def respond_to(replies: Sequence[Reply]) -> Frame:
            (reply,) = replies
            assert isinstance(reply, kind), f"{type(request).__name__} is answered with {kind.__name__}"
            return respond(reply)

        return self.ask(((group_id, request),), respond_to)

    def ask_all_shells(self, request: ListGroups, respond: Respond) -> Frame | asyncio.Future[Frame]:
        """As :meth:`ask`, of every shell here."""
        shells = [self._shells[index] for index in sorted(self._shells)]
        answer = GroupAnswer(len(shells), respond)
        for index, shell in enumerate(shells):
            try:
                answer.submit(index, shell, request)
            except KafkaError as problem:
                answer.give(index, refuse(request, problem.code))
        return answer.frame()

    # ── leadership ──────────────────────────────────────────────────────────────────────────────
    def _on_hosted(self, partition: Partition) -> None:
        if partition.topic == GROUP_METADATA_TOPIC:
            partition.on_role_changed = lambda: self._on_role_changed(partition)

    def _on_role_changed(self, partition: Partition) -> None:
        index = partition.key.partition
        shell = self._shells.get(index)
        if not isinstance(partition.replica.role, LeaderRole):
            if shell is not None and shell.partition is partition:
                logger.debug("%s is unloaded", shell)
                del self._shells[index]
                shell.unload()
            return
        if shell is not None:
            if shell.partition is partition and partition.leader_epoch == shell.leader_epoch + 1:
                shell.leader_epoch = partition.leader_epoch
                return
            shell.unload()
        shell = self._shells[index] = CoordinatorShell(
            partition,
            self._runtime,
            self._tasks,
            self._options,
            self._make_shard,
            self._replicas.report_damage,
        )
        shell.load()

    def _make_shard(self) -> GroupShard:
        from nilometer.groups.shard import GroupShard

        return GroupShard(self._config.groups, self._new_member_id, self._metadata.image)

    def _new_member_id(self, client_id: str) -> str:
        return f"{client_id}-{self._runtime.entropy.uuid()}"

    # ── the image ───────────────────────────────────────────────────────────────────────────────
    def _on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        grown = any(change.before is None or change.after is None for change in delta.partitions.values())
        if grown or delta.topics_created or delta.topics_deleted:
            self._on_image(image)

    def _on_image(self, image: ClusterImage) -> None:
        for index in sorted(self._shells):
            self._shells[index].on_image(image)
