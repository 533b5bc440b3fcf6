"""A group world with topics, and members of the consumer protocol that behave as clients do."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from group_harness import REBALANCE_MS, SESSION_MS, GroupWorld

from nilometer.cluster.entries import Entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    ConfigChanged,
    ConfigResourceType,
    ControllerElected,
    PartitionCreated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from nilometer.groups.consumer.group import ConsumerGroup, Member
from nilometer.groups.requests import (
    ConsumerGroupDescribe,
    ConsumerGroupDescribeResult,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
    DescribedConsumerGroup,
    JoinGroupProtocol,
    TopicPartitions,
)
from nilometer.groups.settings import GroupConfig
from nilometer.identifiers import (
    BrokerId,
    ControllerEpoch,
    EntryNumber,
    Incarnation,
    topic_id_of,
)
from nilometer.wire.errors import ErrorCode
from nilometer.wire.value_bytes import Subscription, decode_assignment, encode_subscription

CONTROLLER = BrokerId(1)
CONSUMER_SESSION_MS = 45_000
"""The default of `group.consumer.session.timeout.ms`."""
INCARNATION = Incarnation("one")
CONTROLLER_EPOCH = ControllerEpoch(1)
Partitions = Mapping[str, Iterable[int]]
"""By topic name."""


class TopicImage:
    """A cluster image that topics can be put into and taken out of."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self._created = 0
        self._apply(
            ControllerElected(
                controller_id=CONTROLLER, incarnation=INCARNATION, controller_epoch=CONTROLLER_EPOCH
            )
        )

    def _apply(self, *records: Record) -> None:
        number = EntryNumber(self.image.number + 1)
        entry = Entry(
            controller_id=CONTROLLER,
            controller_incarnation=INCARNATION,
            controller_epoch=CONTROLLER_EPOCH,
            records=records,
        )
        assert self.image.apply_entry(number, entry).accepted

    def create(self, name: str, partitions: int) -> None:
        self._created += 1
        topic_id = topic_id_of(uuid.UUID(int=self._created))
        self._apply(TopicCreated(name=name, topic_id=topic_id))
        self.grow(name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        replicas = (BrokerId(1),)
        for index in range(len(topic.partitions), partitions):
            self._apply(PartitionCreated(topic_id=topic.id, partition=index, replicas=replicas))

    def delete(self, name: str) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        self._apply(TopicDeleted(topic_id=topic.id))

    def configure(self, group_id: str, key: str, value: str | None) -> None:
        """Change a setting of a group; None removes it."""
        self._apply(
            ConfigChanged(
                resource_type=ConfigResourceType.GROUP, resource_name=group_id, key=key, value=value
            )
        )

    def id_of(self, name: str) -> uuid.UUID:
        topic = self.image.topic(name)
        assert topic is not None
        return topic.uuid

    def name_of(self, topic_id: uuid.UUID) -> str:
        topic = self.image.topic_by_uuid(topic_id)
        return f"gone:{topic_id.int}" if topic is None else topic.name


def no_wait_config(**settings: object) -> GroupConfig:
    """Target assignments follow at once, so that scenarios see every epoch."""
    return GroupConfig(**{"group_consumer_assignment_interval_ms": 0, **settings})  # type: ignore[arg-type]


@dataclass
class ConsumerWorld(GroupWorld):
    config: GroupConfig = field(default_factory=no_wait_config)
    topics: TopicImage = field(default_factory=TopicImage)

    def __post_init__(self) -> None:
        self.image = self.topics.image
        super().__post_init__()

    # -- topics --------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int) -> None:
        self.topics.create(name, partitions)
        self.see_image(self.image)

    def grow(self, name: str, partitions: int) -> None:
        self.topics.grow(name, partitions)
        self.see_image(self.image)

    def delete(self, name: str) -> None:
        self.topics.delete(name)
        self.see_image(self.image)

    def wire(self, partitions: Partitions) -> tuple[TopicPartitions, ...]:
        return tuple(
            TopicPartitions(self.topics.id_of(name), tuple(sorted(partitions[name]))) for name in partitions
        )

    def names(self, partitions: Iterable[TopicPartitions]) -> dict[str, list[int]]:
        return {self.topics.name_of(each.topic_id): sorted(each.partitions) for each in partitions}

    # -- what the group is -----------------------------------------------------------------------------

    def consumer_group(self, group_id: str = "g") -> ConsumerGroup:
        return cast(ConsumerGroup, next(group for group in self.shard.groups() if group.group_id == group_id))

    def of(self, member_id: str) -> Member:
        return self.consumer_group().members[member_id]

    def target(self, member_id: str) -> dict[str, list[int]]:
        target = self.consumer_group().target_of(member_id)
        return {self.topics.name_of(topic_id): sorted(each) for topic_id, each in target.items()}

    def describe_consumer(self, group_id: str = "g") -> DescribedConsumerGroup:
        return self.ask(ConsumerGroupDescribe((group_id,)), ConsumerGroupDescribeResult).groups[0]

    # -- what members say --------------------------------------------------------------------------------

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: Iterable[str] | None = None,
        owned: Partitions | None = None,
        instance: str | None = None,
        regex: str | None = None,
        rebalance_ms: int = -1,
        assignor: str | None = None,
        rack: str | None = None,
        group: str = "g",
        client: str = "c",
        port: int | None = None,
    ) -> ConsumerGroupHeartbeatResult:
        """``port`` tells connections apart; None: the coordinator does not know them."""
        return self.ask(
            ConsumerGroupHeartbeat(
                group,
                member_id,
                epoch,
                instance_id=instance,
                rack_id=rack,
                rebalance_timeout_ms=rebalance_ms,
                subscribed_topic_names=None if topics is None else tuple(topics),
                subscribed_topic_regex=regex,
                server_assignor=assignor,
                topic_partitions=None if owned is None else self.wire(owned),
                client_id=client,
                client_host=f"/{client}.host",
                peer=None if port is None else (f"{client}.host", port),
            ),
            ConsumerGroupHeartbeatResult,
        )

    def enter(
        self,
        member_id: str,
        *topics: str,
        instance: str | None = None,
        regex: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
        assignor: str | None = None,
        group: str = "g",
    ) -> ConsumerGroupHeartbeatResult:
        """The first heartbeat."""
        return self.beat(
            member_id,
            0,
            topics=topics if topics or regex is None else None,
            owned={},
            instance=instance,
            regex=regex,
            rebalance_ms=rebalance_ms,
            assignor=assignor,
            group=group,
        )

    def consumer(self, member_id: str, *topics: str, **also: object) -> Consumer:
        consumer = Consumer(self, member_id, topics or ("t",), **also)  # type: ignore[arg-type]
        consumer.enter()
        return consumer

    def settle_all(self, *members: Consumer | ClassicConsumer) -> None:
        """All members send heartbeats until nothing changes any more."""
        for _ in range(4 * len(members) + 8):
            before = [(member.epoch, sorted(member.owned)) for member in members]
            self.pass_time(self.config.group_consumer_assignment_interval_ms)
            for member in members:
                member.step()
            if before == [(member.epoch, sorted(member.owned)) for member in members]:
                return
        raise AssertionError("the group does not come to rest")


