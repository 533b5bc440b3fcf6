"""The state machine of a transactional producer, as stories: what it asks, and what answers make of it."""

from __future__ import annotations

import random
from typing import TypeVar

import pytest

from nilometer.client.group.group_exchange import GroupMetadata, MemberIdentity, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.transactions.transaction_errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFenced,
)
from nilometer.client.transactions.transaction_manager import ProducerState, TransactionManager
from nilometer.client.transactions.transaction_steps import (
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    InitProducerId,
    ProducerIdentity,
    Step,
)
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T", bound=Step)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("g", MemberIdentity("m", 3))
OFFSETS = {TopicPartition("in", 0): OffsetAndMetadata(5)}
FIRST = ProducerIdentity(7, 0)


class Story:
    """One producer, and a cluster that answers as the story says."""

    def __init__(self, version: int) -> None:
        self.version = version
        """The cluster's ``transaction.version``."""
        self.manager = TransactionManager("x", 60_000)

    def asks(self, kind: type[T], *, all_sent: bool = True) -> T:
        step = self.manager.next_step(all_sent=all_sent)
        assert isinstance(step, kind), step
        self.manager.on_asking(step)
        return step

    def asks_nothing(self, *, all_sent: bool = True) -> None:
        assert self.manager.next_step(all_sent=all_sent) is None

    def initialize(self, identity: ProducerIdentity = FIRST) -> None:
        self.asks(InitProducerId)
        self.manager.on_initialized(identity, self.version)

    def sends_to(self, *partitions: TopicPartition) -> None:
        """Records that have been acknowledged."""
        for partition in partitions:
            self.manager.on_appended(partition)
        if not self.manager.adds_implicitly:
            self.manager.on_partitions_added(self.asks(AddPartitions).partitions)
        assert all(map(self.manager.may_send, partitions))

    def ends(self, *, commit: bool) -> None:
        self.manager.begin_end(commit=commit)
        step = self.asks(EndTransaction)
        assert (step.committed, step.is_empty) == (commit, False)
        self.answer_end()

    def answer_end(self) -> None:
        has = self.manager.identity
        bumped = ProducerIdentity(has.producer_id, has.producer_epoch + 1)
        self.manager.on_ended(bumped if self.manager.adds_implicitly else None, self.version)


def ready(version: int) -> Story:
    story = Story(version)
    story.manager.begin_init()
    story.initialize()
    return story


def in_transaction(version: int) -> Story:
    story = ready(version)
    story.manager.begin()
    return story


versions = pytest.mark.parametrize("version", [0, 1, 2])


@versions
def test_transactions_follow_one_another(version: int) -> None:
    story = ready(version)
    for number, commit in enumerate((True, False, True)):
        assert story.manager.identity == ProducerIdentity(7, number if version == 2 else 0)
        story.manager.begin()
        story.sends_to(A, B)
        story.ends(commit=commit)
        assert story.manager.state is ProducerState.READY
        assert not story.manager.may_send(A)


def test_version_1_sends_nothing_to_a_partition_before_it_is_added() -> None:
    story = in_transaction(1)
    assert story.manager.on_appended(A)
    assert not story.manager.on_appended(A), "it is known already"
    assert not story.manager.may_send(A)
    step = story.asks(AddPartitions, all_sent=False)
    assert (step.identity, step.partitions) == (FIRST, (A,))
    assert story.manager.on_appended(B)
    story.manager.on_partitions_added(step.partitions)
    assert story.manager.may_send(A) and not story.manager.may_send(B)
    assert story.asks(AddPartitions).partitions == (B,)


def test_version_2_leaves_it_to_the_brokers_to_add_partitions() -> None:
    story = in_transaction(2)
    story.manager.on_appended(A)
    assert story.manager.may_send(A)
    story.asks_nothing()
    pending = story.manager.add_offsets(GROUP, OFFSETS)
    step = story.asks(CommitOffsets)
    assert (step.pending, step.version) == (pending, 2)


@versions
def test_the_end_waits_until_every_batch_is_acknowledged(version: int) -> None:
    story = in_transaction(version)
    story.sends_to(A)
    story.manager.begin_end(commit=True)
    story.asks_nothing(all_sent=False)
    assert story.asks(EndTransaction, all_sent=True).committed
    with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
        story.manager.check_in_transaction("send")


