"""A transaction shard with a clock and a log whose end is committed when the test says so.

What the shard writes goes through Kafka's bytes into ``log``; replies and actions wait until it is committed,
as in the broker's shell. ``fail_over`` makes a new shard from nothing but the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from nilometer.cluster.entries import Controllership, sign
from nilometer.cluster.features import TRANSACTION_VERSION
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ControllerElected, FeatureLevelChanged
from nilometer.coordinators import Token
from nilometer.identifiers import BrokerId, ControllerEpoch, EntryNumber, Incarnation
from nilometer.steps import at_once
from nilometer.storage.names import TopicPartition
from nilometer.transactions.records import decode_record, encode_record
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsResult,
    DescribeTransaction,
    DescribeTransactionResult,
    EndTransaction,
    EndTransactionResult,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
    MarkersWrittenResult,
    ProducerIdNeeded,
    TransactionRequest,
    TransactionResult,
)
from nilometer.transactions.shard import (
    AllocateProducerId,
    Effects,
    SendMarkers,
    TransactionAction,
    TransactionShard,
)
from nilometer.transactions.transaction import TransactionConfig
from nilometer.wire.errors import ErrorCode

WALL_MS = 1_700_000_000_000
"""What the wall clock says when the monotonic one says 0."""
TIMEOUT_MS = 60_000
A, B, C = (TopicPartition("t", index) for index in range(3))

AnyResult = TypeVar("AnyResult", bound=TransactionResult)
Waiting = tuple[int, Sequence[tuple[Token, TransactionResult]], Sequence[TransactionAction]]


def image_with(transaction_version: int) -> ClusterImage:
    image = ClusterImage()
    term = Controllership(BrokerId(1), Incarnation("1"), ControllerEpoch(1))
    elected = ControllerElected(
        controller_id=term.controller_id, incarnation=term.incarnation, controller_epoch=term.controller_epoch
    )
    level = FeatureLevelChanged(name=TRANSACTION_VERSION, level=transaction_version)
    image.apply_entry(EntryNumber(0), sign([elected, level], term))
    return image


@dataclass
class TransactionWorld:
    config: TransactionConfig = field(default_factory=TransactionConfig)
    version: int = 0
    """The finalized ``transaction.version``."""
    now_ms: int = 0
    wall_behind_ms: int = 0
    """How far the wall clock of the present coordinator is behind."""
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list[tuple[bytes, bytes | None]])
    commits_at_once: bool = True
    committed: int = 0
    """Everything in the log below is."""
    replies: dict[Token, TransactionResult] = field(default_factory=dict[Token, TransactionResult])
    actions: list[TransactionAction] = field(default_factory=list[TransactionAction])
    """Released and not yet taken."""
    waiting: list[Waiting] = field(default_factory=list[Waiting])
    next_producer_id: int = 1_000

    def __post_init__(self) -> None:
        self._tokens = 0
        self.load()

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms - self.wall_behind_ms

    # ── the shard ───────────────────────────────────────────────────────────────────────────────
    def load(self) -> None:
        self.waiting.clear()
        self.shard = TransactionShard(self.config, image_with(self.version))
        for key, value in self.log:
            record = decode_record(key, value)
            assert record is not None
            self.shard.replay(record)
        self._take(at_once(self.shard.on_loaded(self.now_ms, self.wall_ms)))

    def fail_over(self, *, loses_uncommitted: bool = False) -> None:
        """The next coordinator; the former one's actions that were not taken are lost with it."""
        if loses_uncommitted:
            del self.log[self.committed :]
        self.actions.clear()
        self.load()

    def _take(self, effects: Effects) -> None:
        for record in effects.records:
            self.log.append(encode_record(record))
        self.waiting.append((len(self.log), effects.results, effects.actions))
        if self.commits_at_once:
            self.commit()

    def commit(self, upto: int | None = None) -> None:
        self.committed = len(self.log) if upto is None else upto
        while self.waiting and self.waiting[0][0] <= self.committed:
            _, replies, actions = self.waiting.pop(0)
            for token, reply in replies:
                assert token not in self.replies, f"{token} is answered twice"
                self.replies[token] = reply
            self.actions.extend(actions)

    def send(self, request: TransactionRequest) -> Token:
        self._tokens += 1
        token = Token(self._tokens)
        self._take(self.shard.handle(token, request, self.now_ms, self.wall_ms))
        return token

    def ask(self, request: TransactionRequest, kind: type[AnyResult]) -> AnyResult:
        reply = self.replies[self.send(request)]
        assert isinstance(reply, kind), reply
        return reply

    def advance(self, ms: int) -> None:
        """Time passes, and every deadline in it is met."""
        until_ms = self.now_ms + ms
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._take(self.shard.on_time(self.now_ms, self.wall_ms))
        self.now_ms = until_ms

    # ── a producer ──────────────────────────────────────────────────────────────────────────────
    def init(
        self, name: str = "x", *, has: tuple[int, int] | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> InitProducerIdResult:
        producer_id, epoch = has or (-1, -1)
        request = InitProducerId(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        reply = self.replies[self.send(request)]
        if isinstance(reply, ProducerIdNeeded):
            request = InitProducerId(
                transactional_id=name,
                transaction_timeout_ms=timeout_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
                new_producer_id=self.new_producer_id(),
            )
            reply = self.replies[self.send(request)]
        assert isinstance(reply, InitProducerIdResult)
        return reply

    def new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id

    def add(
        self, producer: InitProducerIdResult, *partitions: TopicPartition, name: str = "x", version: int = 0
    ) -> ErrorCode:
        request = AddPartitions(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            partitions=frozenset(partitions),
            version=version,
        )
        return self.ask(request, AddPartitionsResult).error_code

    def end(
        self,
        producer: InitProducerIdResult | EndTransactionResult,
        *,
        commit: bool = True,
        name: str = "x",
        version: int = 0,
    ) -> EndTransactionResult:
        request = EndTransaction(
            transactional_id=name,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
            version=version,
        )
        reply = self.replies[self.send(request)]
        if isinstance(reply, ProducerIdNeeded):
            request = EndTransaction(
                transactional_id=name,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=commit,
                version=version,
                new_producer_id=self.new_producer_id(),
            )
            reply = self.replies[self.send(request)]
        assert isinstance(reply, EndTransactionResult)
        return reply

    def send_end(self, producer: InitProducerIdResult, *, commit: bool = True, version: int = 0) -> Token:
        """Without waiting for the answer."""
        return self.send(
            EndTransaction(
                transactional_id="x",
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                committed=commit,
                version=version,
            )
        )

    # ── the broker ──────────────────────────────────────────────────────────────────────────────
    def markers(self) -> SendMarkers:
        """The one action that was released and not yet taken."""
        (action,) = self.actions
        self.actions.clear()
        assert isinstance(action, SendMarkers)
        return action

    def write_markers(self) -> SendMarkers:
        markers = self.markers()
        assert self.report(markers).completed
        return markers

    def report(self, markers: SendMarkers) -> MarkersWrittenResult:
        request = MarkersWritten(
            transactional_id=markers.transactional_id,
            producer_id=markers.producer_id,
            producer_epoch=markers.producer_epoch,
        )
        return self.ask(request, MarkersWrittenResult)

    def allocation(self) -> AllocateProducerId:
        (action,) = self.actions
        self.actions.clear()
        assert isinstance(action, AllocateProducerId)
        return action

    def describe(self, name: str = "x") -> DescribeTransactionResult:
        return self.ask(DescribeTransaction(name), DescribeTransactionResult)

    def state(self, name: str = "x") -> str:
        return self.describe(name).transaction_state
