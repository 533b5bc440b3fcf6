"""The state machine of a transactional producer, as scenarios: what it asks, and what answers make of it."""

from __future__ import annotations

import random
from typing import TypeVar

import pytest

from nilometer.client.group.group_exchange import GroupMetadata, MemberIdentity, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.transaction_manager import (
    AbortableTransactionError,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    EndTransaction,
    FatalTransactionError,
    InitProducerId,
    ProducerFenced,
    ProducerIdentity,
    ProducerState,
    Step,
    TransactionManager,
)
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T", bound=Step)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = GroupMetadata("g", MemberIdentity("m", 3))
OFFSETS = {TopicPartition("in", 0): OffsetAndMetadata(5)}
FIRST = ProducerIdentity(7, 0)


class Scenario:
    """One producer, and a cluster that answers as the scenario says."""

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


def ready(version: int) -> Scenario:
    scenario = Scenario(version)
    scenario.manager.begin_init()
    scenario.initialize()
    return scenario


def in_transaction(version: int) -> Scenario:
    scenario = ready(version)
    scenario.manager.begin()
    return scenario


versions = pytest.mark.parametrize("version", [0, 1, 2])


@versions
def test_transactions_follow_one_another(version: int) -> None:
    scenario = ready(version)
    for number, commit in enumerate((True, False, True)):
        assert scenario.manager.identity == ProducerIdentity(7, number if version == 2 else 0)
        scenario.manager.begin()
        scenario.sends_to(A, B)
        scenario.ends(commit=commit)
        assert scenario.manager.state is ProducerState.READY
        assert not scenario.manager.may_send(A)


def test_version_1_sends_nothing_to_a_partition_before_it_is_added() -> None:
    scenario = in_transaction(1)
    assert scenario.manager.on_appended(A)
    assert not scenario.manager.on_appended(A), "it is known already"
    assert not scenario.manager.may_send(A)
    step = scenario.asks(AddPartitions, all_sent=False)
    assert (step.identity, step.partitions) == (FIRST, (A,))
    assert scenario.manager.on_appended(B)
    scenario.manager.on_partitions_added(step.partitions)
    assert scenario.manager.may_send(A) and not scenario.manager.may_send(B)
    assert scenario.asks(AddPartitions).partitions == (B,)


def test_version_2_leaves_it_to_the_brokers_to_add_partitions() -> None:
    scenario = in_transaction(2)
    scenario.manager.on_appended(A)
    assert scenario.manager.may_send(A)
    scenario.asks_nothing()
    pending = scenario.manager.add_offsets(GROUP, OFFSETS)
    step = scenario.asks(CommitOffsets)
    assert (step.pending, step.version) == (pending, 2)


@versions
def test_the_end_waits_until_every_batch_is_acknowledged(version: int) -> None:
    scenario = in_transaction(version)
    scenario.sends_to(A)
    scenario.manager.begin_end(commit=True)
    scenario.asks_nothing(all_sent=False)
    assert scenario.asks(EndTransaction, all_sent=True).committed
    with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
        scenario.manager.check_in_transaction("send")


@versions
def test_an_empty_transaction_is_ended_without_its_coordinator(version: int) -> None:
    scenario = in_transaction(version)
    scenario.manager.begin_end(commit=True)
    assert scenario.asks(EndTransaction).is_empty
    scenario.manager.on_ended(None, version)
    assert (scenario.manager.state, scenario.manager.identity) == (ProducerState.READY, FIRST)


