"""Which partitions of a share group have a state at the share coordinator: begun, grown, failed, deleted."""

from __future__ import annotations

from uuid import UUID

import pytest
from share_group_harness import ShareWorld

from nilometer.groups import share_groups
from nilometer.groups.records import ShareGroupStatePartitionMetadataKey
from nilometer.groups.requests import AlterShareGroupOffsets, ShareGroupOffsetsResult
from nilometer.groups.turn import DeleteShareState, InitializeShareState, ShareStateResult
from nilometer.wire.errors import ErrorCode

FAILED = ErrorCode.coordinator_not_available


@pytest.fixture
def shares() -> ShareWorld:
    """A shard of groups, a topic ``t`` of four partitions, and a share coordinator that waits to be told."""
    world = ShareWorld(answers_at_once=False)
    world.create("t", 4)
    return world


def offsets(world: ShareWorld, action: object) -> dict[str, dict[int, int]]:
    assert isinstance(action, InitializeShareState)
    return {world.topics.name_of(topic_id): dict(found) for topic_id, found in action.topics.items()}


def test_the_share_coordinator_is_asked_once_for_new_partitions(shares: ShareWorld) -> None:
    shares.share_member("A")
    shares.share_member("B")
    [action] = shares.asked
    assert (action.group_id, offsets(shares, action)) == ("g", {"t": dict.fromkeys(range(4), -1)})
    assert isinstance(action, InitializeShareState)
    assert action.state_epoch == 2, "the group epoch"
    assert shares.initializing() == {"t": [0, 1, 2, 3]}
    shares.answer_state()
    assert (shares.initializing(), shares.initialized()) == ({}, {"t": [0, 1, 2, 3]})
    shares.share_beat("A", 2)
    assert not shares.asked


