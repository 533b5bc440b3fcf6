"""A cluster without brokers: an image, the log it was folded from, and hands to move both."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from nilometer.cluster.controller.brokers import BrokerRegistration, decide_broker_up, decide_brokers_down
from nilometer.cluster.controller.controllership import controllership_entry
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.topics import CreatedTopic, NewTopic, TopicDefaults, decide_create_topics
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.entries import Entry, decode_entry, encode_entry, entries_of
from nilometer.cluster.features import SUPPORTED_FEATURES
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Endpoint
from nilometer.cluster.states import PartitionState
from nilometer.config import ConfigDefinition, ConfigKey, ConfigKind
from nilometer.identifiers import BrokerEpoch, BrokerId, EntryNumber, Incarnation, TopicIdPartition
from nilometer.runtime.runtime import SeededEntropy

TOPIC_CONFIGS = ConfigDefinition.of(
    "topic",
    [
        ConfigKey(
            name="min.insync.replicas", kind=ConfigKind.INT, default=1, doc="", minimum=1, dynamic=True
        ),
        ConfigKey(
            name="unclean.leader.election.enable",
            kind=ConfigKind.BOOLEAN,
            default=False,
            doc="",
            dynamic=True,
        ),
        ConfigKey(
            name="retention.ms", kind=ConfigKind.LONG, default=604800000, doc="", minimum=-1, dynamic=True
        ),
        ConfigKey(
            name="cleanup.policy",
            kind=ConfigKind.LIST,
            default=("delete",),
            doc="",
            choices=("delete", "compact"),
            dynamic=True,
        ),
    ],
)
BROKER_CONFIGS = ConfigDefinition.of(
    "broker",
    [
        ConfigKey(
            name="min.insync.replicas", kind=ConfigKind.INT, default=1, doc="", minimum=1, dynamic=True
        ),
        ConfigKey(name="log.dirs", kind=ConfigKind.LIST, default=("/tmp",), doc=""),
    ],
)

R = TypeVar("R")


class ClusterWorld:
    def __init__(self, seed: int = 1, target: int = 256 * 1024) -> None:
        self.image = ClusterImage()
        self.log: list[bytes] = []
        self.chance = SeededEntropy(random.Random(seed))
        self.target = target
        self.incarnations = 0
        self.last_epoch: dict[int, int] = {}
        self.become_controller(0)

    # -- the log ---------------------------------------------------------------------------------------

    def append(self, entry: Entry) -> ImageDelta:
        data = encode_entry(entry)
        number = EntryNumber(len(self.log))
        self.log.append(data)
        return self.image.apply_entry(number, decode_entry(data))

    def enact(self, decision: Decision[R], entries_max: int | None = None) -> R:
        """Appends and folds; with ``entries_max`` the controller dies after so many entries."""
        for count, entry in enumerate(entries_of(decision.units, self.image.controllership, self.target)):
            if count == entries_max:
                break
            delta = self.append(entry)
            assert delta.accepted
        return decision.reply

    def refold(self) -> ClusterImage:
        image = ClusterImage()
        for number, data in enumerate(self.log):
            image.apply_entry(EntryNumber(number), decode_entry(data))
        return image

    def become_controller(self, broker: int) -> ImageDelta:
        self.incarnations += 1
        return self.append(
            controllership_entry(
                self.image, BrokerId(broker), Incarnation(f"i-{self.incarnations}"), self.chance
            )
        )

    # -- brokers ---------------------------------------------------------------------------------------

    def registration(
        self,
        broker: int,
        *,
        clean: bool = False,
        rack: str | None = None,
        dirs: Sequence[str] | None = None,
        incarnation: str | None = None,
    ) -> BrokerRegistration:
        self.incarnations += 1
        return BrokerRegistration(
            broker_id=BrokerId(broker),
            incarnation=Incarnation(incarnation or f"i-{self.incarnations}"),
            endpoints=(Endpoint("PLAINTEXT", "127.0.0.1", 9092 + broker),),
            rack=rack,
            log_dirs=tuple(dirs) if dirs is not None else (f"dir-{broker}",),
            features=SUPPORTED_FEATURES,
            previous_broker_epoch=BrokerEpoch(self.last_epoch.get(broker, -1) if clean else -1),
        )

    def up(self, broker: int, **how: object) -> None:
        outcome = self.enact(decide_broker_up(self.image, self.registration(broker, **how)))  # type: ignore[arg-type]
        assert outcome.ok, outcome
        self.last_epoch[broker] = self.epoch(broker)

    def down(self, *brokers: int) -> None:
        self.enact(decide_brokers_down(self.image, [BrokerId(broker) for broker in brokers]))

    def epoch(self, broker: int) -> BrokerEpoch:
        found = self.image.broker_epoch(BrokerId(broker))
        assert found is not None
        return found

    def with_brokers(self, *brokers: int, racks: Mapping[int, str] | None = None) -> ClusterWorld:
        for broker in brokers:
            self.up(broker, rack=(racks or {}).get(broker))
        return self

    # -- topics ----------------------------------------------------------------------------------------

    def create(self, name: str = "t", **how: object) -> CreatedTopic:
        """With ``assignments={0: [1, 2, 3]}`` or counts."""
        assignments = how.pop("assignments", None)
        if isinstance(assignments, dict):
            how["assignments"] = tuple(assignments.items())
        decision = decide_create_topics(
            self.image,
            [NewTopic(name=name, **how)],  # type: ignore[arg-type]
            config_definition=TOPIC_CONFIGS,
            chance=self.chance,
            defaults=TopicDefaults(num_partitions=1, replication_factor=1),
        )
        (created,) = self.enact(decision)
        return created

    def topic(self, replicas: Sequence[int], *, min_isr: int = 1, unclean: bool = False) -> None:
        """Topic ``t`` with one partition on ``replicas``."""
        created = self.create(
            assignments={0: list(replicas)},
            configs={
                "min.insync.replicas": str(min_isr),
                "unclean.leader.election.enable": str(unclean).lower(),
            },
        )
        assert created.outcome.ok, created

    def key(self, name: str = "t", partition: int = 0) -> TopicIdPartition:
        topic = self.image.topic(name)
        assert topic is not None
        return TopicIdPartition(topic.id, partition)

    def state(self, name: str = "t", partition: int = 0) -> PartitionState:
        found = self.image.partition(name, partition)
        assert found is not None
        return found
