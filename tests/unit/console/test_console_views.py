"""What the pages show: a partition, ten thousand topics, rates, groups, settings, records."""

from __future__ import annotations

import json

import pytest

from nilometer.client.admin.admin import ConfigEntry, ConfigSource, ConfigSynonym
from nilometer.client.admin.group_admin import GroupDescription, GroupListing, MemberDescription, PartitionLag
from nilometer.client.admin.rebalance_text import rebalance_warning
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import PartitionMetadata, TopicMetadata, TopicPartition
from nilometer.console.views.configs import config_rows
from nilometer.console.views.groups import GroupRow, group_view, groups_page, groups_view
from nilometer.console.views.overview import EndOffsets, append_rate
from nilometer.console.views.paging import PAGE_SIZE, page_of
from nilometer.console.views.partition import Eligible, partition_view
from nilometer.console.views.records import PAGE_BYTES, WHOLE_BYTES, RecordView, record_views, shown
from nilometer.console.views.topics import topic_view, topics_view
from nilometer.groups import record_format
from nilometer.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import RebalanceState
from support.console.replica_states import Partition


def test_a_partition_has_what_each_broker_reports() -> None:
    survey = Partition(ends={1: 12, 2: 12, 3: None}, isr=(1, 2), remote={2: 11, 3: 7}).survey()
    found = partition_view(survey, "t", 0, Eligible((3,), None))
    assert (found.leader_id, found.isr, found.osr, found.elr) == (1, (1, 2), (3,), (3,))
    assert (found.high_watermark, found.log_end_offset) == (10, 12)
    by_broker = {one.broker_id: one for one in found.replicas}
    assert (by_broker[2].remote_log_end_offset, by_broker[2].lag) == (11, 1)
    assert (by_broker[3].membership, by_broker[3].role, by_broker[3].is_reachable) == (
        "ELR",
        "unreachable",
        False,
    )
    assert (by_broker[3].log_end_offset, by_broker[3].remote_log_end_offset) == (None, 7)
    assert by_broker[1].remote_log_end_offset is None
    assert found.epochs == ((0, 0),)


def test_a_topic_has_a_row_for_each_partition() -> None:
    found = topic_view(Partition(high_watermark=10, isr=(1,)).survey(), "t")
    (row,) = found.partitions
    assert (row.leader_id, row.isr, row.high_watermark, row.size_bytes) == (1, (1,), 10, 700)
    assert found.size_bytes == 700


def test_ten_thousand_topics_are_paged_and_searched() -> None:
    part = PartitionMetadata(0, 1, 0, (1, 2, 3), (1, 2))
    topics = {f"topic-{i:05d}": TopicMetadata(f"topic-{i:05d}", None, (part,)) for i in range(10_000)}
    topics["__consumer_offsets"] = TopicMetadata("__consumer_offsets", None, (part,), is_internal=True)
    found = topics_view(topics, "", 3, internal=False)
    assert (found.page.total, found.page.pages, found.page.first, found.page.last) == (10_000, 200, 101, 150)
    assert found.page.items[0].name == "topic-00100"
    assert (found.page.items[0].replication_factor, found.page.items[0].under_replicated) == (3, 1)
    searched = topics_view(topics, "99 TOPIC", 1, internal=False)
    assert searched.page.matching == sum("99" in name for name in topics)
    assert topics_view(topics, "consumer", 1, internal=True).page.matching == 1
    assert topics_view(topics, "consumer", 1, internal=False).page.matching == 0


@pytest.mark.parametrize("number", [-1, 0, 1, 99])
def test_a_page_beyond_the_list_is_the_nearest(number: int) -> None:
    found = page_of(list(range(PAGE_SIZE + 1)), str, "", number)
    assert found.number == (2 if number == 99 else 1)
    empty = page_of([], str, "x", number)
    assert (empty.first, empty.last, empty.pages) == (0, 0, 1)