def test_partitions_that_a_topic_gets_later_start_at_0(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    shares.answer_state()
    shares.grow("t", 6)
    shares.share_settle(a)
    assert a.assigned == {"t": [0, 1, 2, 3]}, "the others have no state yet"
    assert offsets(shares, shares.asked[0]) == {"t": {4: 0, 5: 0}}
    shares.answer_state()
    shares.share_settle(a)
    assert a.assigned == {"t": [0, 1, 2, 3, 4, 5]}


def test_a_partition_that_a_topic_gets_before_its_others_have_a_state_starts_at_0(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    shares.grow("t", 5)
    shares.fail_over()
    shares.asked.clear()
    assert a.step() is ErrorCode.none
    assert offsets(shares, shares.asked[0]) == {"t": {0: -1, 1: -1, 2: -1, 3: -1, 4: 0}}


def test_what_failed_is_asked_again_after_a_pause(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    topic_id = shares.topics.id_of("t")
    shares.answer_state({topic_id: {1: FAILED, 3: FAILED}})
    assert (shares.initializing(), shares.initialized()) == ({}, {"t": [0, 2]})
    a.step()
    assert a.assigned == {"t": [0, 2]}
    assert (shares.asked, a.last.heartbeat_interval_ms) == ([], 1_000)
    shares.pass_time(1_000)
    a.step()
    assert offsets(shares, shares.asked[0]) == {"t": {1: 0, 3: 0}}
    shares.fail_state()
    shares.pass_time(1_000)
    a.step()
    shares.answer_state()
    shares.share_settle(a)
    assert a.assigned == {"t": [0, 1, 2, 3]}


def test_the_next_coordinator_asks_again(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    [lost] = shares.asked
    shares.fail_over()
    shares.asked.clear()
    a.step()
    [again] = shares.asked
    assert offsets(shares, again) == offsets(shares, lost)


def test_the_share_coordinator_is_asked_again_if_it_does_not_answer(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    late = shares.asked.pop()
    shares.pass_time(share_groups.ANSWERED_WITHIN_MS - 1)
    a.step()
    assert not shares.asked
    shares.pass_time(1)
    a.step()
    assert offsets(shares, shares.asked[0]) == offsets(shares, late)
    effects = shares.shard.on_share_state(ShareStateResult(late), shares.now_ms, shares.wall_ms)
    assert not effects.records, "too late"


def test_many_partitions_are_begun_in_several_steps(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "INITIALIZED_AT_ONCE_MAX", 3)
    a = shares.share_member("A")
    assert offsets(shares, shares.asked[0]) == {"t": {0: -1, 1: -1, 2: -1}}
    shares.answer_state()
    assert offsets(shares, shares.asked[0]) == {"t": {3: 0}}, "without a heartbeat"
    shares.answer_state()
    assert not shares.asked
    shares.share_settle(a)
    assert a.assigned == {"t": [0, 1, 2, 3]}


def test_what_a_former_coordinator_asked_for_is_not_forgotten(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = shares.share_member("A")
    shares.fail_over()
    shares.asked.clear()
    monkeypatch.setattr(share_groups, "INITIALIZED_AT_ONCE_MAX", 2)
    a.step()
    assert offsets(shares, shares.asked[0]) == {"t": {0: -1, 1: -1}}
    assert shares.initializing() == {"t": [0, 1, 2, 3]}


def test_the_record_of_the_partitions_stays_within_its_limit(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "STATE_BYTES_MAX", share_groups.TOPIC_BYTES + 1 + 4 * 2)
    a = shares.share_member("A")
    shares.answer_state()
    shares.share_settle(a)
    assert a.assigned == {"t": [0, 1]}
    assert not shares.asked


def test_a_deleted_topic_is_forgotten(shares: ShareWorld) -> None:
    shares.create("u", 1)
    shares.answers_at_once = True
    a = shares.share_member("A", "t", "u")
    shares.share_settle(a)
    shares.delete("u")
    shares.on_time()
    assert [type(record.key) for record in shares.written] == [ShareGroupStatePartitionMetadataKey]
    assert shares.initialized() == {"t": [0, 1, 2, 3]}
    shares.create("u", 2)
    shares.share_settle(a)
    assert a.assigned == {"t": [0, 1, 2, 3], "u": [0, 1]}


def test_topics_that_were_deleted_during_a_failover_are_forgotten(shares: ShareWorld) -> None:
    shares.answers_at_once = True
    shares.share_member("A")
    shares.topics.delete("t")
    shares.fail_over()
    shares.on_time()
    assert not shares.initialized()


def test_a_topic_that_was_deleted_before_the_answer_gets_no_state(shares: ShareWorld) -> None:
    shares.share_member("A")
    shares.delete("t")
    shares.on_time()
    shares.answer_state()
    assert (shares.initializing(), shares.initialized()) == ({}, {})


def test_many_groups_forget_a_topic_in_several_calls(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None in the turn of the new image, which all partitions of the groups' topic share."""
    monkeypatch.setattr(share_groups, "TOPICS_PER_CALL_MAX", share_groups.EFFORT_OF_A_CHANGE + 2)
    shares.answers_at_once = True
    for number in range(5):
        shares.share_member("A", group=f"g{number}")
    shares.delete("t")
    assert not shares.written
    shares.on_time()
    assert len(shares.written) == 2
    shares.pass_time(2)
    assert not any(shares.share_group(f"g{number}").partitions.initialized for number in range(5))


# -- deletion --------------------------------------------------------------------------------------------


def test_the_state_is_deleted_before_the_group(shares: ShareWorld) -> None:
    a = shares.share_member("A")
    shares.answer_state()
    assert shares.deleted(shares.delete_groups("g")) == [ErrorCode.non_empty_group]
    a.leave()
    token = shares.delete_groups("g", "missing")
    [action] = shares.asked
    assert isinstance(action, DeleteShareState)
    assert shares.named(action.topics) == {"t": [0, 1, 2, 3]}
    assert not shares.is_answered(token)
    assert shares.share_group().partitions.deleting == {shares.topics.id_of("t")}
    shares.answer_state()
    assert shares.deleted(token) == [ErrorCode.none, ErrorCode.group_id_not_found]
    assert not shares.has_group()
    shares.fail_over()
    assert not shares.has_group()


def test_a_group_without_a_state_is_deleted_at_once(shares: ShareWorld) -> None:
    shares.share_member("A", "missing").leave()
    assert shares.deleted(shares.delete_groups("g")) == [ErrorCode.none]
    assert not shares.has_group()


def test_a_failed_deletion_can_be_tried_again(shares: ShareWorld) -> None:
    shares.share_member("A").leave()
    shares.answer_state()
    first, second = shares.delete_groups("g"), shares.delete_groups("g")
    assert len(shares.asked) == 1, "both wait for the same answer"
    shares.fail_state()
    assert shares.deleted(first) == shares.deleted(second) == [FAILED]
    shares.fail_over()
    token = shares.delete_groups("g")
    [action] = shares.asked
    assert shares.named(action.topics) == {"t": [0, 1, 2, 3]}
    shares.answer_state()
    assert shares.deleted(token) == [ErrorCode.none]


def test_only_so_many_requests_wait_for_a_deletion(
    shares: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "DELETIONS_MAX", 1)
    shares.share_member("A").leave()
    shares.answer_state()
    first = shares.delete_groups("g")
    assert shares.deleted(shares.delete_groups("g")) == [FAILED]
    shares.answer_state()
    assert shares.deleted(first) == [ErrorCode.none]


def test_a_state_begins_again_after_a_failed_deletion(shares: ShareWorld) -> None:
    shares.share_member("A").leave()
    shares.answer_state()
    token = shares.delete_groups("g")
    shares.fail_state()
    assert shares.deleted(token) == [FAILED]
    assert shares.share_group().partitions.deleting
    shares.pass_time(1_000)
    b = shares.share_member("B")
    assert not shares.share_group().partitions.deleting
    shares.answer_state()
    shares.share_settle(b)
    assert b.assigned == {"t": [0, 1, 2, 3]}


def test_a_deletion_waits_for_the_state_that_is_being_begun(shares: ShareWorld) -> None:
    shares.share_member("A").leave()
    token = shares.delete_groups("g")
    [begins] = shares.asked
    assert isinstance(begins, InitializeShareState)
    shares.answer_state()
    [deletes] = shares.asked
    assert isinstance(deletes, DeleteShareState)
    shares.answer_state()
    assert shares.deleted(token) == [ErrorCode.none]


def test_a_group_that_a_member_joins_meanwhile_is_not_deleted(shares: ShareWorld) -> None:
    shares.share_member("A").leave()
    shares.answer_state()
    token = shares.delete_groups("g")
    b = shares.share_member("B")
    assert len(shares.asked) == 1, "the state begins again when it has been deleted"
    shares.answer_state()
    assert shares.deleted(token) == [ErrorCode.non_empty_group]
    shares.answer_state()
    shares.share_settle(b)
    assert b.assigned == {"t": [0, 1, 2, 3]}


def test_an_answer_about_a_former_group_is_ignored(shares: ShareWorld) -> None:
    shares.share_member("A", "t").leave()
    former = shares.asked[0]
    shares.answer_state({UUID(int=0): {}, **ShareStateResult.failed(former, FAILED).errors})
    assert shares.deleted(shares.delete_groups("g")) == [ErrorCode.none]
    shares.share_member("A")
    effects = shares.shard.on_share_state(ShareStateResult(former), shares.now_ms, shares.wall_ms)
    assert not effects.records


# ── changes of the offsets of a group without members ───────────────────────────────────────────
def test_while_the_state_of_a_group_is_being_changed_its_offsets_are_not(shares: ShareWorld) -> None:
    """Until the share coordinator has answered, or has had the time for it."""
    change = AlterShareGroupOffsets("g", {shares.topics.id_of("t"): {0: 5}})
    first = shares.send(change)
    late = shares.asked.pop()
    assert offsets(shares, late) == {"t": {0: 5}}
    shares.pass_time(share_groups.ANSWERED_WITHIN_MS - 1)
    assert shares.ask(change, ShareGroupOffsetsResult).error_code is ErrorCode.coordinator_load_in_progress
    shares.pass_time(1)
    second = shares.send(change)
    assert offsets(shares, shares.asked[0]) == {"t": {0: 5}}
    errors = shares.answer(first, ShareGroupOffsetsResult).errors
    assert errors == {shares.topics.id_of("t"): {0: FAILED}}, "its answer would come too late"
    shares.answer_state()
    assert shares.answer(second, ShareGroupOffsetsResult).error_code is ErrorCode.none
    assert shares.initialized() == {"t": [0]}
    assert not shares.unanswered()
