"""The share coordinator's core: states are initialized, read, written and deleted; who is fenced; snapshots,
pruning, and topics that are deleted.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.share import state_shard
from nilometer.share.state_records import (
    DeliveryState,
    SharePartitionKey,
    SharePartitionState,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
)
from nilometer.share.state_shard import (
    DeleteState,
    InitializeState,
    ReadState,
    ReadSummary,
    ShareStateConfig,
    StateRequest,
    WriteState,
)
from nilometer.wire.errors import ErrorCode
from support.properties import examples
from support.share.share_states import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    JOBS,
    KEY,
    OTHER,
    WALL_MS,
    StateWorld,
    batch,
)

NONE, INVALID = ErrorCode.none, ErrorCode.invalid_request
SECOND = SharePartitionKey("workers", JOBS, 1)
COLD_MS = PRUNE_MS = 300_000
UNINITIALIZED = "operation on uninitialized share partition not allowed."


def world(**config: int) -> StateWorld:
    return StateWorld(ShareStateConfig(**config))


# ── from the first request to the last ──────────────────────────────────────────────────────────
def test_a_share_partition_from_its_beginning_to_its_end() -> None:
    at = world()
    assert at.summary() == SharePartitionState(0, 0, -1, -1)
    assert at.initialize(epoch=3, start=100).error is NONE
    assert at.state() == SharePartitionState(3, 0, 100, 0)
    assert at.read(leader=5).state == SharePartitionState(3, 0, 100, 0)
    assert at.state().leader_epoch == 5
    assert at.write(batch(100, 109), epoch=3, leader=5, start=100, count=10).error is NONE
    assert at.write(batch(120, 129, AVAILABLE, 2), epoch=3, leader=5, start=110, count=0).error is NONE
    expected = SharePartitionState(3, 5, 110, 0, (batch(120, 129, AVAILABLE, 2),))
    assert at.read(leader=5).state == at.summary() == expected
    at.reload()
    assert at.read(leader=5).state == expected
    assert at.delete().error is NONE
    assert at.summary() == SharePartitionState(0, 0, -1, -1)
    at.reload()
    assert at.read(leader=5).error is INVALID


def test_a_state_without_start_offset_has_no_count() -> None:
    at = world()
    at.initialize(start=-1)
    assert at.state() == SharePartitionState(1, 0, -1, -1)


def test_it_begins_again_with_a_higher_state_epoch() -> None:
    at = world()
    at.initialize(epoch=1)
    at.read(leader=4)
    at.write(batch(100, 109), leader=4)
    assert at.initialize(epoch=2, start=500).error is NONE
    assert at.state() == SharePartitionState(2, 0, 500, 0)
    (_, _, _, last) = at.records()
    assert isinstance(last, ShareSnapshot)
    assert last.snapshot_epoch == 1


def test_a_read_writes_the_epoch_of_a_new_leader_only() -> None:
    at = world()
    at.initialize()
    at.read(leader=2)
    at.read(leader=2)
    assert at.records()[1:] == [ShareUpdate(KEY, 0, 2, 100, 0, ())]


def test_a_write_leaves_the_leader_epoch_and_never_lowers_the_start_offset() -> None:
    at = world()
    at.initialize(start=100)
    at.read(leader=2)
    at.write(batch(110, 119), leader=7, start=90, count=3)
    assert at.state() == SharePartitionState(1, 2, 100, 0, (batch(110, 119),))
    at.write(leader=2, start=115, count=4)
    assert at.state() == SharePartitionState(1, 2, 115, 4, (batch(115, 119),))


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(100, 7, 7), (100, 3, 5), (120, 3, 3), (90, 9, 5), (-1, 9, 5)],
    ids=["higher", "lower", "later start", "earlier start", "no start"],
)
def test_the_complete_count_is_of_the_start_offset(start: int, count: int, expected: int) -> None:
    """At the same start offset it only grows; what is counted from an earlier one says nothing."""
    at = world()
    at.initialize(start=100)
    at.write(start=100, count=5)
    at.write(start=start, count=count)
    assert at.state().delivery_complete_count == expected


# ── what is refused ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (ReadState(KEY, 1), INVALID, f"Read {UNINITIALIZED}"),
        (WriteState(KEY, 1, 1, 0, 0, ()), INVALID, f"Write {UNINITIALIZED}"),
        (ReadState(KEY, -1), INVALID, "The leader epoch cannot be a negative number."),
        (WriteState(KEY, 1, -1, 0, 0, ()), INVALID, "The leader epoch cannot be a negative number."),
        (WriteState(KEY, -1, 1, 0, 0, ()), INVALID, "The state epoch cannot be a negative number."),
        (InitializeState(KEY, -1, 0), INVALID, "The state epoch cannot be a negative number."),
        *(
            (request, INVALID, "The partition id cannot be a negative number.")
            for key in (KEY._replace(partition=-1),)
            for request in (ReadState(key, 1), DeleteState(key), ReadSummary(key), InitializeState(key, 1, 0))
        ),
        *(
            (request, ErrorCode.unknown_topic_or_partition, None)
            for key in (KEY._replace(partition=2), KEY._replace(topic_id=OTHER))
            for request in (DeleteState(key), ReadSummary(key), InitializeState(key, 1, 0))
        ),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_written(
    request_: StateRequest, error: ErrorCode, message: str | None
) -> None:
    at = StateWorld(topics=(JOBS,))
    reply = at.ask(request_)
    assert (reply.error, reply.message) == (error, message)
    assert at.log == []


@pytest.mark.parametrize(
    "wrong",
    [
        batch(-1, 5),
        batch(5, 4),
        batch(1, 2, count=-1),
        batch(1, 2, DeliveryState.ACQUIRED),
    ],
)
def test_batches_that_cannot_be_are_refused(wrong: StateBatch) -> None:
    at = world()
    at.initialize(start=0)
    assert at.write(batch(10, 12), wrong).error is INVALID
    assert at.state().batches == ()


def test_a_former_leader_neither_reads_nor_writes() -> None:
    at = world()
    at.initialize()
    at.read(leader=5)
    for _ in range(2):
        assert at.read(leader=4).error is ErrorCode.fenced_leader_epoch
        assert at.write(batch(100, 109), leader=4).error is ErrorCode.fenced_leader_epoch
        assert at.state().batches == ()
        at.reload()


def test_a_former_leader_is_fenced_when_the_state_has_begun_again() -> None:
    at = world()
    at.initialize()
    at.read(leader=5)
    at.initialize(epoch=2)
    assert at.read(leader=4).error is ErrorCode.fenced_leader_epoch
    assert at.write(epoch=2, leader=4).error is ErrorCode.fenced_leader_epoch
    assert at.read(leader=5).error is NONE


def test_an_earlier_state_epoch_neither_writes_nor_initializes() -> None:
    at = world()
    at.initialize(epoch=3)
    for _ in range(2):
        assert at.write(batch(100, 109), epoch=2).error is ErrorCode.fenced_state_epoch
        assert at.initialize(epoch=2, start=0).error is ErrorCode.fenced_state_epoch
        assert at.state() == SharePartitionState(3, 0, 100, 0)
        at.reload()
    assert at.initialize(epoch=3, start=7).error is NONE


def test_a_share_partition_has_so_many_batches_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_shard, "STATE_BATCHES_MAX", 3)
    at = world()
    at.initialize(start=0)
    assert at.write(*(batch(2 * index, 2 * index) for index in range(4))).error is INVALID
    assert at.write(*(batch(2 * index, 2 * index) for index in range(3))).error is NONE
    assert at.write(batch(6, 6)).error is INVALID
    assert at.write(batch(1, 1)).error is NONE, "it joins its neighbours"
    assert at.state().batches == (batch(0, 2), batch(4, 4))


def test_a_write_has_so_many_batches_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_shard, "WRITE_BATCHES_MAX", 3)
    at = world()
    at.initialize(start=0)
    assert at.write(*(batch(index, index) for index in range(4))).error is INVALID
    assert at.write(*(batch(index, index) for index in range(3))).error is NONE


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("updates", [0, 1, 3])
def test_after_so_many_updates_the_whole_state_is_written(updates: int) -> None:
    at = world(updates_per_snapshot=updates)
    at.initialize(start=0)
    for index in range(2 * (updates + 1)):
        at.write(batch(10 * index, 10 * index + 4))
    kinds = [type(record) for record in at.records()[1:]]
    assert kinds == ([ShareUpdate] * updates + [ShareSnapshot]) * 2
    last = at.records()[-1]
    assert isinstance(last, ShareSnapshot)
    assert (last.state, last.snapshot_epoch) == (at.state(), 2)
    assert (last.created_ms, last.written_ms) == (WALL_MS, WALL_MS)


def test_a_share_partition_that_is_not_written_gets_snapshots_while_others_are_written() -> None:
    at = StateWorld(prunes=False)
    at.initialize()
    at.advance(COLD_MS)
    (_, cold) = at.records()
    assert cold == ShareSnapshot(KEY, at.state(), 1, WALL_MS, WALL_MS + COLD_MS)
    at.advance(3 * COLD_MS)
    assert len(at.log) == 2, "nothing is written, and so nothing to be pruned"
    at.initialize(SECOND)
    at.advance(COLD_MS)
    assert [record.key for record in at.records()[-2:]] == [KEY, SECOND]


def test_many_cold_share_partitions_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_shard, "BATCHES_PER_CALL_MAX", 25)
    at = StateWorld(prunes=False)
    keys = [KEY._replace(group_id=f"group {index}") for index in range(8)]
    for key in keys:
        at.initialize(key)
    at.advance(COLD_MS - 1)
    effects = at.shard.on_time(COLD_MS, at.wall_ms + 1)
    assert len(effects.records) == 3
    at._take(effects)
    at.advance(10)
    assert [record.key for record in at.records()[8:]] == keys


# ── pruning ─────────────────────────────────────────────────────────────────────────────────────
def test_what_is_before_every_last_snapshot_is_deleted() -> None:
    at = world(updates_per_snapshot=2, cold_snapshot_interval_ms=10 * PRUNE_MS)
    at.initialize(start=0)
    at.initialize(SECOND, start=0)
    for index in range(5):
        at.write(batch(10 * index, 10 * index))
    at.advance(PRUNE_MS)
    assert at.log_start == 1, "the snapshot of the second one is its state"
    for index in range(5):
        at.write(batch(10 * index, 10 * index), key=SECOND)
    before = at.state(), at.state(SECOND)
    at.advance(PRUNE_MS)
    assert at.log_start == 4
    at.reload()
    assert (at.state(), at.state(SECOND)) == before
    at.write(batch(1, 1))
    at.advance(PRUNE_MS)
    assert at.log_start == 9, "it is counted from the first record that was loaded"


def test_all_is_redundant_when_every_state_is_deleted() -> None:
    at = world()
    at.initialize()
    at.delete()
    at.advance(PRUNE_MS)
    assert at.log_start == 2


def test_a_share_partition_that_is_not_written_does_not_stop_pruning() -> None:
    at = world(updates_per_snapshot=3)
    at.initialize(SECOND)
    at.initialize(start=0)
    for minute in range(20):
        at.write(batch(minute, minute))
        at.advance(60_000)
    assert at.log_start > 10


# ── deleted topics ──────────────────────────────────────────────────────────────────────────────
def test_the_state_of_a_deleted_topic_is_deleted() -> None:
    at = world()
    of_other = KEY._replace(topic_id=OTHER)
    for key in (KEY, SECOND, of_other):
        at.initialize(key)
    at.cluster.delete(JOBS)
    at.on_image()
    at.advance(1)
    assert at.records()[3:] == [ShareSnapshot(KEY, None), ShareSnapshot(SECOND, None)]
    at.reload()
    assert (at.shard.state(KEY), at.shard.state(of_other)) == (None, SharePartitionState(1, 0, 100, 0))


def test_many_states_of_a_deleted_topic_are_deleted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """None in the turn of the new image, which all partitions of the states' topic share."""
    monkeypatch.setattr(state_shard, "DELETED_PER_CALL_MAX", 3)
    at = world()
    for index in range(8):
        at.initialize(KEY._replace(group_id=f"group {index}"))
    at.cluster.delete(JOBS)
    at.on_image()
    assert len(at.log) == 8
    at.advance(0)
    assert len(at.log) == 8 + 3
    at.advance(10)
    assert len(at.log) == 8 + 8