@versions
def test_an_empty_transaction_is_ended_without_its_coordinator(version: int) -> None:
    story = in_transaction(version)
    story.manager.begin_end(commit=True)
    assert story.asks(EndTransaction).is_empty
    story.manager.on_ended(None, version)
    assert (story.manager.state, story.manager.identity) == (ProducerState.READY, FIRST)


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_become_part_of_the_transaction_before_it_ends(version: int) -> None:
    story = in_transaction(version)
    pending = story.manager.add_offsets(GROUP, OFFSETS)
    story.manager.begin_end(commit=True)
    if version == 1:
        assert story.asks(AddOffsets).pending is pending
        story.manager.on_group_added(pending)
    step = story.asks(CommitOffsets)
    assert step.offsets == OFFSETS
    assert story.manager.on_step_failed(step, ErrorCode.coordinator_load_in_progress, ""), "ask again"
    assert story.asks(CommitOffsets).offsets == OFFSETS
    assert not pending.is_done
    story.manager.on_offsets_committed(pending, OFFSETS)
    assert pending.is_done
    assert story.asks(EndTransaction).committed


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.stale_member_epoch,
        ErrorCode.group_authorization_failed,
        ErrorCode.transaction_abortable,
    ],
)
def test_offsets_that_are_refused_can_be_aborted_with_their_transaction(code: ErrorCode) -> None:
    story = in_transaction(2)
    story.manager.add_offsets(GROUP, OFFSETS)
    assert not story.manager.on_step_failed(story.asks(CommitOffsets), code, "why")
    with pytest.raises(AbortableTransactionError, match="why"):
        story.manager.begin_end(commit=True)
    story.asks_nothing()
    story.ends(commit=False)
    story.manager.begin()


def test_a_failed_batch_aborts_and_with_version_1_the_next_transaction_gets_another_epoch() -> None:
    story = in_transaction(1)
    story.sends_to(A)
    story.manager.on_batch_failed(ErrorCode.request_timed_out, "t-0")
    assert story.manager.drops_unsent
    with pytest.raises(AbortableTransactionError):
        story.manager.check_in_transaction("send")
    story.manager.begin_end(commit=False)
    story.asks(EndTransaction)
    story.answer_end()
    assert story.manager.state is ProducerState.INITIALIZING
    assert story.asks(InitProducerId).identity == FIRST, "the next epoch of this one is asked for (KIP-360)"
    story.initialize(ProducerIdentity(7, 1))
    assert story.manager.state is ProducerState.READY


def test_a_batch_that_fails_while_the_transaction_is_committed_stops_the_commit() -> None:
    story = in_transaction(2)
    story.sends_to(A)
    story.manager.begin_end(commit=True)
    story.manager.on_batch_failed(ErrorCode.invalid_record, "")
    story.asks_nothing()
    assert story.manager.state is ProducerState.ABORTABLE_ERROR
    story.ends(commit=False)


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_a_coordinator_that_knows_a_newer_epoch_fences_the_producer_for_good(code: ErrorCode) -> None:
    story = in_transaction(1)
    story.manager.on_appended(A)
    assert not story.manager.on_step_failed(story.asks(AddPartitions), code, "")
    for call in (
        lambda: story.manager.begin_end(commit=True),
        lambda: story.manager.begin_end(commit=False),
        story.manager.begin,
        story.manager.raise_error,
    ):
        with pytest.raises(ProducerFenced):
            call()
    story.asks_nothing()
    assert not story.manager.may_send(A)


def test_an_old_epoch_that_a_partition_refuses_is_fatal_only_if_the_coordinator_says_so() -> None:
    story = in_transaction(2)
    story.sends_to(A)
    story.manager.on_batch_failed(ErrorCode.invalid_producer_epoch, "")
    assert story.manager.state is ProducerState.ABORTABLE_ERROR
    story.manager.begin_end(commit=False)
    assert not story.manager.on_step_failed(story.asks(EndTransaction), ErrorCode.producer_fenced, "")
    with pytest.raises(ProducerFenced):
        story.manager.raise_error()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unsupported_version,
    ],
)
def test_other_errors_of_an_end_are_fatal(code: ErrorCode) -> None:
    story = in_transaction(2)
    story.sends_to(A)
    story.manager.begin_end(commit=True)
    assert not story.manager.on_step_failed(story.asks(EndTransaction), code, "")
    with pytest.raises(FatalTransactionError) as failed:
        story.manager.begin()
    assert (failed.value.code, failed.value.retriable) == (code, False)


