"""Where a key's coordinator is, and what a shell does while it cannot serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.coordinator_shell import CoordinatorShell, ShellState
from nilometer.broker.coordinator_shells import CoordinatorShells, partition_for_key
from nilometer.coordinators import TransactionEnd
from nilometer.invariants import InvariantBroken
from nilometer.wire.errors import ErrorCode, KafkaError

CONFIGURED, CREATED = 50, 3
KEYS = [f"id {number}" for number in range(20)]


@pytest.mark.parametrize(("created", "count"), [(None, CONFIGURED), (CREATED, CREATED)])
def test_the_topic_decides_how_many_partitions_keep_the_keys_and_not_the_setting(
    created: int | None, count: int
) -> None:
    topic = None if created is None else SimpleNamespace(partitions=[None] * created)
    shells = CoordinatorShells[Any, Any, Any, Any](
        cast(Any, SimpleNamespace(topic="__transaction_state", num_partitions=CONFIGURED)),
        cast(Any, None),
        cast(Any, None),
        cast(Any, SimpleNamespace(image=SimpleNamespace(topic=lambda _: topic), subscribe=lambda *_: None)),
        cast(Any, SimpleNamespace(add_hosting_listener=lambda _: None)),
        cast(Any, None),
    )
    assert [shells.partition_for(key) for key in KEYS] == [partition_for_key(key, count) for key in KEYS]


class Shard:
    """Fails if it is called."""


def shell(state: ShellState, *, is_led: bool) -> CoordinatorShell[Any, Any, Any, Any]:
    partition = SimpleNamespace(
        leader_epoch=1, replica=None, hold_until_committed=None, is_led_here=is_led, log=None
    )
    made = CoordinatorShell[Any, Any, Any, Any](
        cast(Any, partition), cast(Any, None), cast(Any, None), cast(Any, None), lambda _: None
    )
    made.state = state
    if state is ShellState.ACTIVE:
        made._shard = cast(Any, Shard())
    return made


@pytest.mark.parametrize("state", [ShellState.LOADING, ShellState.FAILED, ShellState.UNLOADED])
def test_no_marker_is_written_that_the_shard_is_not_notified_of(state: ShellState) -> None:
    written: list[object] = []
    with pytest.raises(KafkaError) as refused:
        shell(state, is_led=True).append_marker(cast(Any, written.append), TransactionEnd(7, committed=True))
    assert refused.value.code is ErrorCode.coordinator_load_in_progress
    assert written == []


@pytest.mark.parametrize(
    ("state", "is_led", "error"),
    [
        (ShellState.LOADING, True, ErrorCode.coordinator_load_in_progress),
        (ShellState.FAILED, True, ErrorCode.not_coordinator),
        (ShellState.ACTIVE, False, ErrorCode.not_coordinator),
    ],
)
def test_a_shell_that_cannot_serve_rejects_requests_and_keeps_its_state(
    state: ShellState, is_led: bool, error: ErrorCode
) -> None:
    """A broker whose session may have expired does not serve; its shards stay, since the session may be
    live."""
    asked = shell(state, is_led=is_led)
    with pytest.raises(KafkaError) as refused:
        asked.submit("request", lambda _: None)
    assert refused.value.code is error
    assert asked.state is state


@pytest.mark.parametrize("log_end", [9, 10, 11])
def test_a_shell_goes_on_in_the_next_leader_epoch_with_a_log_that_has_its_records(log_end: int) -> None:
    kept = shell(ShellState.ACTIVE, is_led=True)
    shard, kept._end_offset = kept.shard, 10
    kept.partition.leader_epoch, kept.partition.log = 2, SimpleNamespace(log_end_offset=log_end)  # type: ignore[misc]
    if log_end < kept._end_offset:
        with pytest.raises(InvariantBroken):
            kept.become_leader_again()
    else:
        kept.become_leader_again()
        assert (kept.leader_epoch, kept.shard, kept.state) == (2, shard, ShellState.ACTIVE)


@pytest.mark.parametrize("log_end", [12, 13])
def test_a_marker_is_among_the_records_that_the_log_of_the_next_leader_epoch_must_have(log_end: int) -> None:
    kept = shell(ShellState.ACTIVE, is_led=True)
    ends: list[TransactionEnd] = []
    kept._shard = cast(Any, SimpleNamespace(replay_end=ends.append, next_deadline_ms=lambda: None))
    end, marker = TransactionEnd(7, committed=True), cast(Any, SimpleNamespace(last_offset=12))
    assert kept.append_marker(lambda _: marker, end) is marker
    assert ends == [end]
    kept.partition.leader_epoch, kept.partition.log = 2, SimpleNamespace(log_end_offset=log_end)  # type: ignore[misc]
    if log_end == 12:
        with pytest.raises(InvariantBroken):
            kept.become_leader_again()
    else:
        kept.become_leader_again()
