"""The states of a transaction, and which may follow which.

    Empty ──────────▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit ─┐
      ▲                ▲   └────▶ PrepareAbort  ──▶ CompleteAbort  ─┤
      └── a new epoch ─┴────────────────────────────────────────────┘

With ``transaction.version`` 2 an abort without any partition is prepared too (from Empty or Complete), since
it bumps the epoch. Dead is the tombstone. PrepareEpochFence has a number and a name in Kafka; here fencing a
producer and preparing the abort of its transaction are one record, so no transaction is ever in between.
"""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    """By the number that records have."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """As DescribeTransactions and ListTransactions call it."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided; markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """There is no transaction: one may begin, the epoch may be bumped, the id may expire."""
        return self in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )

    def may_become(self, after: TransactionState) -> bool:
        return after in _AFTER[self]


BY_NAME = {state.kafka_name: state for state in TransactionState}

_S = TransactionState
_AFTER_IDLE = frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD})
_AFTER: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: _AFTER_IDLE,
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: _AFTER_IDLE,
    _S.COMPLETE_ABORT: _AFTER_IDLE,
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset(),
}
