"""Time-outs, expiration, loading, and the views: what a shard does without a producer."""

from __future__ import annotations

import pytest
from test_init_producer_id import world_at
from transaction_harness import TIMEOUT_MS, A, B, TransactionWorld, image_with

from nilometer.steps import at_once
from nilometer.storage.names import TopicPartition
from nilometer.transactions import shard
from nilometer.transactions.records import decode_record
from nilometer.transactions.requests import (
    InitProducerIdResult,
    ListTransactions,
    ListTransactionsResult,
    TimeOutResult,
)
from nilometer.transactions.requests import TimeOut as TimeOutRequest
from nilometer.transactions.shard import SendMarkers
from nilometer.transactions.transaction import DAY_MS, TransactionConfig
from nilometer.wire.errors import ErrorCode

CHECK_MS = 10_000


# ── time-outs ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced(version: int) -> None:
    world = TransactionWorld(version=version)
    producer = world.init()
    world.add(producer, A, version=version)
    world.advance(TIMEOUT_MS)
    assert world.state() == "Ongoing"
    world.advance(CHECK_MS)
    assert world.state() == "PrepareAbort"
    markers = world.write_markers()
    assert markers.producer_epoch == producer.producer_epoch + 1
    assert markers.cause == f"it was open for longer than its time-out of {TIMEOUT_MS} ms"
    assert world.end(producer, version=0).error_code is ErrorCode.producer_fenced
    assert world.add(producer, B) is ErrorCode.producer_fenced
    bumped = world.init(has=(producer.producer_id, producer.producer_epoch))
    if version == 2:
        assert bumped.error_code is ErrorCode.none, "its time-out is not the last word on a producer"
    else:
        assert bumped.error_code is ErrorCode.producer_fenced


def test_a_transaction_that_is_ended_in_time_is_left_alone() -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, A)
    world.end(producer)
    world.advance(10 * TIMEOUT_MS)
    assert world.state() == "PrepareCommit", "it waits for its markers, however long that takes"
    world.write_markers()
    world.advance(10 * TIMEOUT_MS)
    assert (world.state(), world.actions) == ("CompleteCommit", [])


def test_the_next_coordinator_aborts_what_its_predecessor_left_open() -> None:
    world = TransactionWorld()
    world.add(world.init(), A)
    world.advance(TIMEOUT_MS - 1)
    world.fail_over()
    world.advance(CHECK_MS + 2)
    assert world.state() == "PrepareAbort"


def test_a_wall_clock_that_is_behind_does_not_keep_a_transaction_open() -> None:
    """The next coordinator measures its age by the monotonic clock, from its own load on."""
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, A)
    world.wall_behind_ms = DAY_MS
    world.fail_over()
    world.advance(TIMEOUT_MS - CHECK_MS)
    assert world.add(producer, B) is ErrorCode.none
    world.advance(CHECK_MS)
    assert world.state() == "Ongoing", "it has had all its time"
    world.advance(2 * CHECK_MS)
    assert world.state() == "PrepareAbort", "and a partition that is added does not give it more"


def test_a_wall_clock_that_is_set_back_gives_a_transaction_no_more_time() -> None:
    world = TransactionWorld()
    earlier = world.init()
    world.add(earlier, A)
    world.advance(TIMEOUT_MS - CHECK_MS)
    world.end(earlier)
    world.write_markers()
    world.add(world.init(has=(earlier.producer_id, earlier.producer_epoch)), A)
    world.wall_behind_ms = DAY_MS
    world.advance(TIMEOUT_MS)
    assert world.state() == "Ongoing", "the time of the earlier transaction does not count"
    world.advance(2 * CHECK_MS)
    assert world.state() == "PrepareAbort"


