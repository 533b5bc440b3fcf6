"""State that clients make large: many partitions, a large group, long transactional ids. What a broker does
with all of it holds the event loop for no other client, either."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nilometer.broker.coordinator_shells import partition_for_key
from nilometer.groups.offsets import PENDING_MAX
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.turns import TURN_MS_MAX, longest_turns_ms
from support.brokers.two_brokers import produce_fields
from support.eventually import eventually
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer, make

TOPICS = tuple(f"t{number}" for number in range(7))
PARTITIONS = 300
WRITTEN = "written"
"""A topic that transactions write to, and groups commit offsets of."""
WRITTEN_PARTITIONS = 1_500
TRANSACTIONS = 60
DELETED_GROUPS = 40
"""In one turn they would take 0.4 s."""
MEMBERS = 600
SHARE_MEMBERS = 150
SHARED_TOPICS = 1_000
SEGMENTS = 8_000
IN_FLIGHT = 50
GROUPS = 4_000
SESSIONS_END_MS = 20_000
"""After the first one began, unless to begin them all takes longer."""
TIMEOUT_S = 120
HEAVY = "(a|aa|aaa|aaaa){0,250}z"
"""An expression that costs some microseconds for each character of "aaa…": RE2 runs out of its memory."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    folder = tmp_path_factory.mktemp("state")
    settings = {
        "metrics.listener": "127.0.0.1:0",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "log.retention.check.interval.ms": "1000",
    }
    with NilometerBroker(folder / "data", settings) as broker:
        with WirePeer(broker.bootstrap) as peer:
            for kind in (0, 1):  # of groups, of transactions: their topics are created

                def is_found(kind: int = kind) -> bool:
                    found = peer.ask(ApiKey.FIND_COORDINATOR, 4, key_type=kind, coordinator_keys=("any",))
                    return found.coordinators[0].error_code == ErrorCode.none

                eventually(is_found, "the coordinators are there")
        yield broker
        assert "Traceback" not in broker.output
        assert " ERROR " not in broker.output


@pytest.fixture
def peer(broker: NilometerBroker) -> Iterator[WirePeer]:
    with WirePeer(broker.bootstrap, timeout_s=TIMEOUT_S) as peer:
        yield peer


def heartbeat(peer: WirePeer, member: int, epoch: int, **fields: object) -> Any:
    joins = epoch == 0
    return peer.ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        group_id="large",
        member_id=f"m{member}",
        member_epoch=epoch,
        rebalance_timeout_ms=60_000 if joins else -1,
        topic_partitions=() if joins else None,
        **fields,
    )


def longest_turn_ms(broker: NilometerBroker) -> tuple[float, str]:
    return max(((ms, name) for name, ms in longest_turns_ms(broker).items()), default=(0.0, ""))


def test_thousands_of_partitions_are_created_assigned_and_deleted_in_short_turns(
    broker: NilometerBroker, peer: WirePeer
) -> None:
    topics = (*(new_topic(name, PARTITIONS) for name in TOPICS[1:]), new_topic(TOPICS[0], 4 * PARTITIONS))
    created = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout_ms=TIMEOUT_S * 1000)
    assert {topic.error_code for topic in created.topics} == {ErrorCode.none}
    eventually(
        lambda: heartbeat(peer, 0, 0, subscribed_topic_names=()).error_code == ErrorCode.none, "loaded"
    )
    for member in range(MEMBERS):
        wanted = TOPICS[member % 7 :]
        assert heartbeat(peer, member, 0, subscribed_topic_names=wanted).error_code == ErrorCode.none
    epoch = [0]

    def has_partitions() -> bool:
        reply = heartbeat(peer, MEMBERS - 1, epoch[0])
        assert reply.error_code == ErrorCode.none
        epoch[0] = reply.member_epoch
        return reply.assignment is not None and bool(reply.assignment.topic_partitions)

    epoch[0] = heartbeat(peer, MEMBERS - 1, 0, subscribed_topic_names=TOPICS).member_epoch
    eventually(has_partitions, "the last member has partitions", TIMEOUT_S)
    deleted = peer.ask(ApiKey.DELETE_TOPICS, 5, topic_names=TOPICS, timeout_ms=TIMEOUT_S * 1000)
    assert {topic.error_code for topic in deleted.responses} == {ErrorCode.none}
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def begin(peer: WirePeer, transactional_id: str, timeout_ms: int) -> Any:
    """Return the id and epoch of the producer."""
    begun: list[Any] = []

    def is_begun() -> bool:
        begun[:] = [
            peer.ask(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            )
        ]
        return begun[0].error_code == ErrorCode.none

    eventually(is_begun, "the coordinator is loaded")
    return begun[0]


