"""A shard of ``__share_group_state`` with a clock, an image and a log, which has Kafka's bytes.

``reload`` makes a new shard from nothing but the log, as another coordinator does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nilometer.cluster.entries import Controllership, sign
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    ControllerElected,
    PartitionCreated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from nilometer.coordinators import Token
from nilometer.identifiers import BrokerId, ControllerEpoch, EntryNumber, Incarnation, TopicId
from nilometer.share.state_records import (
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    ShareRecord,
    StateBatch,
    decode_record,
    encode_record,
)
from nilometer.share.state_shard import (
    DeleteState,
    Effects,
    InitializeState,
    Prune,
    ReadState,
    ReadSummary,
    ShareStateConfig,
    ShareStateShard,
    StateRequest,
    StateResult,
    WriteState,
)
from nilometer.steps import at_once

WALL_MS = 1_700_000_000_000
"""What the wall clock says when the monotonic one says 0."""
JOBS, OTHER = TopicId("AAAAAAAAAAEAAAAAAAAAAg"), TopicId("AAAAAAAAAAEAAAAAAAAAAw")
NAMES = {JOBS: "jobs", OTHER: "other"}
KEY = SharePartitionKey("workers", JOBS, 0)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = (
    DeliveryState.AVAILABLE,
    DeliveryState.ACKNOWLEDGED,
    DeliveryState.ARCHIVED,
)
TERM = Controllership(BrokerId(1), Incarnation("1"), ControllerEpoch(1))


def batch(first: int, last: int, state: DeliveryState = ACKNOWLEDGED, count: int = 1) -> StateBatch:
    return StateBatch(first, last, state, count)


class Cluster:
    """An image with topics of two partitions."""

    def __init__(self, *topics: TopicId) -> None:
        self.image = ClusterImage()
        elected = ControllerElected(
            controller_id=TERM.controller_id,
            incarnation=TERM.incarnation,
            controller_epoch=TERM.controller_epoch,
        )
        self._apply(elected)
        for topic_id in topics:
            self.create(topic_id)

    def _apply(self, *records: Record) -> None:
        self.image.apply_entry(EntryNumber(self.image.number + 1), sign(list(records), TERM))

    def create(self, topic_id: TopicId) -> None:
        replicas = (BrokerId(1),)
        partitions = [
            PartitionCreated(topic_id=topic_id, partition=index, replicas=replicas) for index in range(2)
        ]
        self._apply(TopicCreated(topic_id=topic_id, name=NAMES[topic_id]), *partitions)

    def delete(self, topic_id: TopicId) -> None:
        self._apply(TopicDeleted(topic_id=topic_id))


@dataclass
class StateWorld:
    config: ShareStateConfig = field(default_factory=ShareStateConfig)
    topics: tuple[TopicId, ...] = (JOBS, OTHER)
    now_ms: int = 0
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list[tuple[bytes, bytes | None]])
    log_start: int = 0
    """The first record that was not pruned; the log keeps all."""
    first_loaded: int = 0
    prunes: bool = True

    def __post_init__(self) -> None:
        self._tokens = 0
        self.cluster = Cluster(*self.topics)
        self.reload()

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    def records(self) -> list[ShareRecord]:
        found = [decode_record(key, value) for key, value in self.log[self.log_start :]]
        return [record for record in found if record is not None]

    def reload(self) -> None:
        self.first_loaded = self.log_start
        self.shard = ShareStateShard(self.config, self.cluster.image)
        for record in self.records():
            self.shard.replay(record)
        self._take(at_once(self.shard.on_loaded(self.now_ms, self.wall_ms)))

    def _take(self, effects: Effects) -> None:
        self.log.extend(encode_record(record) for record in effects.records)
        for action in effects.actions:
            assert isinstance(action, Prune)
            if self.prunes:
                self.log_start = self.first_loaded + action.records

    def ask(self, request: StateRequest) -> StateResult:
        self._tokens += 1
        effects = self.shard.handle(Token(self._tokens), request, self.now_ms, self.wall_ms)
        self._take(effects)
        ((token, reply),) = effects.results
        assert token == self._tokens
        return reply

    def on_image(self) -> None:
        self._take(self.shard.on_image(self.cluster.image, self.now_ms, self.wall_ms))

    def advance(self, ms: int) -> None:
        """Time passes, and every deadline in it is met."""
        until_ms = self.now_ms + ms
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._take(self.shard.on_time(self.now_ms, self.wall_ms))
        self.now_ms = until_ms

    # ── what brokers ask ────────────────────────────────────────────────────────────────────────
    def initialize(self, key: SharePartitionKey = KEY, *, epoch: int = 1, start: int = 100) -> StateResult:
        return self.ask(InitializeState(key, epoch, start))

    def read(self, key: SharePartitionKey = KEY, *, leader: int = 1) -> StateResult:
        return self.ask(ReadState(key, leader))

    def write(
        self,
        *batches: StateBatch,
        key: SharePartitionKey = KEY,
        epoch: int = 1,
        leader: int = 1,
        start: int = -1,
        count: int = 0,
    ) -> StateResult:
        return self.ask(WriteState(key, epoch, leader, start, count, batches))

    def delete(self, key: SharePartitionKey = KEY) -> StateResult:
        return self.ask(DeleteState(key))

    def summary(self, key: SharePartitionKey = KEY) -> SharePartitionState | None:
        return self.ask(ReadSummary(key)).state

    def state(self, key: SharePartitionKey = KEY) -> SharePartitionState:
        state = self.shard.state(key)
        assert state is not None, f"{key} is not initialized"
        return state
