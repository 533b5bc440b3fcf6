"""What the pages show: a partition, ten thousand topics, rates, groups, settings, records."""

from __future__ import annotations

import json

import pytest

from nilometer.client.admin.admin import ConfigEntry, ConfigSource, ConfigSynonym
from nilometer.client.admin.group_admin import PartitionLag
from nilometer.client.admin.group_descriptions import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    rebalance_warning,
)
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import PartitionMetadata, TopicMetadata, TopicPartition
from nilometer.console.views.groups import COLUMNS, GroupRow, group_rows, group_view
from nilometer.console.views.lists import PAGE_SIZE, Asked, page_of
from nilometer.console.views.partition import Eligible, partition_view
from nilometer.console.views.rates import AppendRates, Rate, Sample, chart
from nilometer.console.views.records import PAGE_BYTES, WHOLE_BYTES, RecordView, record_views, shown
from nilometer.console.views.topics import config_rows, measures_of, topic_view, topics_page, topics_view
from nilometer.groups import records
from nilometer.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import RebalanceState, TierState
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
    groups = [GroupRow("reader", "classic", "Stable", 1, ("t",)), GroupRow("other", "classic", "Stable")]
    found = topic_view(Partition(high_watermark=10, isr=(1,)).survey(), "t", groups)
    assert found.groups == (groups[0],)
    (row,) = found.partitions
    assert (row.leader_id, row.isr, row.high_watermark, row.size_bytes) == (1, (1,), 10, 700)
    assert found.size_bytes == 700
    assert (row.tier, found.is_tiered) == (None, False)


def test_a_tiered_topic_shows_what_is_not_in_remote_storage_yet() -> None:
    tier = TierState(end_offset=4, size_bytes=280, missing_records=6)
    found = topic_view(Partition(tier=tier).survey(), "t", ())
    assert [one.tier for one in found.partitions] == [tier]
    assert found.is_tiered


def test_ten_thousand_topics_are_paged_and_searched() -> None:
    part = PartitionMetadata(0, 1, 0, (1, 2, 3), (1, 2))
    topics = {f"topic-{i:05d}": TopicMetadata(f"topic-{i:05d}", None, (part,)) for i in range(10_000)}
    topics["__consumer_offsets"] = TopicMetadata("__consumer_offsets", None, (part,), is_internal=True)
    found = topics_page(topics.values(), Asked("", 3))
    assert (found.total, found.pages, found.first, found.last) == (10_001, 201, 101, 150)
    assert found.items[0].name == "topic-00100"
    assert (found.items[0].replication_factor, found.items[0].under_replicated) == (3, 1)
    assert topics_page(topics.values(), Asked("99 TOPIC")).matching == sum("99" in name for name in topics)
    assert topics_page(topics.values(), Asked("consumer")).matching == 1


def test_topics_are_sorted_by_what_a_survey_tells() -> None:
    part = PartitionMetadata(0, 1, 0, (1, 2, 3), (1, 2))
    topics = [TopicMetadata(name, None, (part,)) for name in ("s", "t", "u")]
    survey = Partition(ends={1: 12, 2: 12, 3: None}).survey()
    measures = measures_of(survey, {"t": Rate(2.5, 90.0)})
    page = topics_page(topics, Asked(column="records", descending=True), measures)
    rows = topics_view(page, measures, {"t": "compact"}, internal=False).page.items
    assert [row.name for row in rows] == ["t", "s", "u"], "what is not known comes last"
    assert (rows[0].records, rows[0].size_bytes, rows[0].records_per_s) == (12, 840, 2.5)
    assert (rows[0].cleanup_policy, rows[1].cleanup_policy) == ("compact", None)


def test_a_list_is_sorted_by_a_column_both_ways_and_what_is_not_known_comes_last() -> None:
    rows = [GroupRow("a", "classic", "Stable", lag=5), GroupRow("b", "classic", "Stable")]
    rows.append(GroupRow("c", "classic", "Stable", lag=9))

    def names(column: str, *, descending: bool) -> list[str]:
        asked = Asked(column=column, descending=descending)
        return [row.group_id for row in page_of(rows, lambda row: row.group_id, asked, COLUMNS).items]

    assert names("lag", descending=False) == ["a", "c", "b"]
    assert names("lag", descending=True) == ["c", "a", "b"]
    assert names("name", descending=True) == ["c", "b", "a"]
    assert names("no such column", descending=True) == ["a", "b", "c"]


@pytest.mark.parametrize("number", [-1, 0, 1, 99])
def test_a_page_beyond_the_list_is_the_nearest(number: int) -> None:
    found = page_of(list(range(PAGE_SIZE + 1)), str, Asked("", number))
    assert found.number == (2 if number == 99 else 1)
    empty = page_of([], str, Asked("x", number))
    assert (empty.first, empty.last, empty.pages) == (0, 0, 1)


def test_the_rate_counts_what_was_appended() -> None:
    rates = AppendRates()
    rates.read(Partition(ends={1: 100}).survey(), 1_000, is_whole=True)
    assert rates.total() is None, "of one reading"
    rates.read(Partition(ends={1: 300}).survey(), 3_000, is_whole=True)
    assert rates.by_topic() == {"t": Rate(100.0, 7000.0)}
    rates.read(Partition(ends={1: 400}).survey(), 3_400, is_whole=True)
    assert rates.total() == Rate(100.0, 7000.0), "readings close to each other are one"
    rates.read(Partition(ends={1: 40}).survey(), 5_000, is_whole=True)
    assert rates.total() == Rate(0.0, 0.0), "a leader that truncated has appended nothing"
    other = Partition(topic="other", ends={1: 10}).survey()
    rates.read(other, 6_000, is_whole=False)
    assert rates.by_topic() == {"t": Rate(0.0, 0.0)}
    rates.read(other, 7_000, is_whole=True)
    assert rates.by_topic() == {"other": Rate(0.0, 0.0)}, "a topic that is gone has no rate"


def test_a_chart_begins_at_zero_and_has_a_gap_where_nothing_was_read() -> None:
    samples = [Sample(0, 1.0), Sample(10_000, 4.0), Sample(50_000, 2.0), Sample(60_000, 2.0)]
    found = chart("lag", samples, span_ms=60_000, gap_ms=15_000)
    assert found is not None
    assert found.lines == ("0.0,30.0 40.0,0.0", "200.0,20.0 240.0,20.0")
    assert (found.largest, found.newest, found.minutes) == (4.0, 2.0, 1)
    assert chart("lag", samples[:1], span_ms=60_000, gap_ms=15_000) is None


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
    listed = [
        GroupListing("denied", "classic", "Stable", ""),
        GroupListing("g", "consumer", "Stable", ""),
    ]
    refused = KafkaError(ErrorCode.group_authorization_failed)
    described = {"g": group((one,), (one,)), "denied": refused}
    assert group_rows(listed, described, {"g": [two]}, {"g": {"t": 5, "u": 7}}) == (
        GroupRow("denied", "classic", "Stable"),
        GroupRow("g", "consumer", "Reconciling", 1, ("t", "u"), 12, {"t": 5, "u": 7}),
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
    data = records.encode_record(CoordinatorRecord(key, OffsetCommitValue(42, "", 9)))
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