@pytest.fixture(scope="module")
def written(broker: NilometerBroker) -> str:
    with WirePeer(broker.bootstrap, timeout_s=TIMEOUT_S) as peer:
        topic = new_topic(WRITTEN, WRITTEN_PARTITIONS)
        created = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=TIMEOUT_S * 1000)
        assert created.topics[0].error_code == ErrorCode.none
    return WRITTEN


def test_transactions_of_many_partitions_time_out_in_short_turns(
    broker: NilometerBroker, peer: WirePeer, written: str
) -> None:
    ids = [name for name in map(str, range(10 * TRANSACTIONS)) if partition_for_key(name, 3) == 0]
    key, every = ApiKey.ADD_PARTITIONS_TO_TXN, tuple(range(WRITTEN_PARTITIONS))
    for name in ids[:TRANSACTIONS]:
        begun = begin(peer, name, 1000)
        answer = peer.ask(
            key,
            3,
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=(make(key, 3, "AddPartitionsToTxnTopic", name=written, partitions=every),),
        )
        (topic,) = answer.results_by_topic_v3_and_below
        assert {one.partition_error_code for one in topic.results_by_partition} == {ErrorCode.none}

    def aborted() -> int:
        states = ("CompleteAbort",)
        answer = peer.ask(ApiKey.LIST_TRANSACTIONS, 0, state_filters=states, producer_id_filters=())
        return len(answer.transaction_states)

    eventually(lambda: aborted() == TRANSACTIONS, "all are aborted", TIMEOUT_S)
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def commit(peer: WirePeer, group: str, topic: str) -> None:
    """Commit an offset of each partition."""
    key = ApiKey.OFFSET_COMMIT
    partitions = tuple(
        make(
            key,
            7,
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=1,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for index in range(WRITTEN_PARTITIONS)
    )
    asked = make(key, 7, "OffsetCommitRequestTopic", name=topic, partitions=partitions)
    no_member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    answer = peer.ask(key, 7, group_id=group, **no_member, topics=(asked,))
    assert {one.error_code for one in answer.topics[0].partitions} == {ErrorCode.none}


def test_groups_with_many_offsets_are_deleted_in_short_turns(
    broker: NilometerBroker, peer: WirePeer, written: str
) -> None:
    """A request of 300 bytes removes all offsets of each group at once."""
    groups = tuple(f"deleted-{number}" for number in range(DELETED_GROUPS))
    for group in groups:
        commit(peer, group, written)
    asked = tuple(
        make(ApiKey.OFFSET_FETCH, 8, "OffsetFetchRequestGroup", group_id=group, topics=None)
        for group in groups
    )
    fetched = peer.ask(ApiKey.OFFSET_FETCH, 8, groups=asked, require_stable=False).groups
    assert [one.group_id for one in fetched] == list(groups)
    assert {len(one.topics[0].partitions) for one in fetched} == {WRITTEN_PARTITIONS}
    deleted = peer.ask(ApiKey.DELETE_GROUPS, 2, groups_names=(*groups, "absent")).results
    assert [one.group_id for one in deleted] == [*groups, "absent"]
    errors = [one.error_code for one in deleted]
    assert errors == [*[ErrorCode.none] * DELETED_GROUPS, ErrorCode.group_id_not_found]
    fetched = peer.ask(ApiKey.OFFSET_FETCH, 8, groups=asked, require_stable=False).groups
    assert {len(one.topics) for one in fetched} == {0}
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def test_a_transaction_has_a_bounded_number_of_pending_offsets(
    broker: NilometerBroker, peer: WirePeer, written: str
) -> None:
    groups = [name for name in map(str, range(100)) if partition_for_key(name, 3) == 0]
    begun = begin(peer, "offsets", 60_000)
    producer = {
        "transactional_id": "offsets",
        "producer_id": begun.producer_id,
        "producer_epoch": begun.producer_epoch,
    }
    key = ApiKey.TXN_OFFSET_COMMIT
    offsets = tuple(
        make(
            key,
            2,
            "TxnOffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=1,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        for index in range(WRITTEN_PARTITIONS)
    )
    topic = make(key, 2, "TxnOffsetCommitRequestTopic", name=written, partitions=offsets)
    added = peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, **producer, group_id=groups[0])
    assert added.error_code == ErrorCode.none
    errors: Counter[ErrorCode] = Counter()
    for group in groups[: 2 * PENDING_MAX // WRITTEN_PARTITIONS]:
        (answer,) = peer.ask(key, 2, **producer, group_id=group, topics=(topic,)).topics
        errors.update(ErrorCode(one.error_code) for one in answer.partitions)
    assert errors.keys() == {ErrorCode.none, ErrorCode.invalid_commit_offset_size}
    assert PENDING_MAX - 100 < errors[ErrorCode.none] <= PENDING_MAX
    ended = peer.ask(ApiKey.END_TXN, 3, **producer, committed=True)
    assert ended.error_code == ErrorCode.none
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def test_a_heavy_pattern_against_long_transactional_ids_holds_no_one(
    broker: NilometerBroker, peer: WirePeer
) -> None:
    ids = [f"{'a' * 20_000}{number}" for number in range(20)]
    for transactional_id in ids:
        eventually(
            lambda name=transactional_id: (
                peer.ask(
                    ApiKey.INIT_PRODUCER_ID,
                    4,
                    transactional_id=name,
                    transaction_timeout_ms=60_000,
                    producer_id=-1,
                    producer_epoch=-1,
                ).error_code
                == ErrorCode.none
            ),
            "the coordinator is loaded",
        )

    def listed(pattern: str) -> Any:
        return peer.ask(
            ApiKey.LIST_TRANSACTIONS,
            2,
            state_filters=(),
            producer_id_filters=(),
            duration_filter=-1,
            transactional_id_pattern=pattern,
        )

    assert listed(HEAVY).transaction_states == ()
    assert {each.transactional_id for each in listed("a+1.").transaction_states} == {*ids[10:]}
    assert listed("(").error_code == ErrorCode.invalid_regular_expression
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def test_a_heavy_subscription_is_matched_while_others_are_served(
    broker: NilometerBroker, peer: WirePeer
) -> None:
    topics = tuple(new_topic(f"{'a' * 200}{number}", 1) for number in range(200))
    created = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout_ms=TIMEOUT_S * 1000)
    assert {topic.error_code for topic in created.topics} == {ErrorCode.none}
    joined = heartbeat(peer, MEMBERS, 0, subscribed_topic_names=(), subscribed_topic_regex=HEAVY + "|a+7")
    assert joined.error_code == ErrorCode.none
    epoch, assigned = [joined.member_epoch], set[Any]()

    def has_partitions() -> bool:
        reply = heartbeat(peer, MEMBERS, epoch[0])
        assert reply.error_code == ErrorCode.none
        epoch[0] = reply.member_epoch
        assigned.update(each.topic_id for each in getattr(reply.assignment, "topic_partitions", ()))
        return len(assigned) == 1

    eventually(has_partitions, "the topic that ends in 7 alone is assigned", TIMEOUT_S)
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def test_thousands_of_segments_of_one_batch_are_made_and_deleted_in_short_turns(
    broker: NilometerBroker, peer: WirePeer
) -> None:
    setting = make(ApiKey.CREATE_TOPICS, 7, "CreatableTopicConfig", name="segment.ms", value="1")
    topic = new_topic("rolled", configs=(setting,))
    created = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=(topic,), timeout_ms=TIMEOUT_S * 1000)
    assert created.topics[0].error_code == ErrorCode.none
    for number in range(SEGMENTS + IN_FLIGHT):
        if number < SEGMENTS:
            builder = BatchBuilder()
            builder.append(1_700_000_000_000 + 10 * number, None, b"")
            peer.tell(ApiKey.PRODUCE, 9, **produce_fields(9, "rolled", {0: builder.build()}))
        if number >= IN_FLIGHT:
            (answered,) = peer.hear(ApiKey.PRODUCE, 9).responses
            assert answered.partition_responses[0].error_code == ErrorCode.none
    segments = broker.log_dir_of("rolled", 0) / "rolled-0"
    deleted = make(ApiKey.DELETE_RECORDS, 2, "DeleteRecordsPartition", partition_index=0, offset=-1)
    wanted = make(ApiKey.DELETE_RECORDS, 2, "DeleteRecordsTopic", name="rolled", partitions=(deleted,))
    answer = peer.ask(ApiKey.DELETE_RECORDS, 2, topics=(wanted,), timeout_ms=TIMEOUT_S * 1000)
    assert answer.topics[0].partitions[0].low_watermark == SEGMENTS
    eventually(lambda: len(list(segments.glob("*.log"))) == 1, "the old segments are deleted", TIMEOUT_S)
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def test_a_list_is_extended_in_a_short_turn_and_no_further_than_a_value_may_be(
    broker: NilometerBroker, peer: WirePeer, written: str
) -> None:
    key, parts, outcomes = ApiKey.INCREMENTAL_ALTER_CONFIGS, 2_000, list[ErrorCode]()
    for first in range(0, 4 * parts, parts):
        value = ",".join(f"{number}:1" for number in range(first, first + parts))
        change = make(
            key,
            1,
            "AlterableConfig",
            name="leader.replication.throttled.replicas",
            config_operation=2,
            value=value,
        )
        resource = make(
            key, 1, "AlterConfigsResource", resource_type=2, resource_name=written, configs=(change,)
        )
        answer = peer.ask(key, 1, resources=(resource,), validate_only=False)
        outcomes.append(answer.responses[0].error_code)
    assert outcomes == [ErrorCode.none] * 2 + [ErrorCode.invalid_config] * 2
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def test_members_of_a_share_group_that_each_name_other_topics_hold_no_one(
    broker: NilometerBroker, peer: WirePeer
) -> None:
    key, names = ApiKey.SHARE_GROUP_HEARTBEAT, [f"s{number}" for number in range(SHARED_TOPICS)]
    for first in range(0, SHARED_TOPICS, 250):
        topics = tuple(new_topic(name) for name in names[first : first + 250])
        created = peer.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout_ms=TIMEOUT_S * 1000)
        assert {topic.error_code for topic in created.topics} == {ErrorCode.none}

    def beat(member: int, epoch: int) -> Any:
        wanted = tuple(name for place, name in enumerate(names) if place != member) if epoch == 0 else None
        ids = {"group_id": "shared", "member_id": f"m{member}", "member_epoch": epoch, "rack_id": None}
        return peer.ask(key, 1, **ids, subscribed_topic_names=wanted)

    eventually(lambda: beat(0, 0).error_code == ErrorCode.none, "the coordinator is loaded")
    epochs = {member: beat(member, 0).member_epoch for member in range(SHARE_MEMBERS)}
    given = dict.fromkeys(epochs, 0)

    def have_all() -> bool:
        for member in epochs:
            reply = beat(member, epochs[member])
            assert reply.error_code == ErrorCode.none
            epochs[member] = reply.member_epoch
            if reply.assignment is not None:
                given[member] = len(reply.assignment.topic_partitions)
        return set(given.values()) == {SHARED_TOPICS - 1}

    eventually(have_all, "all members have their topics", TIMEOUT_S)
    ids = {"group_ids": ("shared",), "include_authorized_operations": False}
    (described,) = peer.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, **ids).groups
    assert {len(member.assignment.topic_partitions) for member in described.members} == {SHARED_TOPICS - 1}
    assert len(described.members) == SHARE_MEMBERS
    assert longest_turn_ms(broker) < (TURN_MS_MAX, "")


