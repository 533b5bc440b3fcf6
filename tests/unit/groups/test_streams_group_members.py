"""Members of a streams group: how they join, get tasks, hand them on, are told why they have none, and go."""

from __future__ import annotations

from typing import Any

import pytest
from group_harness import DELAY_MS
from msgspec.structs import replace
from streams_group_harness import (
    AT_ONCE,
    COPYING,
    COUNTING,
    STREAMS_SESSION_MS,
    StreamsClient,
    StreamsWorld,
    ids,
    stateful,
)

from nilometer.groups.requests import (
    ListGroups,
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitResult,
    OffsetCommitTopic,
    OffsetDelete,
    OffsetDeleteResult,
    OffsetDeleteTopic,
    OffsetFetch,
    OffsetFetchResult,
    StreamsGroupHeartbeat,
    StreamsGroupHeartbeatResult,
    TaskOffset,
    streams_bytes,
)
from nilometer.groups.settings import GroupConfig
from nilometer.groups.streams import streams_groups
from nilometer.groups.streams.group import TASK_BYTES
from nilometer.groups.streams.tasks import Tasks
from nilometer.groups.streams_topology import (
    TOPOLOGY_NAMES_MAX,
    Endpoint,
    KeyValue,
    Status,
    Subtopology,
    TopicInfo,
    Topology,
)
from nilometer.wire.errors import ErrorCode


def world(**settings: Any) -> StreamsWorld:
    at_once = {"group_streams_initial_rebalance_delay_ms": 0, "group_streams_assignment_interval_ms": 0}
    found = StreamsWorld(config=GroupConfig(**(at_once | settings)))
    found.create("t", 4)
    return found


# ── joining ─────────────────────────────────────────────────────────────────────────────────────────
def test_the_first_member_gets_every_task() -> None:
    streams = world()
    member = streams.streams_member("m1")
    assert member.active == [("0", 0), ("0", 1), ("0", 2), ("0", 3)]
    assert member.last.heartbeat_interval_ms == 5_000
    assert member.status == []
    assert streams.streams_group().state == "Stable"
    listed = streams.listed(ListGroups())[0]
    assert (listed.protocol_type, listed.group_type, listed.group_state) == ("streams", "streams", "Stable")


def test_a_second_member_gets_tasks_once_the_first_has_revoked_them() -> None:
    streams = world()
    first = streams.streams_member("m1")
    second = streams.streams_member("m2")
    assert second.active == []
    first.step()
    assert len(first.active) == 2
    second.step()
    assert second.active == []  # the first has not confirmed it
    first.step()
    second.step()
    assert sorted(first.active + second.active) == [("0", each) for each in range(4)]
    streams.streams_settle(first, second)
    assert streams.streams_group().state == "Stable"


def test_internal_topics_are_asked_for_and_then_the_tasks_are_given() -> None:
    streams = world()
    member = streams.streams_member("m1", topology=COUNTING)
    assert member.active == []
    assert member.status == [Status.MISSING_INTERNAL_TOPICS]
    assert [(topic.name, topic.partitions) for topic in member.last.missing_topics] == [("0-changelog", 4)]
    assert member.last.heartbeat_interval_ms == 500
    assert streams.streams_group().state == "NotReady"
    streams.create_missing()
    member.step()
    assert len(member.active) == 4
    assert member.last.missing_topics == ()
    assert member.status == []


def test_a_source_topic_is_missing_until_it_is_created() -> None:
    streams = world()
    member = streams.streams_member("m1", topology=Topology(0, (Subtopology("0", ("later",)),)))
    assert member.status == [Status.MISSING_SOURCE_TOPICS]
    streams.create("later", 1)
    member.step()
    assert member.active == [("0", 0)]


def test_a_topic_that_grows_has_more_tasks() -> None:
    streams = world()
    member = streams.streams_member("m1")
    streams.grow("t", 6)
    member.step()
    assert len(member.active) == 6


def test_the_first_assignment_waits_for_more_members() -> None:
    streams = world(group_streams_initial_rebalance_delay_ms=3_000)
    first, second = streams.streams_member("m1"), streams.streams_member("m2")
    assert first.status == [Status.ASSIGNMENT_DELAYED]
    assert first.last.heartbeat_interval_ms == 3_000
    streams.pass_time(2_999)
    first.step()
    assert first.active == []
    assert first.last.heartbeat_interval_ms == 100
    streams.pass_time(1)
    for member in (first, second):
        member.step()
    assert (len(first.active), len(second.active)) == (2, 2)


