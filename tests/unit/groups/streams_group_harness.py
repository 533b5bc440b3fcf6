"""A group world with topics and streams groups, whose members do what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from consumer_group_harness import ConsumerWorld

from nilometer.groups.requests import (
    DescribedStreamsGroup,
    StreamsGroupDescribe,
    StreamsGroupDescribeResult,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.streams.group import StreamsGroup
from nilometer.groups.streams.tasks import NO_TASKS, Tasks, tasks_of
from nilometer.groups.streams_topology import Status, Subtopology, Task, TaskIds, TopicInfo, Topology
from nilometer.wire.errors import ErrorCode

STREAMS_SESSION_MS = 45_000
"""The default of `group.streams.session.timeout.ms`."""
AT_ONCE = GroupConfig(group_streams_initial_rebalance_delay_ms=0, group_streams_assignment_interval_ms=0)


def stateful(name: str, *sources: str) -> Subtopology:
    return Subtopology(name, sources, state_changelog_topics=(TopicInfo(f"{name}-changelog"),))


COUNTING = Topology(0, (stateful("0", "t"),))
"""One subtopology that reads `t` and has a changelog topic."""
COPYING = Topology(0, (Subtopology("0", ("t",)),))
"""One without state."""


def ids(tasks: frozenset[Task]) -> tuple[TaskIds, ...]:
    names = sorted({name for name, _ in tasks})
    return tuple(
        TaskIds(name, tuple(sorted(partition for each, partition in tasks if each == name))) for name in names
    )


@dataclass
class StreamsWorld(ConsumerWorld):
    config: GroupConfig = field(default_factory=lambda: AT_ONCE)

    def streams_group(self, group_id: str = "g") -> StreamsGroup:
        return cast(StreamsGroup, next(group for group in self.shard.groups() if group.group_id == group_id))

    def has_group(self, group_id: str = "g") -> bool:
        return any(group.group_id == group_id for group in self.shard.groups())

    def describe_streams(self, group_id: str = "g") -> DescribedStreamsGroup:
        return self.ask(StreamsGroupDescribe((group_id,)), StreamsGroupDescribeResult).groups[0]

    def streams_beat(self, member_id: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatResult:
        """Send a heartbeat; one that joins says all that it must, unless ``fields`` have it otherwise."""
        if epoch == 0:
            nothing: tuple[TaskIds, ...] = ()
            fields = {
                "rebalance_timeout_ms": 30_000,
                "topology": COPYING,
                "active_tasks": nothing,
                "standby_tasks": nothing,
                "warmup_tasks": nothing,
                "process_id": f"process-{member_id}",
            } | fields
        request = StreamsGroupHeartbeat(
            group_id=fields.pop("group", "g"),
            member_id=member_id,
            member_epoch=epoch,
            client_id="c",
            client_host="/h",
            **fields,
        )
        return self.ask(request, StreamsGroupHeartbeatResult)

    def streams_member(self, member_id: str, **fields: Any) -> StreamsClient:
        member = StreamsClient(self, member_id, **fields)
        member.step()
        return member

    def create_missing(self) -> list[str]:
        """Create the internal topics that the group waits for; return their names."""
        configured = self.streams_group().configured
        missing = () if configured is None else configured.missing
        missing = [topic for topic in missing if self.image.topic(topic.name) is None]
        for topic in missing:
            self.create(topic.name, topic.partitions)
        return [topic.name for topic in missing]

    def streams_settle(self, *members: StreamsClient) -> None:
        """All members send heartbeats until nothing changes any more."""
        for _ in range(3 * len(members) + 8):
            before = [(member.epoch, member.owned) for member in members]
            self.pass_time(max(self.config.group_streams_assignment_interval_ms, 1_000))
            for member in members:
                member.step()
            waits = any(Status.ASSIGNMENT_DELAYED in member.status for member in members)
            if before == [(member.epoch, member.owned) for member in members] and not waits:
                return
        raise AssertionError("the group does not come to rest")


@dataclass
class StreamsClient:
    """A member that does what it is told: it revokes at once, and says so with its next heartbeat."""

    world: StreamsWorld = field(repr=False)
    member_id: str
    process_id: str = ""
    instance_id: str | None = None
    topology: Topology = COPYING
    epoch: int = 0
    owned: Tasks = NO_TASKS
    running: frozenset[Task] = frozenset()
    """The active tasks that it runs: one that it was told to give up runs until its next heartbeat."""
    last: StreamsGroupHeartbeatResult = field(default_factory=StreamsGroupHeartbeatResult)

    def step(self, *, loses_reply: bool = False) -> ErrorCode:
        fields: dict[str, Any] = {
            "active_tasks": ids(self.owned.active),
            "standby_tasks": ids(self.owned.standby),
            "warmup_tasks": ids(self.owned.warmup),
            "instance_id": self.instance_id,
        }
        if self.epoch == 0:
            fields |= {
                "topology": self.topology,
                "process_id": self.process_id or f"process-{self.member_id}",
            }
        self.running = self.owned.active
        reply = self.world.streams_beat(self.member_id, self.epoch, **fields)
        if loses_reply:
            return reply.error_code
        self.last = reply
        if reply.error_code is ErrorCode.none:
            self.epoch = reply.member_epoch
            if reply.active_tasks is not None:
                self.owned = Tasks(
                    tasks_of(reply.active_tasks),
                    tasks_of(reply.standby_tasks or ()),
                    tasks_of(reply.warmup_tasks or ()),
                )
                self.running |= self.owned.active
        else:
            self.epoch, self.owned, self.running = 0, Tasks(), frozenset()
        return reply.error_code

    def leave(self, epoch: int = -1) -> ErrorCode:
        reply = self.world.streams_beat(self.member_id, epoch, instance_id=self.instance_id)
        self.epoch, self.owned = 0, Tasks()
        return reply.error_code

    @property
    def active(self) -> list[Task]:
        return sorted(self.owned.active)

    @property
    def standby(self) -> list[Task]:
        return sorted(self.owned.standby)

    @property
    def status(self) -> list[Status]:
        return [each.status_code for each in self.last.status]
