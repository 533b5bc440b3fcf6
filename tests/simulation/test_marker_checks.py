"""The checks of markers read them as they are written, and find what they are for."""

from __future__ import annotations

import pytest

from nilometer.simulation.checkers.logs import StoredBatch, batches_with_positions
from nilometer.simulation.checkers.transactions import (
    Aborted,
    Marker,
    check_markers,
    expected_index,
    read_marker,
)
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker


def stored(data: bytes) -> StoredBatch:
    ((_, batch),) = batches_with_positions(data)
    return batch


def marker(offset: int, epoch: int, *, commits: bool = True, coordinator: int = 4) -> StoredBatch:
    kind = ControlType.COMMIT if commits else ControlType.ABORT
    end = EndTxnMarker(kind, coordinator, 1_700_000_000_000)
    return stored(build_end_txn_marker(end, producer_id=7, producer_epoch=epoch, base_offset=offset))


def record(offset: int, epoch: int) -> StoredBatch:
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"value")
    batch = builder.build(offset, producer_id=7, producer_epoch=epoch, base_sequence=0, transactional=True)
    return stored(batch)


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("coordinator", [0, 4, 2**20])
def test_a_marker_is_read_as_it_is_written(commits: bool, coordinator: int) -> None:
    found = read_marker(marker(9, 3, commits=commits, coordinator=coordinator))
    assert found == Marker(9, 7, 3, commits, coordinator)


def test_a_marker_of_an_older_coordinator_is_found() -> None:
    batches = [marker(0, 1, coordinator=4), marker(1, 1, coordinator=5)]
    assert list(check_markers("t-0", batches, bumps=False)) == []
    (found,) = check_markers("t-0", [*batches, marker(2, 1, coordinator=4)], bumps=False)
    assert found.startswith("old coordinator: t-0")


def test_a_second_end_of_the_same_epoch_is_found_where_every_end_has_its_own() -> None:
    batches = [marker(0, 1), marker(1, 1), marker(2, 2, commits=False)]
    assert list(check_markers("t-0", batches, bumps=True)) == []
    again = [*batches, marker(3, 2, commits=True)]
    (found,) = check_markers("t-0", again, bumps=True)
    assert found.startswith("two ends: t-0")
    assert list(check_markers("t-0", again, bumps=False)) == []


def test_the_index_has_what_was_aborted() -> None:
    batches = [record(0, 1), record(1, 1), marker(2, 1), record(3, 1), marker(4, 1, commits=False)]
    assert expected_index([*batches, marker(5, 1, commits=False)]) == {Aborted(7, 3, 4)}