def test_target_assignments_keep_their_interval() -> None:
    streams = world(group_streams_assignment_interval_ms=1_000)
    first = streams.streams_member("m1")
    second = streams.streams_member("m2")
    assert second.status == [Status.ASSIGNMENT_DELAYED]
    assert second.last.heartbeat_interval_ms == 1_000
    streams.pass_time(1_000)
    second.step()
    assert second.status == []
    streams.streams_settle(first, second)


def test_a_member_that_lost_the_reply_gets_its_tasks_again() -> None:
    streams = world()
    member = StreamsClient(streams, "m1")
    member.step(loses_reply=True)
    member.step()
    assert len(member.active) == 4
    streams.grow("t", 5)
    member.step(loses_reply=True)
    assert len(member.active) == 4
    member.step()  # with its previous epoch
    assert len(member.active) == 5


def test_standby_tasks_are_with_another_process() -> None:
    streams = world(group_streams_num_standby_replicas=1)
    members = [
        StreamsClient(streams, name, process, topology=COUNTING)
        for name, process in (("m1", "p"), ("m2", "p"), ("m3", "q"))
    ]
    members[0].step()
    streams.create_missing()
    streams.streams_settle(*members)
    assert sorted(task for member in members for task in member.active) == [("0", each) for each in range(4)]
    assert sorted(task for member in members for task in member.standby) == [("0", each) for each in range(4)]
    assert not set(members[2].active) & set(members[2].standby)


def test_a_setting_of_the_group_counts_from_the_next_heartbeat() -> None:
    streams = world()
    members = [StreamsClient(streams, name, topology=COUNTING) for name in ("m1", "m2")]
    members[0].step()
    streams.create_missing()
    streams.streams_settle(*members)
    epoch = streams.streams_group().group_epoch
    streams.topics.configure("g", "streams.num.standby.replicas", "1")
    streams.see_image(streams.topics.image)
    streams.streams_settle(*members)
    assert streams.streams_group().group_epoch > epoch
    assert [len(member.standby) for member in members] == [2, 2]


# ── the topology ────────────────────────────────────────────────────────────────────────────────────
def test_members_with_the_same_topology_join_whatever_the_order_of_its_parts() -> None:
    streams = world()
    streams.create("u", 1)
    parts = (Subtopology("0", ("t",)), Subtopology("1", ("u",)))
    streams.streams_member("m1", topology=Topology(0, parts))
    assert streams.streams_member("m2", topology=Topology(0, parts[::-1])).epoch > 0


def test_another_topology_is_refused() -> None:
    streams = world()
    streams.streams_member("m1")
    for epoch in (0, 1):
        reply = streams.streams_beat("m2", 0, topology=Topology(epoch, COUNTING.subtopologies))
        assert reply.error_code is ErrorCode.invalid_request
        assert reply.error_message == "Topology updates are not supported yet."
    assert list(streams.streams_group().members) == ["m1"]


def test_a_member_with_an_older_topology_is_told_so() -> None:
    streams = world()
    streams.streams_member("m1", topology=Topology(2, COPYING.subtopologies))
    old = streams.streams_member("m2", topology=Topology(1, COUNTING.subtopologies))
    assert Status.STALE_TOPOLOGY in old.status


