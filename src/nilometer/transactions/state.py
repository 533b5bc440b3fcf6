"""The states of a transaction, and their possible transitions.

    Empty ──────────▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit ─┐
      ▲                ▲   └────▶ PrepareAbort  ──▶ CompleteAbort  ─┤
      └── a new epoch ─┴────────────────────────────────────────────┘

With ``transaction.version`` 2 an abort without any partition is prepared too (from Empty or Complete), since
it bumps the epoch. Dead means that the id's record is a tombstone. PrepareEpochFence exists in Kafka; here
fencing a producer and preparing the abort of its transaction are one record, so that no transaction is ever
in that state.
"""

from __future__ import annotations

from enum import IntEnum


class TransactionState(IntEnum):
    """The state, with its number in records."""

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
        """The state's name in DescribeTransactions and ListTransactions."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and the markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open or prepared: one may begin, the epoch may be bumped, the id may
        expire."""
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