def test_a_step_without_an_answer_is_repeated_before_the_transaction_is_aborted() -> None:
    """Else it could arrive behind the end, and open a transaction that nobody ends."""
    story = in_transaction(1)
    story.manager.on_appended(A)
    step = story.asks(AddPartitions)
    story.manager.on_appended(B)
    story.manager.begin_end(commit=False)
    assert story.manager.on_step_failed(step, ErrorCode.network_exception, "")
    again = story.asks(AddPartitions)
    assert again.partitions == (A,), "B was never asked for"
    story.manager.on_partitions_added(again.partitions)
    assert not story.asks(EndTransaction).is_empty


def test_what_was_never_asked_for_is_dropped_by_an_abort() -> None:
    story = in_transaction(1)
    story.manager.on_appended(A)
    story.manager.add_offsets(GROUP, OFFSETS)
    story.manager.begin_end(commit=False)
    assert story.asks(EndTransaction).is_empty


def test_a_producer_changes_over_to_version_2_between_two_transactions() -> None:
    story = in_transaction(1)
    story.version = 2
    story.sends_to(A)
    assert not story.manager.adds_implicitly, "the open transaction stays as it is"
    story.manager.begin_end(commit=True)
    assert story.asks(EndTransaction).version == 1
    story.answer_end()
    assert story.asks(InitProducerId).identity == FIRST
    story.initialize(ProducerIdentity(7, 1))
    story.manager.begin()
    story.sends_to(A)
    story.ends(commit=True)
    assert story.manager.identity == ProducerIdentity(7, 2)


def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    story = in_transaction(2)
    story.sends_to(A)
    story.manager.begin_end(commit=True)
    story.asks(EndTransaction)
    story.manager.on_ended(ProducerIdentity(8, 0), 2)
    assert story.manager.identity == ProducerIdentity(8, 0)


@pytest.mark.parametrize("seed", range(200))
def test_any_order_of_calls_and_answers_keeps_the_rules(seed: int) -> None:
    """Replay one with: pytest tests/client/test_transaction_manager.py -k 'any_order and SEED'."""
    rng = random.Random(seed)
    story = Story(rng.choice((1, 2)))
    manager = story.manager
    manager.begin_init()
    committed_with_error = failed = False
    for _ in range(300):
        state = manager.state
        match rng.randrange(6):
            case 0 if state is ProducerState.READY:
                manager.begin()
                failed = False
            case 1 if state is ProducerState.IN_TRANSACTION:
                manager.on_appended(rng.choice((A, B)))
            case 2 if state is ProducerState.IN_TRANSACTION:
                manager.add_offsets(GROUP, OFFSETS)
            case 3 if state in (ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR):
                commit = state is ProducerState.IN_TRANSACTION and rng.random() < 0.5
                manager.begin_end(commit=commit)
            case 4 if state in (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING):
                if rng.random() < 0.2:
                    manager.on_batch_failed(ErrorCode.request_timed_out, "")
                    failed = True
            case _:
                step = manager.next_step(all_sent=True)
                if step is None:
                    continue
                manager.on_asking(step)
                if rng.random() < 0.3:
                    assert manager.on_step_failed(step, ErrorCode.network_exception, "")
                    continue
                if isinstance(step, EndTransaction):
                    committed_with_error |= step.committed and failed
                _answer(story, step)
        assert manager.state is not ProducerState.FATAL_ERROR
        assert (manager.error is not None) == (manager.state is ProducerState.ABORTABLE_ERROR)
        if manager.state is ProducerState.READY:
            assert not manager.may_send(A) and not manager.may_send(B)
    assert not committed_with_error


def _answer(story: Story, step: Step) -> None:
    match step:
        case InitProducerId(identity=identity):
            epoch = identity.producer_epoch + 1 if identity.is_known else 0
            story.manager.on_initialized(ProducerIdentity(7, epoch), story.version)
        case AddPartitions(partitions=partitions):
            story.manager.on_partitions_added(partitions)
        case AddOffsets(pending=pending):
            story.manager.on_group_added(pending)
        case CommitOffsets(pending=pending, offsets=offsets):
            story.manager.on_offsets_committed(pending, offsets)
        case EndTransaction(is_empty=is_empty):
            if is_empty:
                story.manager.on_ended(None, story.version)
            else:
                story.answer_end()