def test_the_sessions_of_thousands_of_groups_end_in_short_turns(tmp_path: Path) -> None:
    """Each group has one member. Their sessions end at the same moment, in all partitions of the groups."""
    settings = {
        "metrics.listener": "127.0.0.1:0",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
    }
    with NilometerBroker(tmp_path / "data", settings) as broker, WirePeer(broker.bootstrap) as peer:
        peer.ask(ApiKey.FIND_COORDINATOR, 2, key="first", key_type=0)  # creates the topic of the groups

        def join(group: int, session_ms: float) -> None:
            peer.tell(
                ApiKey.JOIN_GROUP,
                3,
                group_id=f"g{group}",
                session_timeout_ms=max(1000, int(session_ms)),
                rebalance_timeout_ms=30_000,
                member_id="",
                protocol_type="consumer",
                protocols=(make(ApiKey.JOIN_GROUP, 3, "JoinGroupRequestProtocol", name="p", metadata=b""),),
            )

        def joined() -> ErrorCode:
            return ErrorCode(peer.hear(ApiKey.JOIN_GROUP, 3).error_code)

        def is_loaded() -> bool:
            for group in range(1, 101):  # in each partition, with all but certainty
                join(-group, 1000)
            return {joined() for _ in range(100)} == {ErrorCode.none}

        eventually(is_loaded, "the coordinators have loaded their groups")
        end_ms = 1000 * time.monotonic() + SESSIONS_END_MS
        for group in range(GROUPS + IN_FLIGHT):
            if group < GROUPS:
                join(group, end_ms - 1000 * time.monotonic())
            if group >= IN_FLIGHT:
                assert joined() == ErrorCode.none

        def members() -> int:
            listed = peer.ask(ApiKey.LIST_GROUPS, 4, states_filter=("CompletingRebalance",))
            return len(listed.groups)

        eventually(lambda: members() == 0, "all members are gone", TIMEOUT_S)
        assert longest_turn_ms(broker) < (TURN_MS_MAX, "")