@dataclass
class Consumer:
    """A member that does what it is told: revokes, says so, takes what it is given."""

    world: ConsumerWorld = field(repr=False)
    member_id: str
    topics: tuple[str, ...] = ("t",)
    instance: str | None = None
    regex: str | None = None
    assignor: str | None = None
    epoch: int = 0
    owned: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    last_error: ErrorCode = ErrorCode.none

    @property
    def claimed(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name, partition in sorted(self.owned):
            found.setdefault(name, []).append(partition)
        return found

    def enter(self) -> ConsumerGroupHeartbeatResult:
        self.epoch, self.owned = 0, set()
        return self._take(
            self.world.enter(
                self.member_id,
                *self.topics,
                instance=self.instance,
                regex=self.regex,
                assignor=self.assignor,
            )
        )

    def step(self) -> ConsumerGroupHeartbeatResult:
        """A heartbeat that says all, as after an error; from the beginning if it was thrown out."""
        if self.epoch <= 0:
            return self.enter()
        return self._take(
            self.world.beat(
                self.member_id,
                self.epoch,
                topics=self.topics,
                owned={name: each for name, each in self.claimed.items() if self.world.image.topic(name)},
                instance=self.instance,
                rebalance_ms=REBALANCE_MS,
                regex=self.regex,
            )
        )

    def _take(self, reply: ConsumerGroupHeartbeatResult) -> ConsumerGroupHeartbeatResult:
        self.last_error = reply.error_code
        if reply.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.epoch, self.owned = 0, set()
        elif reply.error_code is ErrorCode.none:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = {
                    (name, partition)
                    for name, each in self.world.names(reply.assignment).items()
                    for partition in each
                }
        return reply

    def leave(self) -> ErrorCode:
        reply = self.world.beat(self.member_id, -1, instance=self.instance)
        self.epoch, self.owned = -1, set()
        return reply.error_code


@dataclass
class ClassicConsumer:
    """A member of the classic protocol with cooperative rebalancing, in a consumer group."""

    world: ConsumerWorld = field(repr=False)
    member_id: str = ""
    topics: tuple[str, ...] = ("t",)
    instance: str | None = None
    client: str = "k"
    epoch: int = -1
    owned: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    last_error: ErrorCode = ErrorCode.none

    def offers(self) -> tuple[JoinGroupProtocol, ...]:
        subscription = Subscription(self.topics, None, tuple(sorted(self.owned)), self.epoch)
        return (JoinGroupProtocol("cooperative-sticky", encode_subscription(subscription)),)

    def rejoin(self) -> ErrorCode:
        token = self.world.join(
            self.member_id,
            client=self.client,
            instance=self.instance,
            offers=self.offers(),
            session_ms=SESSION_MS,
        )
        if not self.world.is_answered(token):
            raise AssertionError("a join to a consumer group is answered at once")
        reply = self.world.joined(token)
        self.last_error = reply.error_code
        if reply.error_code is ErrorCode.none:
            self.member_id, self.epoch = reply.member_id, reply.generation_id
            return self.fetch_assignment()
        if reply.error_code is ErrorCode.unknown_member_id:
            self.member_id, self.epoch, self.owned = "", -1, set()
        return reply.error_code

    def fetch_assignment(self) -> ErrorCode:
        token = self.world.sync(self.member_id, self.epoch, instance=self.instance)
        reply = self.world.synced(token)
        self.last_error = reply.error_code
        if reply.error_code is ErrorCode.none:
            self.owned = set(decode_assignment(reply.assignment).partitions)
        return reply.error_code

    def step(self) -> ErrorCode:
        """A heartbeat, and what it asks for."""
        if self.epoch < 0:
            return self.rejoin()
        verdict = self.world.heartbeat(self.member_id, self.epoch, instance=self.instance)
        if verdict is ErrorCode.none:
            return verdict
        if verdict in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self.epoch, self.owned = -1, set()
            if verdict is ErrorCode.unknown_member_id:
                self.member_id = ""
        return self.rejoin()