@pytest.mark.parametrize("version", [1, 2])
def test_offsets_become_part_of_the_transaction_before_it_ends(version: int) -> None:
    scenario = in_transaction(version)
    pending = scenario.manager.add_offsets(GROUP, OFFSETS)
    scenario.manager.begin_end(commit=True)
    if version == 1:
        assert scenario.asks(AddOffsets).pending is pending
        scenario.manager.on_group_added(pending)
    step = scenario.asks(CommitOffsets)
    assert step.offsets == OFFSETS
    assert scenario.manager.on_step_failed(step, ErrorCode.coordinator_load_in_progress, ""), "ask again"
    assert scenario.asks(CommitOffsets).offsets == OFFSETS
    assert not pending.is_done
    scenario.manager.on_offsets_committed(pending, OFFSETS)
    assert pending.is_done
    assert scenario.asks(EndTransaction).committed


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
    scenario = in_transaction(2)
    scenario.manager.add_offsets(GROUP, OFFSETS)
    assert not scenario.manager.on_step_failed(scenario.asks(CommitOffsets), code, "why")
    with pytest.raises(AbortableTransactionError, match="why"):
        scenario.manager.begin_end(commit=True)
    scenario.asks_nothing()
    scenario.ends(commit=False)
    scenario.manager.begin()


def test_a_failed_batch_aborts_and_with_version_1_the_next_transaction_gets_another_epoch() -> None:
    scenario = in_transaction(1)
    scenario.sends_to(A)
    scenario.manager.on_batch_failed(ErrorCode.request_timed_out, "t-0")
    assert scenario.manager.drops_unsent
    with pytest.raises(AbortableTransactionError):
        scenario.manager.check_in_transaction("send")
    scenario.manager.begin_end(commit=False)
    scenario.asks(EndTransaction)
    scenario.answer_end()
    assert scenario.manager.state is ProducerState.INITIALIZING
    assert scenario.asks(InitProducerId).identity == FIRST, (
        "the next epoch of this one is asked for (KIP-360)"
    )
    scenario.initialize(ProducerIdentity(7, 1))
    assert scenario.manager.state is ProducerState.READY


def test_a_batch_that_fails_while_the_transaction_is_committed_stops_the_commit() -> None:
    scenario = in_transaction(2)
    scenario.sends_to(A)
    scenario.manager.begin_end(commit=True)
    scenario.manager.on_batch_failed(ErrorCode.invalid_record, "")
    scenario.asks_nothing()
    assert scenario.manager.state is ProducerState.ABORTABLE_ERROR
    scenario.ends(commit=False)


@pytest.mark.parametrize("code", [ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch])
def test_a_coordinator_that_knows_a_newer_epoch_fences_the_producer_for_good(code: ErrorCode) -> None:
    scenario = in_transaction(1)
    scenario.manager.on_appended(A)
    assert not scenario.manager.on_step_failed(scenario.asks(AddPartitions), code, "")
    for call in (
        lambda: scenario.manager.begin_end(commit=True),
        lambda: scenario.manager.begin_end(commit=False),
        scenario.manager.begin,
        scenario.manager.raise_error,
    ):
        with pytest.raises(ProducerFenced):
            call()
    scenario.asks_nothing()
    assert not scenario.manager.may_send(A)


def test_an_old_epoch_that_a_partition_refuses_is_fatal_only_if_the_coordinator_says_so() -> None:
    scenario = in_transaction(2)
    scenario.sends_to(A)
    scenario.manager.on_batch_failed(ErrorCode.invalid_producer_epoch, "")
    assert scenario.manager.state is ProducerState.ABORTABLE_ERROR
    scenario.manager.begin_end(commit=False)
    assert not scenario.manager.on_step_failed(scenario.asks(EndTransaction), ErrorCode.producer_fenced, "")
    with pytest.raises(ProducerFenced):
        scenario.manager.raise_error()


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
    scenario = in_transaction(2)
    scenario.sends_to(A)
    scenario.manager.begin_end(commit=True)
    assert not scenario.manager.on_step_failed(scenario.asks(EndTransaction), code, "")
    with pytest.raises(FatalTransactionError) as failed:
        scenario.manager.begin()
    assert (failed.value.code, failed.value.retriable) == (code, False)