def test_an_invalid_topology_leaves_no_group_behind() -> None:
    streams = world()
    reply = streams.streams_beat("m1", 0, topology=Topology(0, (Subtopology("0"),)))
    assert reply.error_code is ErrorCode.streams_invalid_topology
    assert not streams.has_group()
    assert not streams.log


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request, "RebalanceTimeoutMs must be provided"),
        ({"active_tasks": None}, ErrorCode.invalid_request, "ActiveTasks must be empty"),
        ({"standby_tasks": ids(frozenset({("0", 1)}))}, ErrorCode.invalid_request, "StandbyTasks must be"),
        ({"topology": None}, ErrorCode.invalid_request, "Topology must be non-null"),
        ({"topology": Topology(-1, ())}, ErrorCode.invalid_request, "must be non-negative"),
        ({"instance_id": " "}, ErrorCode.invalid_request, "InstanceId can't be empty"),
        ({"rack_id": ""}, ErrorCode.invalid_request, "RackId can't be empty"),
        (
            {"topology": Topology(0, (Subtopology("0", ("t",), ("t.*",)),))},
            ErrorCode.invalid_request,
            "Regular expressions for source topics are not supported yet.",
        ),
        (
            {"topology": Topology(0, 2 * (Subtopology("0", ("t",)),))},
            ErrorCode.streams_invalid_topology,
            "A subtopology id is given twice.",
        ),
        (
            {"topology": Topology(0, (Subtopology("0", ("t",) * TOPOLOGY_NAMES_MAX),))},
            ErrorCode.streams_invalid_topology,
            f"more than {TOPOLOGY_NAMES_MAX} topics",
        ),
        (
            {"topology": Topology(0, (Subtopology("0", ("t",), (), (TopicInfo("log", 3),)),))},
            ErrorCode.streams_invalid_topology,
            "Changelog topic log must have an undefined partition count, but it is set to 3.",
        ),
        (
            {"topology": Topology(0, (Subtopology("0", ("t",), (), (), (), (TopicInfo("r", -3),)),))},
            ErrorCode.streams_invalid_topology,
            "Repartition topic r has a negative partition count, -3.",
        ),
        (
            {"task_offsets": 2 * (TaskOffset("0", 1, 5),)},
            ErrorCode.invalid_request,
            "a duplicate entry for subtopology 0 and partition 1",
        ),
    ],
)
def test_an_invalid_first_heartbeat(fields: dict[str, Any], code: ErrorCode, message: str) -> None:
    streams = world()
    reply = streams.streams_beat("m1", 0, **fields)
    assert reply.error_code is code
    assert message in (reply.error_message or "")
    assert not streams.log


