"""Faults of transactions: of their coordinator, of the logs that they are in, and of their readers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from msgspec import structs
from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.coordinator_shell import CoordinatorShell
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.transactions.markers import MarkerSender, Shell
from nilometer.broker.transactions.verification import Asker, TransactionVerification
from nilometer.client.consumer.fetch_exchange import FetchedRecords
from nilometer.coordinators import Effects
from nilometer.groups.offsets import Offsets
from nilometer.groups.records import OffsetCommitKey, OffsetCommitValue
from nilometer.groups.requests import OffsetFetch
from nilometer.simulation.plan import Kind
from nilometer.simulation.workload.transactions import V1, V2, TransactionPlan
from nilometer.storage.cleaning.batch_cleaner import TransactionTracker
from nilometer.storage.names import TXN_INDEX_SUFFIX
from nilometer.storage.producers import (
    AppendOrigin,
    CompletedTxn,
    ProducerStateEntry,
    ProducerStateManager,
    ProducerUpdates,
)
from nilometer.storage.segments.segment import LogSegment
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.transactions import decisions, shard
from nilometer.transactions.decisions import Decision
from nilometer.transactions.records import TransactionRecord
from nilometer.transactions.requests import EndTransaction, InitProducerId, InitProducerIdResult
from nilometer.transactions.shard import SendMarkers, TransactionShard, Turn
from nilometer.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState
from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.records import EndTxnMarker

PLAN = TransactionPlan(version=V1, timeout_ms=3_000, gap_s=0.2)
PLAN_2 = replace(PLAN, version=V2)


# ── the coordinator ─────────────────────────────────────────────────────────────────────────────
def forget_the_prepared(patch: Patch) -> None:
    on_loaded = TransactionShard.on_loaded

    def without_markers(
        self: TransactionShard, now_ms: int, wall_ms: int
    ) -> Generator[int, None, shard.Effects]:
        loaded = yield from on_loaded(self, now_ms, wall_ms)
        return structs.replace(loaded, actions=())

    patch.setattr(TransactionShard, "on_loaded", without_markers)


def abort_the_prepared(patch: Patch) -> None:
    on_loaded = TransactionShard.on_loaded

    def with_aborts(self: TransactionShard, now_ms: int, wall_ms: int) -> Generator[int, None, shard.Effects]:
        loaded = yield from on_loaded(self, now_ms, wall_ms)
        aborts = tuple(
            structs.replace(action, committed=False) if isinstance(action, SendMarkers) else action
            for action in loaded.actions
        )
        return structs.replace(loaded, actions=aborts)

    patch.setattr(TransactionShard, "on_loaded", with_aborts)


Released = Effects[object, object, object]


def mark_before_it_is_committed(patch: Patch) -> None:
    release = CoordinatorShell._release_when_committed

    def at_once(self: Shell, effects: Released) -> None:
        self._act(effects.actions)  # type: ignore[arg-type]
        release(self, structs.replace(effects, actions=()))  # type: ignore[arg-type]

    patch.setattr(CoordinatorShell, "_release_when_committed", at_once)


def answer_before_it_is_committed(patch: Patch) -> None:
    release = CoordinatorShell._release_when_committed

    def at_once(self: Shell, effects: Released) -> None:
        if self._kind.name == "transaction":
            self._give(effects.results)  # type: ignore[arg-type]
            effects = structs.replace(effects, replies=())
        release(self, effects)  # type: ignore[arg-type]

    patch.setattr(CoordinatorShell, "_release_when_committed", at_once)


def keep_what_is_open_in_memory(patch: Patch) -> None:
    keep = TransactionShard._keep

    def keep_ends(self: TransactionShard, turn: Turn, transactional_id: str, after: Transaction) -> None:
        if after.state is TransactionState.ONGOING:
            self.replay(TransactionRecord(transactional_id, after))
        else:
            keep(self, turn, transactional_id, after)

    patch.setattr(TransactionShard, "_keep", keep_ends)


def mark_one_partition(patch: Patch) -> None:
    send = MarkerSender.send

    def send_one(self: MarkerSender, sender: Shell, action: SendMarkers) -> None:
        send(self, sender, structs.replace(action, partitions=action.partitions[:1]))

    patch.setattr(MarkerSender, "send", send_one)


def _fence_without_a_bump(
    transaction: Transaction, version: int, new_producer_id: int | None, wall_ms: int
) -> Transaction:
    return transaction.prepared(
        commit=False, version=0, next_producer_id=NO_PRODUCER_ID, fences=False, wall_ms=wall_ms
    )


def time_out_without_a_new_epoch(patch: Patch) -> None:
    patch.setattr(shard, "fence", _fence_without_a_bump)


def give_the_epoch_of_the_last_producer(patch: Patch) -> None:
    def same_epoch(transaction: Transaction, request: InitProducerId, wall_ms: int) -> Decision:
        epoch, timeout_ms = transaction.producer_epoch, request.transaction_timeout_ms
        after = transaction.with_epoch(epoch, NO_EPOCH, timeout_ms, wall_ms)
        return Decision(InitProducerIdResult(ErrorCode.none, after.producer_id, epoch), after)

    patch.setattr(decisions, "fence", _fence_without_a_bump)
    patch.setattr(decisions, "_next_epoch", same_epoch)


def end_both_ways(patch: Patch) -> None:
    send = MarkerSender.send

    def send_both(self: MarkerSender, sender: Shell, action: SendMarkers) -> None:
        send(self, sender, action)
        if action.partitions:
            send(self, sender, structs.replace(action, committed=not action.committed))

    patch.setattr(MarkerSender, "send", send_both)


def end_again(patch: Patch) -> None:
    end = decisions._end_with_bump

    def as_a_new_end(transaction: Transaction, request: EndTransaction, wall_ms: int) -> Decision:
        if transaction.state is TransactionState.COMPLETE_ABORT and not request.committed:
            request = structs.replace(request, producer_epoch=transaction.producer_epoch)
        return end(transaction, request, wall_ms)

    patch.setattr(decisions, "_end_with_bump", as_a_new_end)


# ── logs and their leaders ──────────────────────────────────────────────────────────────────────
def ignore_open_transactions(patch: Patch) -> None:
    patch.setattr(ProducerStateManager, "first_unstable_offset", lambda self, high_watermark: None)


def restart_without_open_transactions(patch: Patch) -> None:
    def take(self: ProducerStateManager, entry: ProducerStateEntry) -> None:
        self.producers[entry.producer_id] = entry

    patch.setattr(ProducerStateManager, "_take", take)


def follow_without_transactions(patch: Patch) -> None:
    apply = ProducerStateManager.apply

    def without(self: ProducerStateManager, updates: ProducerUpdates) -> list[AbortedTxn]:
        if updates._origin is AppendOrigin.REPLICATION:
            updates.started.clear()
        return apply(self, updates)

    patch.setattr(ProducerStateManager, "apply", without)


def leave_out_the_aborted_index(patch: Patch) -> None:
    complete = ProducerStateManager._complete

    def without_entry(self: ProducerStateManager, completed: CompletedTxn) -> Iterator[AbortedTxn]:
        return (entry for entry in complete(self, completed) if entry is None)

    patch.setattr(ProducerStateManager, "_complete", without_entry)


def lose_the_aborted_index(patch: Patch) -> None:
    truncate_to = LogSegment.truncate_to

    def without_index(self: LogSegment, offset: int, position: int) -> None:
        if self.aborted():
            self._index_files.cut(TXN_INDEX_SUFFIX, 0)
            self._aborted = None
        truncate_to(self, offset, position)

    patch.setattr(LogSegment, "truncate_to", without_index)


def accept_old_coordinators(patch: Patch) -> None:
    add_marker = ProducerUpdates.add_marker

    def add_any(self: ProducerUpdates, header: BatchHeader, offset: int, marker: EndTxnMarker) -> None:
        entry = self._entry(header.producer_id)
        entry.coordinator_epoch = min(entry.coordinator_epoch, marker.coordinator_epoch)
        add_marker(self, header, offset, marker)

    patch.setattr(ProducerUpdates, "add_marker", add_any)


def skip_the_verification(patch: Patch) -> None:
    def guard(
        self: TransactionVerification,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        asker: Asker,
    ) -> None:
        return None

    patch.setattr(TransactionVerification, "guard", guard)


def compact_what_was_aborted(patch: Patch) -> None:
    on_batch = TransactionTracker.on_batch

    def committed(self: TransactionTracker, header: BatchHeader) -> bool:
        on_batch(self, header)
        return False

    patch.setattr(TransactionTracker, "on_batch", committed)


# ── offsets and readers ─────────────────────────────────────────────────────────────────────────
def show_pending_offsets(patch: Patch) -> None:
    def at_once(self: Offsets, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        self._apply(key, value)

    patch.setattr(Offsets, "replay_pending", at_once)


def answer_with_unstable_offsets(patch: Patch) -> None:
    def stable(self: Offsets, request: OffsetFetch, topic: str, partition: int) -> bool:
        return False

    patch.setattr(Offsets, "_is_unstable", stable)


def read_what_was_aborted(patch: Patch) -> None:
    patch.setattr(FetchedRecords, "_is_aborted", lambda self, header: False)


CRASH = (Kind.CRASH,)
CUT_OFF = (Kind.CRASH, Kind.CUT, Kind.ISOLATE)


FAULTS = (
    PlantedFault(
        name="forget-the-prepared",
        what="a coordinator that takes over does not finish what was prepared",
        plant=forget_the_prepared,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="abort-the-prepared",
        what="a coordinator that takes over aborts what was prepared to be committed",
        plant=abort_the_prepared,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="mark-before-it-is-committed",
        what="markers are sent before the decision is committed",
        plant=mark_before_it_is_committed,
        kinds=CUT_OFF,
        seeds=10,
        transactions=PLAN_2,
    ),
    PlantedFault(
        name="answer-before-it-is-committed",
        what="the coordinator answers before its record is committed",
        plant=answer_before_it_is_committed,
        kinds=CUT_OFF,
        seeds=20,
        transactions=PLAN,
    ),
    PlantedFault(
        name="keep-what-is-open-in-memory",
        what="the coordinator does not write which partitions a transaction has (E-41)",
        plant=keep_what_is_open_in_memory,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="mark-one-partition",
        what="only the first partition of a transaction gets a marker",
        plant=mark_one_partition,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="time-out-without-a-new-epoch",
        what="a transaction that timed out leaves its producer its epoch",
        plant=time_out_without_a_new_epoch,
        kinds=CRASH,
        seeds=10,
        transactions=PLAN,
    ),
    PlantedFault(
        name="give-the-epoch-of-the-last-producer",
        what="InitProducerId does not bump the epoch",
        plant=give_the_epoch_of_the_last_producer,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="ignore-open-transactions",
        what="the last stable offset is the high watermark",
        plant=ignore_open_transactions,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="restart-without-open-transactions",
        what="a broker that is restarted forgets open transactions of a snapshot (E-33, E-34)",
        plant=restart_without_open_transactions,
        kinds=(Kind.CRASH_ALL, Kind.STOP),
        seeds=10,
        transactions=replace(PLAN, timeout_ms=10_000),
    ),
    PlantedFault(
        name="follow-without-transactions",
        what="followers do not keep track of transactions",
        plant=follow_without_transactions,
        kinds=CRASH,
        seeds=10,
        transactions=PLAN,
    ),
    PlantedFault(
        name="leave-out-the-aborted-index",
        what="the index of aborted transactions is not written",
        plant=leave_out_the_aborted_index,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="skip-the-verification",
        what="a batch outside of a transaction is taken (E-38)",
        plant=skip_the_verification,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="compact-what-was-aborted",
        what="compaction takes an aborted record for the newest of its key",
        plant=compact_what_was_aborted,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="show-pending-offsets",
        what="offsets count before their transaction is committed",
        plant=show_pending_offsets,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="answer-with-unstable-offsets",
        what="a consumer gets an offset that a transaction is about to replace",
        plant=answer_with_unstable_offsets,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="read-what-was-aborted",
        what="a consumer returns the records of aborted transactions",
        plant=read_what_was_aborted,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN,
    ),
    PlantedFault(
        name="end-both-ways",
        what="a transaction gets commit markers, and then abort markers",
        plant=end_both_ways,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN_2,
    ),
    PlantedFault(
        name="end-again",
        what="a repeated EndTxn ends a transaction a second time",
        plant=end_again,
        kinds=CRASH,
        seeds=5,
        transactions=PLAN_2,
    ),
    PlantedFault(
        name="accept-old-coordinators",
        what="a leader takes markers of an earlier coordinator epoch",
        plant=accept_old_coordinators,
        kinds=(Kind.CUT, Kind.SESSION),
        longest_s=12.0,
        seeds=60,
        transactions=PLAN,
    ),
    PlantedFault(
        name="lose-the-aborted-index",
        what="a truncation empties the index of aborted transactions",
        plant=lose_the_aborted_index,
        kinds=CUT_OFF,
        seeds=10,
        transactions=PLAN,
    ),
)
