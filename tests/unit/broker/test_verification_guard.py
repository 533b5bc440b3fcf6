"""A batch waits for its coordinator's answer, and markers come to its log meanwhile (KIP-890, E-38)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nilometer.broker.transactions.verification import Guard
from nilometer.storage.producers import NO_OFFSET, ProducerStateEntry

ID, EPOCH = 7, 4


def entry(epoch: int, first_offset: int = NO_OFFSET) -> ProducerStateEntry:
    made = ProducerStateEntry(ID)
    made.producer_epoch, made.current_txn_first_offset = epoch, first_offset
    return made


def is_intact(before: ProducerStateEntry | None, after: ProducerStateEntry | None, *, adds: bool) -> bool:
    producers = {} if before is None else {ID: before}
    partition: Any = SimpleNamespace(log=SimpleNamespace(producers=SimpleNamespace(producers=producers)))
    guard = Guard(partition, ID, EPOCH, before, adds)
    producers.clear()
    if after is not None:
        producers[ID] = after
    return guard.is_intact


@pytest.mark.parametrize("adds", [True, False])
def test_nothing_came_or_another_batch_of_the_transaction(adds: bool) -> None:
    before = entry(EPOCH - 1)
    assert is_intact(before, before, adds=adds)
    assert is_intact(None, None, adds=adds)
    assert is_intact(before, entry(EPOCH, first_offset=10), adds=adds)


def test_the_marker_of_the_transaction_before_is_no_end_where_every_end_bumps_the_epoch() -> None:
    """It carries the epoch of the next transaction, which this batch begins."""
    open_before = entry(EPOCH - 1, first_offset=3)
    assert is_intact(open_before, entry(EPOCH), adds=True)
    assert not is_intact(open_before, entry(EPOCH), adds=False), "it may be the end of this transaction"


@pytest.mark.parametrize("adds", [True, False])
def test_its_own_end_came(adds: bool) -> None:
    assert not is_intact(entry(EPOCH - 1), entry(EPOCH + 1), adds=adds)
    assert not is_intact(None, entry(EPOCH + 1), adds=adds)
    assert not is_intact(entry(EPOCH - 1), None, adds=adds), "the log was truncated"