def test_many_time_outs_are_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "RECORDS_PER_CALL_MAX", 2)
    monkeypatch.setattr(shard, "NAMED_PER_CALL_MAX", 1)
    world = TransactionWorld()
    for name in "abcde":
        world.add(world.init(name), A, name=name)
    before = len(world.log)
    world.now_ms = 2 * TIMEOUT_MS
    sizes = []
    while world.shard.next_deadline_ms() is not None and len(world.log) < before + 5:
        size = len(world.log)
        world.now_ms = max(world.now_ms, world.shard.next_deadline_ms() or 0)
        world._take(world.shard.on_time(world.now_ms, world.wall_ms))
        sizes.append(len(world.log) - size)
    assert sizes == [2, 2, 1]
    causes = [bool(action.cause) for action in world.actions if isinstance(action, SendMarkers)]
    assert causes == [True, False, True, False, True], "one of each batch is named"


@pytest.mark.parametrize("wall_behind_ms", [0, DAY_MS])
def test_edge_40_a_time_out_in_the_last_epoch_asks_for_a_new_producer_id_first(wall_behind_ms: int) -> None:
    world = world_at(32_766)
    world.version = 2
    world.fail_over()
    producer = InitProducerIdResult(ErrorCode.none, 7, 32_766)
    world.add(producer, A, version=2)
    world.wall_behind_ms = wall_behind_ms
    world.advance(CHECK_MS)
    assert world.state() == "Ongoing"
    request = world.allocation().request
    retried = TimeOutRequest(
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        new_producer_id=world.new_producer_id(),
    )
    assert world.ask(retried, TimeOutResult).aborted
    world.write_markers()
    assert (world.describe().producer_id, world.describe().producer_epoch) == (1_001, 0)
    assert not world.ask(retried, TimeOutResult).aborted, "it is no longer about this transaction"


# ── expiration ────────────────────────────────────────────────────────────────────────────────────
def test_an_id_that_is_idle_for_too_long_expires_with_a_tombstone() -> None:
    world = TransactionWorld(TransactionConfig(id_expiration_ms=DAY_MS))
    idle, used = world.init("idle"), world.init("used")
    world.advance(DAY_MS - 1)
    world.add(used, A, name="used")
    world.end(used, name="used")
    world.write_markers()
    world.advance(60 * 60_000)
    assert world.describe("idle").error_code is ErrorCode.transactional_id_not_found
    assert world.describe("used").error_code is ErrorCode.none
    key, value = world.log[-1]
    record = decode_record(key, value)
    assert (record is not None and record.transactional_id, value) == ("idle", None)
    world.fail_over()
    assert world.describe("idle").error_code is ErrorCode.transactional_id_not_found
    assert world.add(idle, A, name="idle") is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("prepared", [False, True])
def test_an_id_with_a_transaction_does_not_expire(prepared: bool) -> None:
    world = TransactionWorld(
        TransactionConfig(id_expiration_ms=1_000, max_timeout_ms=DAY_MS, abort_check_interval_ms=30 * DAY_MS)
    )
    producer = world.init(timeout_ms=DAY_MS)
    world.add(producer, A)
    if prepared:
        world.end(producer)
    world.advance(2 * DAY_MS)
    assert world.describe().error_code is ErrorCode.none


# ── loading ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_finishes_what_was_prepared(commit: bool) -> None:
    world = TransactionWorld()
    producer = world.init()
    world.add(producer, A, B)
    world.end(producer, commit=commit)
    decided = world.markers()
    assert not decided.cause, "its producer has decided it"
    world.fail_over()
    assert world.markers() == decided
    world.fail_over()
    world.write_markers()
    assert world.state() == ("CompleteCommit" if commit else "CompleteAbort")
    world.fail_over()
    assert world.actions == []


# ── views ─────────────────────────────────────────────────────────────────────────────────────────
def listed(world: TransactionWorld, **filters: object) -> list[str]:
    request = ListTransactions(**filters)  # type: ignore[arg-type]
    reply = world.ask(request, ListTransactionsResult)
    assert reply.error_code is ErrorCode.none
    assert reply.transactions is not None
    return [each.transactional_id for each in at_once(reply.transactions)]