def test_a_topic_that_this_broker_does_not_know_yet_keeps_its_state() -> None:
    """The former coordinator has written the state; this one's metadata is behind."""
    before = world()
    before.initialize()
    at = StateWorld(topics=(OTHER,), log=before.log)
    at.on_image()
    assert at.ask(ReadState(KEY, 1)).error is ErrorCode.unknown_topic_or_partition
    at.advance(COLD_MS)
    at.cluster.create(JOBS)
    at.on_image()
    assert at.read().state == SharePartitionState(1, 0, 100, 0)
    at.advance(3 * COLD_MS)
    assert at.shard.state(KEY) is not None


def test_a_topic_that_was_deleted_before_loading_loses_its_state_in_the_end() -> None:
    before = world()
    before.initialize()
    at = StateWorld(topics=(OTHER,), log=before.log)
    at.advance(COLD_MS)
    assert at.shard.state(KEY) is not None
    at.advance(COLD_MS)
    assert at.shard.state(KEY) is None


# ── a model ─────────────────────────────────────────────────────────────────────────────────────
keys = st.sampled_from([KEY, SECOND, KEY._replace(group_id="others")])
epochs = st.integers(0, 3)
written = st.lists(
    st.builds(
        lambda first, more, state, count: batch(first, first + more, state, count),
        st.integers(100, 130),
        st.integers(0, 9),
        st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
        st.integers(1, 3),
    ),
    max_size=3,
).map(tuple)
requests = st.one_of(
    st.builds(InitializeState, keys, epochs, st.integers(-1, 110)),
    st.builds(ReadState, keys, epochs),
    st.builds(WriteState, keys, epochs, epochs, st.integers(-1, 130), st.integers(-1, 20), written),
    st.builds(WriteState, keys, st.just(3), st.just(3), st.integers(-1, 130), st.integers(-1, 20), written),
    st.builds(DeleteState, keys),
    st.just(COLD_MS),
)