def test_a_step_without_an_answer_is_repeated_before_the_transaction_is_aborted() -> None:
    """Else it could arrive behind the end, and open a transaction that no coordinator ends."""
    scenario = in_transaction(1)
    scenario.manager.on_appended(A)
    step = scenario.asks(AddPartitions)
    scenario.manager.on_appended(B)
    scenario.manager.begin_end(commit=False)
    assert scenario.manager.on_step_failed(step, ErrorCode.network_exception, "")
    again = scenario.asks(AddPartitions)
    assert again.partitions == (A,), "B was never asked for"
    scenario.manager.on_partitions_added(again.partitions)
    assert not scenario.asks(EndTransaction).is_empty


@pytest.mark.parametrize("version", [1, 2])
def test_a_step_that_was_refused_for_now_does_not_keep_an_abort_waiting(version: int) -> None:
    """The topic was deleted: the answer will be the same for ever."""
    scenario = in_transaction(version)
    if version == 1:
        scenario.manager.on_appended(A)
        step: Step = scenario.asks(AddPartitions)
    else:
        scenario.manager.add_offsets(GROUP, OFFSETS)
        step = scenario.asks(CommitOffsets)
    code = ErrorCode.unknown_topic_or_partition
    assert scenario.manager.on_step_failed(step, code, "")
    step = scenario.asks(type(step))
    scenario.manager.begin_end(commit=False)
    assert scenario.manager.on_step_failed(step, code, "")
    scenario.asks(EndTransaction)


def test_what_was_never_asked_for_is_dropped_by_an_abort() -> None:
    scenario = in_transaction(1)
    scenario.manager.on_appended(A)
    scenario.manager.add_offsets(GROUP, OFFSETS)
    scenario.manager.begin_end(commit=False)
    assert scenario.asks(EndTransaction).is_empty


def test_a_producer_changes_over_to_version_2_between_two_transactions() -> None:
    scenario = in_transaction(1)
    scenario.version = 2
    scenario.sends_to(A)
    assert not scenario.manager.adds_implicitly, "the open transaction stays as it is"
    scenario.manager.begin_end(commit=True)
    assert scenario.asks(EndTransaction).version == 1
    scenario.answer_end()
    assert scenario.asks(InitProducerId).identity == FIRST
    scenario.initialize(ProducerIdentity(7, 1))
    scenario.manager.begin()
    scenario.sends_to(A)
    scenario.ends(commit=True)
    assert scenario.manager.identity == ProducerIdentity(7, 2)


def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    scenario = in_transaction(2)
    scenario.sends_to(A)
    scenario.manager.begin_end(commit=True)
    scenario.asks(EndTransaction)
    scenario.manager.on_ended(ProducerIdentity(8, 0), 2)
    assert scenario.manager.identity == ProducerIdentity(8, 0)


@pytest.mark.parametrize("seed", range(200))
def test_any_order_of_calls_and_answers_keeps_the_rules(seed: int) -> None:
    """Replay one with: pytest tests/unit/client/test_transaction_manager.py -k 'any_order and SEED'."""
    rng = random.Random(seed)
    scenario = Scenario(rng.choice((1, 2)))
    manager = scenario.manager
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
                _answer(scenario, step)
        assert manager.state is not ProducerState.FATAL_ERROR
        assert (manager.error is not None) == (manager.state is ProducerState.ABORTABLE_ERROR)
        if manager.state is ProducerState.READY:
            assert not manager.may_send(A) and not manager.may_send(B)
    assert not committed_with_error


def _answer(scenario: Scenario, step: Step) -> None:
    match step:
        case InitProducerId(identity=identity):
            epoch = identity.producer_epoch + 1 if identity.is_known else 0
            scenario.manager.on_initialized(ProducerIdentity(7, epoch), scenario.version)
        case AddPartitions(partitions=partitions):
            scenario.manager.on_partitions_added(partitions)
        case AddOffsets(pending=pending):
            scenario.manager.on_group_added(pending)
        case CommitOffsets(pending=pending, offsets=offsets):
            scenario.manager.on_offsets_committed(pending, offsets)
        case EndTransaction(is_empty=is_empty):
            if is_empty:
                scenario.manager.on_ended(None, scenario.version)
            else:
                scenario.answer_end()