def test_transactions_are_listed_by_state_producer_and_duration() -> None:
    world = TransactionWorld()
    producers = {name: world.init(name) for name in ("pay-1", "pay-2", "log-1")}
    world.add(producers["pay-1"], A, name="pay-1")
    world.now_ms = 500
    world.add(producers["log-1"], A, name="log-1")
    world.now_ms = 1_000
    assert listed(world) == ["pay-1", "pay-2", "log-1"]
    assert listed(world, state_filters=("Ongoing", "Dead")) == ["pay-1", "log-1"]
    assert listed(world, producer_id_filters=(producers["pay-2"].producer_id,)) == ["pay-2"]
    assert listed(world, state_filters=("Ongoing",), duration_filter_ms=500) == ["pay-1"]


def test_each_transaction_is_a_step_of_the_listing() -> None:
    """A client may list hundreds of thousands: others are served in between."""
    world = TransactionWorld()
    for name in ("pay-1", "pay-2", "log-1"):
        world.init(name)
    steps = world.ask(ListTransactions(state_filters=("Ongoing",)), ListTransactionsResult).transactions
    assert steps is not None
    assert list(steps) == [1, 1, 1]


def test_filters_that_mean_nothing_are_named() -> None:
    world = TransactionWorld()
    world.init()
    unknown = world.ask(ListTransactions(state_filters=("Ongoing", "Sleeping")), ListTransactionsResult)
    assert unknown.unknown_state_filters == ("Sleeping",)
    assert listed(world, state_filters=("Ongoing", "Sleeping")) == []


def test_an_id_is_described_or_not_found() -> None:
    world = TransactionWorld()
    producer = world.init(timeout_ms=7)
    world.add(producer, B, A)
    described = world.describe()
    assert (described.transaction_timeout_ms, described.producer_id) == (7, producer.producer_id)
    assert described.partitions == (A, B)
    assert world.describe("y").error_code is ErrorCode.transactional_id_not_found
    assert world.describe("").error_code is ErrorCode.invalid_request


def test_the_coordinator_ends_transactions_by_the_level_that_is_finalized_now() -> None:
    world = TransactionWorld(version=0)
    for level, version in ((0, 0), (2, 2), (1, 0)):
        world.shard.on_image(image_with(level), world.now_ms, world.wall_ms)
        world.add(world.init(), A)
        world.advance(TIMEOUT_MS + CHECK_MS)
        assert world.write_markers().version == version


# ── loading ───────────────────────────────────────────────────────────────────────────────────────
def test_markers_of_many_transactions_that_were_being_ended_are_requested_in_several_calls() -> None:
    """While a broker is down they may be many, and the next coordinator finds all of them."""
    partitions = [TopicPartition("many", index) for index in range(900)]
    world = TransactionWorld()
    names = [f"x{number}" for number in range(7)]
    for name in names:
        producer = world.init(name)
        world.add(producer, *partitions, name=name)
        world.end(producer, name=name)
    world.fail_over()
    at_once = len(world.actions)
    assert at_once * len(partitions) < shard.PARTITIONS_PER_CALL_MAX + len(partitions)
    world.advance(len(names))
    requested = [one.transactional_id for one in world.actions if isinstance(one, SendMarkers)]
    assert requested == names
    for markers in tuple(world.actions):
        assert isinstance(markers, SendMarkers)
        assert world.report(markers).completed
    assert {world.state(name) for name in names} == {"CompleteCommit"}


def test_each_transactional_id_is_a_step_of_loading() -> None:
    """They may be hundreds of thousands: others are served in between."""
    world = TransactionWorld()
    open_ids, ids = ["x1", "x2", "x3"], [f"x{number}" for number in range(10)]
    producers = {name: world.init(name) for name in ids}
    for name in open_ids:
        world.add(producers[name], A, name=name)
    steps = list(world.shard.on_loaded(world.now_ms, world.wall_ms))
    assert steps == [1] * (len(open_ids) + len(ids))
