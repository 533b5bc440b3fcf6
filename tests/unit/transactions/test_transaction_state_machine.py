"""A transaction shard under any order of requests, repeats, lost answers, time-outs and coordinator moves.

The model knows no transitions. It watches what leaves the shard (released answers and markers) and what the
committed log says, and holds them to what a reader of the topics relies on.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from transaction_harness import TIMEOUT_MS, A, B, C, TransactionWorld

from nilometer.coordinators import Token
from nilometer.storage.names import TopicPartition
from nilometer.transactions.records import TransactionRecord, decode_record, encode_record
from nilometer.transactions.requests import (
    AddPartitions,
    AddPartitionsResult,
    EndTransaction,
    EndTransactionResult,
    InitProducerId,
    InitProducerIdResult,
    MarkersWritten,
    TransactionRequest,
    TransactionResult,
)
from nilometer.transactions.shard import AllocateProducerId, SendMarkers
from nilometer.transactions.transaction import Transaction, TransactionState
from nilometer.wire.errors import ErrorCode
from support.properties import examples

State = TransactionState
Identity = tuple[int, int]
"""Producer id and epoch."""
BACK = st.sampled_from((0, 0, 0, 1, 2))
AFTER_PREPARED = {
    State.PREPARE_COMMIT: (State.COMPLETE_COMMIT,),
    State.PREPARE_ABORT: (State.COMPLETE_ABORT,),
}


class TransactionShardMachine(RuleBasedStateMachine):
    @initialize(version=st.sampled_from((0, 2)), epoch=st.sampled_from((0, 32_763, 32_766)))
    def begin(self, version: int, epoch: int) -> None:
        """Near the end of the epochs every path of a rotation is met within a few steps."""
        kept = Transaction(producer_id=7, producer_epoch=epoch, timeout_ms=TIMEOUT_MS, updated_ms=0)
        self.world = TransactionWorld(
            version=version,
            log=[encode_record(TransactionRecord("x", kept))],
        )
        self.world.commit()
        self.world.commits_at_once = False
        self.version = version
        self.requests: dict[Token, TransactionRequest] = {}
        self.judged: set[Token] = set()
        self.given: list[Identity] = [(7, epoch)]
        """In the order in which producers got them; the last is the one that is valid."""
        self.last: TransactionRequest | None = None
        self.markers: list[SendMarkers] = []
        """That left the shard."""

    def ask(self, request: TransactionRequest) -> None:
        self.last = request
        self.requests[self.world.send(request)] = request

    # ── producers ───────────────────────────────────────────────────────────────────────────────
    def producer(self, back: int) -> Identity:
        """The one that is valid, or one ``back`` steps behind it."""
        return self.given[max(0, len(self.given) - 1 - back)]

    @rule(back=BACK, goes_on=st.booleans())
    def init(self, back: int, goes_on: bool) -> None:
        producer_id, epoch = self.producer(back) if goes_on else (-1, -1)
        self.ask(
            InitProducerId(
                transactional_id="x",
                transaction_timeout_ms=TIMEOUT_MS,
                producer_id=producer_id,
                producer_epoch=epoch,
                new_producer_id=self.world.new_producer_id(),
            )
        )

    @rule(back=BACK, partition=st.sampled_from((A, B, C)))
    def add(self, back: int, partition: TopicPartition) -> None:
        producer_id, epoch = self.producer(back)
        self.ask(
            AddPartitions(
                transactional_id="x",
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=frozenset({partition}),
                version=self.version,
            )
        )

    @rule(back=BACK, commit=st.booleans())
    def end(self, back: int, commit: bool) -> None:
        producer_id, epoch = self.producer(back)
        self.ask(
            EndTransaction(
                transactional_id="x",
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
                version=self.version,
                new_producer_id=self.world.new_producer_id(),
            )
        )

    @rule()
    def repeat(self) -> None:
        if self.last is not None:
            self.ask(self.last)

    # ── the broker ──────────────────────────────────────────────────────────────────────────────
    @rule()
    def settle(self) -> None:
        """All is committed, and what the shard asked for is done."""
        self.world.commit()
        taken, self.world.actions = self.world.actions, []
        for action in taken:
            if isinstance(action, AllocateProducerId):
                new_producer_id = self.world.new_producer_id()
                self.ask(replace(action.request, new_producer_id=new_producer_id))
            else:
                self._check_markers(action)
                self.markers.append(action)
                self.report(0)
        self.world.commit()

    @precondition(lambda self: self.markers)
    @rule(back=BACK)
    def report(self, back: int) -> None:
        """Late or twice, too."""
        markers = self.markers[max(0, len(self.markers) - 1 - back)]
        request = MarkersWritten(
            transactional_id="x", producer_id=markers.producer_id, producer_epoch=markers.producer_epoch
        )
        self.requests[self.world.send(request)] = request

    @rule(share=st.floats(0, 1))
    def commit(self, share: float) -> None:
        uncommitted = len(self.world.log) - self.world.committed
        self.world.commit(self.world.committed + round(share * uncommitted))

    @rule(loses=st.booleans())
    def fail_over(self, loses: bool) -> None:
        self.world.fail_over(loses_uncommitted=loses)

    @rule(ms=st.sampled_from((1, TIMEOUT_MS // 2, 2 * TIMEOUT_MS)))
    def advance(self, ms: int) -> None:
        self.world.advance(ms)

    # ── what is relied on ───────────────────────────────────────────────────────────────────────
    def committed(self) -> list[Transaction]:
        records = [decode_record(*each) for each in self.world.log[: self.world.committed]]
        return [each.transaction for each in records if each is not None and each.transaction is not None]

    @invariant()
    def a_decision_is_final(self) -> None:
        """In particular: a committed transaction is never aborted."""
        kept = self.committed()
        for before, after in pairwise(kept):
            if before.state in AFTER_PREPARED:
                assert after.state in AFTER_PREPARED[before.state], (before, after)
            if after.state is State.COMPLETE_COMMIT:
                assert before.state is State.PREPARE_COMMIT, (before, after)

    @invariant()
    def epochs_never_fall_and_producer_ids_are_not_taken_up_again(self) -> None:
        kept = self.committed()
        for before, after in pairwise(kept):
            if before.producer_id == after.producer_id:
                assert before.producer_epoch <= after.producer_epoch <= 32_767, (before, after)
        ids = [each.producer_id for each in kept]
        changes = [second for first, second in pairwise(ids) if first != second]
        assert len(changes) == len(set(changes)), ids

    def _check_markers(self, action: SendMarkers) -> None:
        """They leave only for a decision that is committed, and say what was decided."""
        decided = [each for each in self.committed() if each.state in AFTER_PREPARED]
        assert any(
            (each.producer_id, each.producer_epoch) == (action.producer_id, action.producer_epoch)
            and (each.state is State.PREPARE_COMMIT) is action.committed
            and each.ordered_partitions == action.partitions
            for each in decided
        ), action

    @invariant()
    def one_producer_at_a_time(self) -> None:
        """Answers are judged in the order of their requests, which is that of the shard's state."""
        for token in sorted(self.world.replies):
            if token not in self.judged:
                self.judged.add(token)
                self._judge(self.requests[token], self.world.replies[token])

    def _judge(self, request: TransactionRequest, reply: TransactionResult) -> None:
        match request, reply:
            case InitProducerId(), InitProducerIdResult(ErrorCode.none, producer_id, epoch):
                self._judge_given(request, (producer_id, epoch))
            case AddPartitions(), AddPartitionsResult(ErrorCode.none):
                assert self._is_valid(request.producer_id, request.producer_epoch), request
            case EndTransaction(), EndTransactionResult(ErrorCode.none, producer_id, epoch):
                is_repeat = (producer_id, epoch) == self.given[-1]
                assert is_repeat or self._is_valid(request.producer_id, request.producer_epoch), request
                if (producer_id, epoch) not in self.given:
                    self.given.append((producer_id, epoch))
            case _:
                pass

    def _judge_given(self, request: InitProducerId, identity: Identity) -> None:
        if identity in self.given:
            assert request.producer_id != -1, "a producer that begins again gets what none had"
            assert identity == self.given[-1], "a repeated request does not bring back a fenced producer"
            return
        if request.producer_id != -1:
            known = (request.producer_id, request.producer_epoch)
            assert known in self.given, "a bump goes on from what was given"
        self.given.append(identity)

    def _is_valid(self, producer_id: int, epoch: int) -> bool:
        """No producer has been given a later identity."""
        return (producer_id, epoch) == self.given[-1]


TransactionShardMachine.TestCase.settings = examples(80, stateful_step_count=30)
TestTransactionShard = TransactionShardMachine.TestCase