def test_the_rate_counts_what_was_appended() -> None:
    one, two, new = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)
    before = EndOffsets(1_000, {one: 100, two: 50})
    now = EndOffsets(3_000, {one: 300, two: 40, new: 7})
    assert append_rate(before, now) == 100.0
    assert append_rate(None, now) is None
    assert append_rate(now, now) is None


def group(
    assignment: tuple[TopicPartition, ...], target: tuple[TopicPartition, ...] | None
) -> GroupDescription:
    member = MemberDescription("m-1", None, "app", "/127.0.0.1", assignment, ("t",), target, 3)
    return GroupDescription("g", "consumer", "Reconciling", "consumer", "uniform", 2, (member,), 4, 4)


def test_lag_is_measured_to_both_ends() -> None:
    one = TopicPartition("t", 0)
    lag = PartitionLag(one, 5, 0, 0, 20, 12)
    unknown = PartitionLag(TopicPartition("t", 1), None, -1, 0, 20, 20)
    found = group_view(group((one,), (one,)), [lag, unknown])
    assert (found.lag, found.stable_lag, found.unknown) == (15, 7, 1)
    assert found.offsets[0].member == "m-1"
    assert found.warning is None


@pytest.mark.parametrize(("state", "warns"), [("Stable", True), ("Empty", False), ("Dead", False)])
def test_a_group_that_all_have_left_does_not_rebalance(state: str, warns: bool) -> None:
    last = RebalanceState(group_id="g", reason="a member left", member_id="m", times_in_a_row=4)
    described = GroupDescription("g", "classic", state, "consumer", "range", 1, (), last_rebalance=last)
    assert (rebalance_warning(described) is not None) == warns


def test_the_list_of_groups_has_members_topics_and_lag() -> None:
    one, two = TopicPartition("t", 0), TopicPartition("u", 1)
    page = groups_page(
        [GroupListing("denied", "classic", "Stable", ""), GroupListing("g", "consumer", "Stable", "")], "", 1
    )
    refused = KafkaError(ErrorCode.group_authorization_failed)
    found = groups_view(page, {"g": group((one,), (one,)), "denied": refused}, {"g": [two]}, {"g": 12})
    assert found.page.items == (
        GroupRow("denied", "classic", "Stable"),
        GroupRow("g", "consumer", "Reconciling", 1, ("t", "u"), 12),
    )


def test_a_group_that_converges_names_the_member_it_waits_for() -> None:
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    giving = group_view(group((one, two), (one,)), [])
    assert giving.warning is not None
    assert "give up partitions" in giving.warning
    assert "m-1 (client app on /127.0.0.1)" in giving.warning
    assert giving.members[0].to_revoke == ("t-1",)
    taking = group_view(group((one,), (one, two)), [])
    assert taking.members[0].awaited == ("t-1",)
    assert taking.warning is not None
    assert "take their new partitions" in taking.warning