@pytest.mark.parametrize(
    ("epoch", "fields", "message"),
    [
        (-3, {}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (-2, {}, "InstanceId can't be null."),
        (2, {"topology": COPYING}, "Topology can only be provided when (re-)joining."),
        (2, {"active_tasks": ()}, "If one task-type is non-null, all must be non-null."),
        (
            2,
            {"active_tasks": ids(frozenset({("7", 0)})), "standby_tasks": (), "warmup_tasks": ()},
            "Subtopology 7 does not exist in the topology.",
        ),
        (
            2,
            {"active_tasks": ids(frozenset({("0", 4)})), "standby_tasks": (), "warmup_tasks": ()},
            "Task 4 for subtopology 0 is invalid. Number of tasks for this subtopology: 4",
        ),
    ],
)
def test_an_invalid_later_heartbeat(epoch: int, fields: dict[str, Any], message: str) -> None:
    streams = world()
    assert streams.streams_member("m1").epoch == 2
    reply = streams.streams_beat("m1", epoch, **fields)
    assert (reply.error_code, reply.error_message) == (ErrorCode.invalid_request, message)


# ── epochs ──────────────────────────────────────────────────────────────────────────────────────────
def test_wrong_epochs_are_fenced() -> None:
    streams = world()
    member = streams.streams_member("m1")
    assert streams.streams_beat("m1", member.epoch + 1).error_code is ErrorCode.fenced_member_epoch
    assert streams.streams_beat("m1", member.epoch - 1).error_code is ErrorCode.fenced_member_epoch
    assert streams.streams_beat("other", 1).error_code is ErrorCode.unknown_member_id
    assert streams.streams_beat("m1", 2, group="none").error_code is ErrorCode.group_id_not_found


def test_the_previous_epoch_is_good_for_what_the_member_has() -> None:
    streams = world()
    first = streams.streams_member("m1")
    streams.grow("t", 5)
    before = first.epoch
    first.step()
    mine = {"standby_tasks": (), "warmup_tasks": ()}
    owned = ids(frozenset({("0", 0), ("0", 4)}))
    assert streams.streams_beat("m1", before, active_tasks=owned, **mine).error_code is ErrorCode.none
    streams.streams_member("m2")
    first.step()
    other = ids(frozenset({("0", each) for each in range(5)}))
    late = streams.streams_beat("m1", before, active_tasks=other, **mine)
    assert late.error_code is ErrorCode.fenced_member_epoch


def test_the_epoch_before_the_previous_one_is_fenced() -> None:
    streams = world()
    first = streams.streams_member("m1")
    epochs = [first.epoch]
    for partitions in (5, 6):
        streams.grow("t", partitions)
        first.step()
        epochs.append(first.epoch)
    assert epochs == sorted(set(epochs))
    mine = {"active_tasks": (), "standby_tasks": (), "warmup_tasks": ()}
    oldest, previous, _ = epochs
    assert streams.streams_beat("m1", oldest, **mine).error_code is ErrorCode.fenced_member_epoch
    assert streams.streams_beat("m1", previous, **mine).error_code is ErrorCode.none


def test_the_group_is_full() -> None:
    streams = world(group_streams_max_size=1)
    streams.streams_member("m1")
    reply = streams.streams_beat("m2", 0)
    assert reply.error_code is ErrorCode.group_max_size_reached
    assert streams.streams_beat("m1", 0).error_code is ErrorCode.none


# ── going ───────────────────────────────────────────────────────────────────────────────────────────
def test_a_member_that_leaves_hands_its_tasks_on() -> None:
    streams = world()
    first, second = streams.streams_member("m1"), StreamsClient(streams, "m2")
    streams.streams_settle(first, second)
    assert first.leave() is ErrorCode.none
    second.step()
    assert len(second.active) == 4


def test_a_member_that_is_not_there_cannot_leave() -> None:
    streams = world()
    member = streams.streams_member("m1")
    assert streams.streams_beat("other", -1).error_code is ErrorCode.unknown_member_id
    assert member.leave() is ErrorCode.none
    assert member.leave() is ErrorCode.unknown_member_id


def test_a_member_without_heartbeats_is_fenced() -> None:
    streams = world()
    first, second = streams.streams_member("m1"), StreamsClient(streams, "m2")
    streams.streams_settle(first, second)
    streams.pass_time(STREAMS_SESSION_MS - 1)
    second.step()
    streams.pass_time(1)
    second.step()
    assert len(second.active) == 4
    assert first.step() is ErrorCode.unknown_member_id


def test_a_member_that_does_not_revoke_is_fenced_after_its_rebalance_timeout() -> None:
    streams = world()
    streams.streams_member("m1")
    second = streams.streams_member("m2")
    streams.streams_beat("m1", 2)  # it is told to revoke two tasks
    for _ in range(6):
        streams.pass_time(4_999)
        streams.streams_beat("m1", 2)
    assert "m1" in streams.streams_group().members
    streams.pass_time(6)
    assert list(streams.streams_group().members) == ["m2"]
    second.step()
    assert len(second.active) == 4


def test_the_last_member_leaves_an_empty_group() -> None:
    streams = world()
    streams.streams_member("m1").leave()
    group = streams.streams_group()
    assert (group.state, group.group_epoch) == ("Empty", group.assignment_epoch)
    assert group.check_delete() is ErrorCode.none


def test_a_static_member_comes_back_with_another_id_and_the_same_tasks() -> None:
    streams = world()
    first = streams.streams_member("m1", instance_id="i1")
    second = StreamsClient(streams, "m2")
    streams.streams_settle(first, second)
    had, epoch = first.active, streams.streams_group().group_epoch
    assert first.leave(-2) is ErrorCode.none
    again = streams.streams_member("m3", instance_id="i1", process_id="process-m1")
    assert again.active == had
    assert streams.streams_group().group_epoch == epoch
    assert first.step() is not ErrorCode.none


def test_the_instance_id_of_a_member_that_is_there_is_taken() -> None:
    streams = world()
    member = streams.streams_member("m1", instance_id="i1")
    reply = streams.streams_beat("m2", 0, instance_id="i1")
    assert reply.error_code is ErrorCode.unreleased_instance_id
    reply = streams.streams_beat("m2", member.epoch, instance_id="i1")
    assert reply.error_code is ErrorCode.fenced_instance_id
    reply = streams.streams_beat("m1", member.epoch, instance_id="i2")
    assert reply.error_code is ErrorCode.unknown_member_id


@pytest.mark.parametrize("epoch", [-1, -2])
def test_a_static_member_leaves_with_its_own_instance_id(epoch: int) -> None:
    streams = world()
    streams.streams_member("m1", instance_id="i1")
    streams.streams_member("m2", instance_id="i2")
    reply = streams.streams_beat("m2", epoch, instance_id="i1")
    assert reply.error_code is ErrorCode.fenced_instance_id
    reply = streams.streams_beat("m2", epoch, instance_id="i3")
    assert reply.error_code is ErrorCode.unknown_member_id
    assert set(streams.streams_group().members) == {"m1", "m2"}
    assert streams.streams_beat("m2", epoch, instance_id="i2").error_code is ErrorCode.none


def test_every_member_is_told_of_a_shutdown_until_the_group_is_empty() -> None:
    streams = world()
    first, second = streams.streams_member("m1"), streams.streams_member("m2")
    streams.streams_beat("m2", second.epoch, shutdown_application=True)
    first.step()
    assert Status.SHUTDOWN_APPLICATION in first.status
    first.leave()
    second.leave()
    assert Status.SHUTDOWN_APPLICATION not in streams.streams_member("m3").status


def test_a_static_member_that_leaves_for_a_while_may_ask_for_a_shutdown() -> None:
    streams = world()
    streams.streams_member("m1", instance_id="i1")
    second = streams.streams_member("m2")
    streams.streams_beat("m1", -2, instance_id="i1", shutdown_application=True)
    second.step()
    assert Status.SHUTDOWN_APPLICATION in second.status


# ── what members say of themselves ──────────────────────────────────────────────────────────────────
def test_endpoints_are_told_to_all_when_they_change() -> None:
    streams = world()
    at = Endpoint("h", 80)
    reply = streams.streams_beat("m1", 0, user_endpoint=at, endpoint_information_epoch=-1)
    assert reply.endpoint_information_epoch == 1
    assert reply.partitions_by_user_endpoint is not None
    [entry] = reply.partitions_by_user_endpoint
    assert (entry.user_endpoint, entry.active, entry.standby) == (at, {"t": (0, 1, 2, 3)}, {})
    reply = streams.streams_beat("m1", reply.member_epoch, endpoint_information_epoch=1)
    assert reply.partitions_by_user_endpoint is None


def test_a_member_without_the_tags_that_it_must_have_is_told_so() -> None:
    streams = world(group_streams_rack_aware_assignment_tags=("zone", "cluster"))
    tags = (KeyValue("zone", "a"),)
    old = streams.streams_beat("m1", 0, client_tags=tags)
    assert [each.status_code for each in old.status] == []
    new = streams.streams_beat("m2", 0, client_tags=tags, knows_missing_tags=True)
    assert new.status[-1].status_code is Status.MISSING_CLIENT_TAGS
    assert "[cluster]" in new.status[-1].status_detail


def test_offsets_of_tasks_are_kept_while_the_tasks_exist() -> None:
    streams = world()
    told = (TaskOffset("0", 1, 5), TaskOffset("0", 9, 5), TaskOffset("8", 0, 5))
    streams.streams_beat("m1", 0, task_offsets=told)
    streams.streams_beat("m1", 2, task_end_offsets=(TaskOffset("0", 1, 8),))
    [member] = streams.describe_streams().members
    assert tuple(member.task_offsets) == (TaskOffset("0", 1, 5),)
    assert tuple(member.task_end_offsets) == (TaskOffset("0", 1, 8),)


@pytest.mark.parametrize(
    "fields",
    [
        {"process_id": "p" * 30_000},
        {"rack_id": "r" * 30_000},
        {"user_endpoint": Endpoint("h" * 30_000, 80)},
        {"client_tags": (KeyValue("t", "v" * 30_000),)},
        {"task_end_offsets": tuple(TaskOffset("0", each, 1) for each in range(300))},
    ],
)
def test_whatever_a_later_heartbeat_changes_counts_for_the_memory_of_members(fields: dict[str, Any]) -> None:
    streams = world()
    streams.create("wide", 300)
    member = streams.streams_member("m1", topology=Topology(0, (Subtopology("0", ("wide",)),)))
    before = streams.streams_group().metadata_bytes()
    request = StreamsGroupHeartbeat(group_id="g", member_id="m1", member_epoch=member.epoch, **fields)
    assert streams_bytes(request) >= 30_000
    streams.ask(request, StreamsGroupHeartbeatResult)
    assert streams.streams_group().metadata_bytes() >= before + 29_000
    assert streams_bytes(replace(request, **dict.fromkeys(fields))) == 0


def test_a_description_has_the_topology_and_each_member() -> None:
    streams = world()
    member = streams.streams_member("m1", topology=COUNTING)
    found = streams.describe_streams()
    assert (found.group_state, found.topology, found.configured) == ("NotReady", COUNTING, None)
    streams.create_missing()
    member.step()
    found = streams.describe_streams()
    assert found.group_state == "Stable"
    assert found.configured is not None
    assert found.configured["0"].state_changelog_topics[0].partitions == 4
    [described] = found.members
    assert described.assignment == described.target_assignment
    assert described.assignment.active_tasks == ids(frozenset({("0", each) for each in range(4)}))
    assert (described.process_id, described.topology_epoch) == ("process-m1", 0)
    assert found.assignor_name == "sticky"
    assert streams.describe_streams("none").error_code is ErrorCode.group_id_not_found


def test_a_group_whose_topology_turns_out_invalid_is_described_by_its_new_coordinator() -> None:
    """What is wrong with the topology is known only once its source topics exist. An error here would have
    the whole shard loaded again."""
    streams = world()
    loop = Subtopology("0", (), repartition_sink_topics=("r",), repartition_source_topics=(TopicInfo("r"),))
    topology = Topology(0, (loop, Subtopology("1", ("later",))))
    member = streams.streams_member("m1", topology=topology)
    assert member.status == [Status.MISSING_SOURCE_TOPICS]
    streams.create("later", 1)
    streams.fail_over()
    assert member.step() is ErrorCode.streams_invalid_topology
    found = streams.describe_streams()
    assert (found.error_code, found.group_state, found.configured) == (ErrorCode.none, "NotReady", None)


# ── offsets, and other kinds of groups ──────────────────────────────────────────────────────────────
def commit(
    streams: StreamsWorld, member_id: str, epoch: int, partition: int, *, topic: str = "t"
) -> ErrorCode:
    topics = (OffsetCommitTopic(topic, (OffsetCommitPartition(partition, 7),), streams.topics.id_of(topic)),)
    reply = streams.ask(
        OffsetCommit("g", topics, generation_id_or_member_epoch=epoch, member_id=member_id),
        OffsetCommitResult,
    )
    return reply.topics[0].partitions[0].error_code


def test_members_commit_with_their_epoch_or_one_since_which_they_have_the_task() -> None:
    streams = world()
    first = streams.streams_member("m1")
    old = first.epoch
    assert commit(streams, "m1", old, 0) is ErrorCode.none
    assert commit(streams, "m1", old + 1, 0) is ErrorCode.stale_member_epoch
    assert commit(streams, "none", old, 0) is ErrorCode.unknown_member_id
    assert commit(streams, "", -1, 0) is ErrorCode.unknown_member_id
    second = StreamsClient(streams, "m2")
    streams.streams_settle(first, second)
    kept, lost = first.active[0][1], second.active[0][1]
    assert commit(streams, "m1", old, kept) is ErrorCode.none
    assert commit(streams, "m1", old, lost) is ErrorCode.stale_member_epoch
    assert commit(streams, "m2", old, lost) is ErrorCode.stale_member_epoch  # assigned later
    streams.create("u", 1)
    assert commit(streams, "m1", old, 0, topic="u") is ErrorCode.stale_member_epoch


def test_offsets_are_fetched_by_members_and_by_tools() -> None:
    streams = world()
    member = streams.streams_member("m1")
    commit(streams, "m1", member.epoch, 0)

    def fetch(member_id: str | None, epoch: int) -> ErrorCode:
        request = OffsetFetch("g", None, member_id=member_id, member_epoch=epoch)
        return streams.ask(request, OffsetFetchResult).error_code

    assert fetch(None, -1) is ErrorCode.none
    assert fetch("m1", member.epoch) is ErrorCode.none
    assert fetch("m1", member.epoch + 1) is ErrorCode.stale_member_epoch
    assert fetch("none", member.epoch) is ErrorCode.unknown_member_id


def test_offsets_of_topics_that_are_read_are_not_deleted() -> None:
    streams = world()
    member = streams.streams_member("m1")
    commit(streams, "m1", member.epoch, 0)
    request = OffsetDelete("g", (OffsetDeleteTopic("t", (0,)),))

    def deleted() -> ErrorCode:
        return streams.ask(request, OffsetDeleteResult).topics[0].partitions[0].error_code

    assert deleted() is ErrorCode.group_subscribed_to_topic
    member.leave()
    assert deleted() is ErrorCode.none


def test_an_empty_classic_group_becomes_a_streams_group_and_back() -> None:
    streams = world()
    commit(streams, "", -1, 0)  # creates a simple group
    member = streams.streams_member("m1")
    assert len(member.active) == 4
    request = OffsetFetch("g", None)
    [topic] = streams.ask(request, OffsetFetchResult).topics
    assert topic.partitions[0].committed_offset == 7
    assert streams.joined(streams.join()).error_code is ErrorCode.inconsistent_group_protocol
    member.leave()
    token = streams.join()
    streams.pass_time(DELAY_MS)
    assert streams.joined(token).error_code is ErrorCode.none


def test_a_group_of_another_kind_is_no_streams_group() -> None:
    streams = world()
    assert streams.beat("c1", 0, topics=("t",), owned={}, rebalance_ms=1).error_code is ErrorCode.none
    reply = streams.streams_beat("m1", 0)
    assert reply.error_code is ErrorCode.group_id_not_found
    assert reply.error_message == "Group g is not a streams group."


def test_a_new_coordinator_goes_on_where_the_former_one_was() -> None:
    streams = world(group_streams_num_standby_replicas=1)
    members = [StreamsClient(streams, name, topology=COUNTING) for name in ("m1", "m2")]
    members[0].step()
    streams.create_missing()
    streams.streams_settle(*members)
    before = [(member.epoch, member.owned) for member in members]
    streams.fail_over()
    for member in members:
        assert member.step() is ErrorCode.none
    assert [(member.epoch, member.owned) for member in members] == before
    streams.pass_time(STREAMS_SESSION_MS)
    assert streams.streams_group().is_empty


def test_what_a_record_of_a_later_version_says_of_a_member_is_not_believed() -> None:
    streams = world()
    streams.streams_member("m1")
    key, value = next(entry for entry in reversed(streams.log) if entry[0][:2] == b"\x00\x16")
    assert value is not None
    streams.log.append((key, value[:10] + b"\x09" + value[11:]))
    streams.fail_over()
    claimed = {"active_tasks": ids(frozenset({("0", 0)})), "standby_tasks": (), "warmup_tasks": ()}
    assert streams.streams_beat("m1", 2, **claimed).error_code is ErrorCode.fenced_member_epoch
    nothing = dict.fromkeys(claimed, ())
    reply = streams.streams_beat("m1", 2, **nothing)
    assert reply.error_code is ErrorCode.none


def test_many_members_and_tasks_are_assigned_outside_of_the_shard() -> None:
    streams = StreamsWorld(config=AT_ONCE)
    streams.create("t", 1_000)
    streams.create("u", 100)
    topology = Topology(0, (stateful("0", "t"), Subtopology("1", ("u",))))
    streams.create("0-changelog", 1_000)
    member = streams.streams_member("m1", topology=topology)
    assert member.owned == Tasks()
    assert streams.needed
    assert member.last.heartbeat_interval_ms <= 1_000
    streams.compute()
    member.step()
    assert len(member.active) == 1_100


def test_tasks_are_counted_before_a_member_joins_that_may_get_them() -> None:
    """A topology of few names has thousands of tasks: its groups together have a limit."""
    streams = world()
    room = [100 * TASK_BYTES]

    def has_room(size: int) -> bool:
        if size > room[0]:
            return False
        room[0] -= size
        return True

    streams.shard._state.has_room = has_room
    wide = Topology(0, tuple(Subtopology(str(number), ("t",)) for number in range(20)))
    replies = [
        streams.streams_beat(name, 0, group=group, topology=wide)
        for group, name in (("g1", "m1"), ("g1", "m2"), ("g2", "m"))
    ]
    errors = [reply.error_code for reply in replies]
    assert errors == [ErrorCode.none, ErrorCode.none, ErrorCode.group_max_size_reached]
    assert not streams.has_group("g2")
    held = streams.streams_group("g1")
    assert held.metadata_bytes() > 80 * TASK_BYTES
    streams.grow("t", 8)
    epoch = replies[0].member_epoch
    assert streams.streams_beat("m1", epoch, group="g1").error_code is ErrorCode.none, "it is a member"
    assert held.metadata_bytes() > 160 * TASK_BYTES
    for name in ("m1", "m2"):
        streams.streams_beat(name, -1, group="g1")
    assert held.metadata_bytes() < 80 * TASK_BYTES


def test_standby_tasks_of_a_changed_setting_are_counted_with_the_next_heartbeat() -> None:
    streams = world()
    streams.create("many", 1_000)
    streams.create("0-changelog", 1_000)
    member = StreamsClient(streams, "m1", topology=Topology(0, (stateful("0", "many"),)))
    member.step()
    streams.streams_settle(member)
    before = streams.streams_group().metadata_bytes()
    streams.topics.configure("g", "streams.num.standby.replicas", "1")
    streams.see_image(streams.topics.image)
    streams.streams_settle(member)
    assert streams.streams_group().metadata_bytes() >= before + 1_000 * TASK_BYTES


def test_where_tasks_can_be_queried_is_found_once_for_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat of a member that has not the newest list gets it: with 1,000 members it took 20 ms."""
    streams = world()
    asked: list[int] = []
    find = streams_groups._partitions_of

    def count(tasks: Any, configured: Any, topics: Any) -> Any:
        asked.append(len(tasks))
        return find(tasks, configured, topics)

    monkeypatch.setattr(streams_groups, "_partitions_of", count)
    members = {name: StreamsClient(streams, name) for name in ("m1", "m2", "m3")}
    for member in members.values():
        member.step()
    streams.streams_settle(*members.values())
    for name, member in members.items():
        streams.streams_beat(name, member.epoch, user_endpoint=Endpoint(name, 1))
    streams.streams_settle(*members.values())

    def told() -> dict[str, dict[str, tuple[int, ...]]]:
        asked.clear()
        reply = streams.streams_beat("m1", members["m1"].epoch, endpoint_information_epoch=-2)
        found = reply.partitions_by_user_endpoint or ()
        return {one.user_endpoint.host: dict(one.active) for one in found}

    def running() -> dict[str, dict[str, tuple[int, ...]]]:
        by_name = {name: tuple(each for _, each in member.active) for name, member in members.items()}
        return {name: {"t": by_name[name]} if by_name[name] else {} for name in members}

    assert told() == running()
    assert told() == running()
    assert asked == []
    members.pop("m3").leave()
    streams.streams_settle(*members.values())
    assert told() == running()
    assert told() == running() and asked == []
    streams.grow("t", 8)
    streams.streams_settle(*members.values())
    assert told() == running()


def test_where_tasks_can_be_queried_is_found_in_several_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,500 members and 1,900 sources, one heartbeat took 700 ms once any topic had been created."""
    streams = world()
    members = {name: StreamsClient(streams, name) for name in ("m1", "m2", "m3")}
    for member in members.values():
        member.step()
    streams.streams_settle(*members.values())
    for name, member in members.items():
        streams.streams_beat(name, member.epoch, user_endpoint=Endpoint(name, 1))
    streams.streams_settle(*members.values())
    monkeypatch.setattr(streams_groups, "SOURCES_AT_ONCE", 1)
    streams.streams_group().endpoints.clear()  # as if a topic had been created
    beats = 0
    while True:
        beats += 1
        reply = streams.streams_beat("m1", members["m1"].epoch, endpoint_information_epoch=-2)
        if reply.partitions_by_user_endpoint is not None:
            break
        assert reply.endpoint_information_epoch == -2, "it asks again"
    assert beats == len(members)
    assert {one.user_endpoint.host for one in reply.partitions_by_user_endpoint} == set(members)
    assert reply.endpoint_information_epoch >= 0