@examples(150)
@given(st.lists(requests, max_size=25), st.integers(0, 4), st.booleans())
def test_another_coordinator_knows_what_this_one_has_written(
    steps: list[Any], updates: int, prunes: bool
) -> None:
    """After each step the log, from its start, has the state that the shard has; and the start offset and the
    state epoch of a share partition only grow."""
    at = StateWorld(ShareStateConfig(updates_per_snapshot=updates), prunes=prunes)
    before: dict[SharePartitionKey, SharePartitionState | None] = {}
    for step in steps:
        if isinstance(step, int):
            at.advance(step)
            changed = None
        else:
            at.ask(step)
            changed = step.key
        other = StateWorld(at.config, log=list(at.log), log_start=at.log_start)
        for key in (KEY, SECOND, KEY._replace(group_id="others")):
            state, was = at.shard.state(key), before.get(key)
            assert other.shard.state(key) == state
            if key != changed:
                assert state == was
            elif was is not None and state is not None:
                assert state.state_epoch >= was.state_epoch
                assert isinstance(step, InitializeState) or state.start_offset >= was.start_offset
            before[key] = state


def test_each_prefix_of_the_log_is_a_state_that_was() -> None:
    at = world(updates_per_snapshot=2)
    at.initialize(start=0)
    at.read(leader=1)
    states = [None, SharePartitionState(1, 0, 0, 0), at.state()]
    for index in range(6):
        at.write(batch(5 * index, 5 * index + 2), start=index, count=index)
        states.append(at.state())
    for length, state in enumerate(states):
        assert StateWorld(at.config, log=at.log[:length]).shard.state(KEY) == state