def test_settings_have_their_source_and_default() -> None:
    default = ConfigSynonym("retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG)
    own = ConfigSynonym("retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    rows = config_rows(
        {
            "a": ConfigEntry("a", "1", ConfigSource.DEFAULT_CONFIG, False, False),
            "retention.ms": ConfigEntry(
                "retention.ms", "1000", ConfigSource.DYNAMIC_TOPIC_CONFIG, False, False, None, (own, default)
            ),
            "secret": ConfigEntry("secret", "x", ConfigSource.STATIC_BROKER_CONFIG, True, True),
        }
    )
    assert [row.name for row in rows] == ["retention.ms", "secret", "a"]
    assert (rows[0].value, rows[0].source, rows[0].default) == ("1000", "topic", "604800000")
    assert (rows[1].value, rows[1].default) == (None, None)


def record(key: bytes | None, value: bytes | None, topic: str = "t") -> ConsumerRecord:
    return ConsumerRecord(topic, 0, 7, 1_000, 0, key, value, (("h", b"\xff"),), 2)


def view(one: ConsumerRecord) -> RecordView:
    return record_views([one])[0]


def test_bytes_are_shown_as_what_they_are() -> None:
    assert shown(None, "auto", 10).kind == "null"
    assert shown(b'{"a": [1]}', "auto", 100) == shown(b'{"a": [1]}', "json", 100)
    assert json.loads(shown(b'{"a": [1]}', "auto", 100).text) == {"a": [1]}
    assert shown(b"12", "auto", 100).kind == "text"
    assert shown(b"12", "json", 100).kind == "json"
    assert shown("naïve".encode(), "auto", 100).text == "naïve"
    assert shown(b"\x00\x01A", "auto", 100).text.split() == ["000000", "00", "01", "41", "..A"]
    assert shown(b"\xff", "text", 100).text == "\ufffd"
    long = shown("é".encode() * 50, "auto", 11)
    assert (long.kind, long.is_cut, long.size) == ("text", True, 100)
    assert shown(b"[" * 100_000, "auto", 1_000_000).kind == "text"
    half = b'{"a": "\\ud83d"}'  # valid JSON, but half of a surrogate pair is no text
    assert (shown(half, "auto", 100).kind, shown(half, "auto", 100).text) == ("text", half.decode())


def test_json_that_indenting_would_swell_is_shown_as_it_is() -> None:
    """Each of a thousand elements would be on a line that begins with 1,600 spaces."""
    deep = b"[" * 800 + b",".join([b"1"] * 1_000) + b"]" * 800
    found = shown(deep, "auto", len(deep))
    assert (found.kind, found.text, found.is_cut) == ("text", deep.decode(), False)
    shallow = b"[[" + b",".join([b"1"] * 1_000) + b"]]"
    assert shown(shallow, "auto", len(shallow)).kind == "json"
    assert shown(b'[{"a": 1}]', "auto", 100).kind == "json"


def test_a_page_of_large_records_is_bounded() -> None:
    data = bytes(1 << 20)
    headers = (*((f"h{number}", data) for number in range(50)), ("n" * (1 << 20), b""))
    one = record(data, data)._replace(headers=headers)
    many = record_views([one] * 200, limit=WHOLE_BYTES)
    size = sum(
        len(part.text)
        for found in many
        for part in (found.key, found.value, *(value for _, value in found.headers))
    )
    assert PAGE_BYTES < size < 6 * PAGE_BYTES, "hex has about five characters for a byte"
    assert all(found.key.is_cut and found.headers_left_out >= 50 for found in many)
    (whole,) = record_views([one], limit=WHOLE_BYTES)
    assert len(whole.key.text) > 4 * WHOLE_BYTES
    assert (len(whole.headers), whole.headers_left_out) == (6, 45)
    (named,) = record_views([one._replace(headers=headers[-1:])], limit=WHOLE_BYTES)
    assert len(named.headers[0][0]) == WHOLE_BYTES + 1
    small = record(b"k", b"v")._replace(headers=(("h", b"x"),) * 20)
    assert [len(found.headers) for found in record_views([small] * 200)] == [20] * 200


def test_a_committed_offset_is_decoded() -> None:
    key = OffsetCommitKey("g", "t", 3)
    data = record_format.encode_record(CoordinatorRecord(key, OffsetCommitValue(42, "", 9)))
    found = view(record(*data, topic="__consumer_offsets"))
    assert found.decoded is not None
    document = json.loads(found.decoded)
    assert (document["type"], document["key"]["group"], document["value"]["offset"]) == (
        "OffsetCommit",
        "g",
        42,
    )
    assert view(record(*data)).decoded is None
    broken = view(record(data[0], b"\x00", topic="__consumer_offsets")).decoded
    assert broken is not None
    assert "cannot be decoded" in broken
    assert found.headers[0][1].kind == "hex"
