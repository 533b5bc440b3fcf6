"""The pages with a reader that has the answers: status codes, escaping, forms, JSON."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec import structs

from nilometer.client.admin.admin import ConfigEntry, ConfigSource
from nilometer.client.admin.cluster_health import Findings, cluster_health
from nilometer.client.admin.group_admin import PartitionLag
from nilometer.client.admin.group_descriptions import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    ShareOffset,
)
from nilometer.client.admin.quorum_admin import QuorumReplica, QuorumView
from nilometer.client.admin.security_admin import EntityQuotas, UserCredential
from nilometer.client.admin.transaction_admin import TransactionDescription, TransactionListing
from nilometer.client.consumer.fetch_exchange import ConsumerRecord
from nilometer.client.network.cluster_metadata import PartitionMetadata, TopicMetadata, TopicPartition
from nilometer.client.producer.batch import RecordMetadata
from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.console.reading.cluster_access import Feeds
from nilometer.console.reading.cluster_reader import BrokerView, ClusterReader, TopicConfigs
from nilometer.console.reading.record_reader import (
    LIMITS,
    PAGES_MAX,
    DecodedValues,
    Found,
    MaybeWritten,
    RecordQuery,
    RecordReader,
    TailPart,
    TooManyTails,
)
from nilometer.console.serving import Changes
from nilometer.console.views.groups import (
    GroupRow,
    GroupsView,
    GroupView,
    ShareGroupView,
    ShareSettingsView,
    group_rows,
    group_view,
    groups_page,
    share_group_view,
)
from nilometer.console.views.lists import (
    Asked,
    HangingRow,
    TableView,
    TransactionsView,
    acls_view,
    quotas_view,
    transactions_page,
    transactions_view,
    users_view,
)
from nilometer.console.views.overview import LogDirRow, OverviewView, overview_view
from nilometer.console.views.partition import Eligible, PartitionView, partition_view
from nilometer.console.views.rates import Chart, Rate
from nilometer.console.views.records import NO_SCHEMAS, json_filter, record_views
from nilometer.console.views.topics import (
    Measures,
    TopicsView,
    TopicView,
    config_rows,
    topic_view,
    topics_page,
    topics_view,
)
from nilometer.console.web import message_pages
from nilometer.console.web.application import application
from nilometer.console.web.guard import allowed_hosts
from nilometer.runtime.runtime import SystemClock
from nilometer.schema_registry.client import SchemaRegistry, framed
from nilometer.schema_registry.decoding import Decoding
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.own_apis import DeliveryRange, SegmentsState, SegmentState, SharePartitionState, TierState
from support.console.asgi_client import Answer, ask
from support.console.page_elements import Elements
from support.console.replica_states import Partition
from support.stub_registry import StubRegistry

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"\"'>{SCRIPT}<img src=x onerror=alert(1)>"
OWN = ("origin", "http://127.0.0.1:8080")
JSON = ("accept", "application/json")
EVENTS = ("accept", "text/event-stream")


CHART = Chart(HOSTILE, True, ("0.0,40.0 240.0,0.0",), 2048.0, 7.0, 15)


def _hostile_quorum() -> QuorumView:
    leader = QuorumReplica(
        node_id=1,
        directory_id=HOSTILE,
        is_leader=True,
        log_end_offset=9,
        lag=0,
        fetched_ago_ms=0,
        caught_up_ago_ms=0,
    )
    voter = structs.replace(leader, node_id=2, is_leader=False, lag=3, fetched_ago_ms=250)
    observer = structs.replace(voter, node_id=3, lag=None, log_end_offset=None, fetched_ago_ms=None)
    return QuorumView(leader_id=1, epoch=5, high_watermark=9, voters=(leader, voter), observers=(observer,))


class Reader(ClusterReader):
    """Answers with hostile names wherever a cluster can have them."""

    def __init__(self) -> None:
        self.topics_by_name = {"t": TopicMetadata("t", None, (PartitionMetadata(0, 1, 0, (1,), (1,)),))}

    async def overview(self) -> OverviewView:
        survey = Partition(topic="t", ends={1: 10, 2: 10, 3: None}, isr=(1, 2)).survey()
        found = Findings(survey=survey, unknown=(HOSTILE,), quorum=_hostile_quorum())
        return overview_view(cluster_health(found), survey, Rate(12.5, 900.0), [CHART])

    async def broker(self, broker_id: int) -> BrokerView:
        directory = LogDirRow(HOSTILE, HOSTILE, 1, 10, None, 5)
        return BrokerView(broker_id, (directory,), config_rows(_hostile_settings()))

    async def topics(self, asked: Asked, *, internal: bool) -> TopicsView:
        page = topics_page(self.topics_by_name.values(), asked)
        return topics_view(page, Measures({"t": 5}, {"t": 2048}, {}), {"t": HOSTILE}, internal=internal)

    async def topic(self, name: str) -> TopicView:
        self._check(name)
        tier = TierState(end_offset=4, size_bytes=2048, missing_records=6, missing_ms=9_500, error=HOSTILE)
        partition = Partition(tier=tier)
        return topic_view(partition.survey(), "t", [GroupRow(HOSTILE, "classic", "Stable", 1, ("t",), 7)])

    async def partition(self, topic: str, partition: int) -> PartitionView:
        self._check(topic)
        segment = SegmentState(base_offset=4, size_bytes=2048, modified_ms=0, largest_timestamp=1_500)
        segments = {1: SegmentsState(count=3, newest=(segment,))}
        return partition_view(Partition(segments=segments).survey(), "t", 0, Eligible())

    async def topic_configs(self, topic: str) -> TopicConfigs:
        self._check(topic)
        return TopicConfigs(topic, config_rows(_hostile_settings()))

    async def partition_count(self, topic: str) -> int:
        self._check(topic)
        return 1

    async def groups(self, asked: Asked) -> GroupsView:
        page = groups_page([GroupListing(HOSTILE, "classic", "Stable", "consumer")], asked)
        member = MemberDescription(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (TopicPartition(HOSTILE, 0),))
        described = GroupDescription(HOSTILE, "classic", "Stable", "consumer", HOSTILE, 1, (member,))
        rows = group_rows(page.items, {HOSTILE: described}, {}, {HOSTILE: {"t": 7}})
        return GroupsView(page.showing(rows), HOSTILE)

    async def group(self, group_id: str) -> GroupView | ShareGroupView:
        if group_id == "shared":
            return _hostile_share_group()
        member = MemberDescription(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (TopicPartition("t", 0),))
        described = GroupDescription(group_id, "classic", "Stable", "consumer", HOSTILE, 1, (member,))
        return group_view(described, [PartitionLag(TopicPartition("t", 0), 1, 0, 0, 3, 2, HOSTILE)])

    async def transactions(self, asked: Asked, *, all_ids: bool) -> TransactionsView:
        listed = [TransactionListing(HOSTILE, 7, "Ongoing", 1), TransactionListing("done", 8, "Empty", 1)]
        page = transactions_page(listed, asked, all_ids=all_ids)
        found = TransactionDescription(HOSTILE, "Ongoing", 7, 0, 60_000, 1_000, (TopicPartition("t", 0),), 1)
        hanging = HangingRow(HOSTILE, 0, 9, 1, 4, 1_000)
        return transactions_view(page, {HOSTILE: found}, [hanging], 91_000, all_ids=all_ids)

    async def acls(self, asked: Asked) -> TableView:
        kinds = ResourceType.TOPIC, HOSTILE, PatternType.LITERAL
        return acls_view([Acl(*kinds, HOSTILE, HOSTILE, Operation.READ, Permission.ALLOW)], asked)

    async def users(self, asked: Asked) -> TableView:
        return users_view([UserCredential(HOSTILE, "SCRAM-SHA-256", 4096)], asked)

    async def quotas(self, asked: Asked) -> TableView:
        quota = EntityQuotas((("client-id", None), ("user", HOSTILE)), {"producer_byte_rate": 1048576.0})
        return quotas_view([quota], asked)

    def _check(self, topic: str) -> None:
        if topic != "t":
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"topic {topic} does not exist")


def _hostile_settings() -> dict[str, ConfigEntry]:
    entry = ConfigEntry(HOSTILE, HOSTILE, ConfigSource.DYNAMIC_TOPIC_CONFIG, False, False, HOSTILE)
    return {HOSTILE: entry}


class Records(RecordReader):
    def __init__(self, failure: Exception | None = None, values: Sequence[bytes] = ()) -> None:
        """``failure``: what writing and following fail with. ``values``: what is read, instead of two."""
        self._values = values
        self.queries: list[RecordQuery] = []
        self.written: list[tuple[Any, ...]] = []
        self.followed: list[tuple[str, int | None, Mapping[int, int]]] = []
        self._failure = failure

    async def read(self, query: RecordQuery, progress: Callable[[Found], None] = lambda _: None) -> Found:
        self.queries.append(query)
        if query.key == b"lost":
            raise KafkaError(ErrorCode.request_timed_out, "no broker responds")
        progress(Found((), 500, True, None, ()))
        await asyncio.sleep(0)
        if self._values:
            found = [ConsumerRecord("t", 0, n, 0, 0, None, one, (), 0) for n, one in enumerate(self._values)]
            return Found(tuple(found), len(found), False, None, ())
        data = HOSTILE.encode()
        record = ConsumerRecord("t", 0, 7, 1_000, 0, data, data, ((HOSTILE, data),), 0)
        json_record = record._replace(offset=8, value=b'{"a": "' + SCRIPT.encode() + b'"}')
        return Found((record, json_record), 2, False, None, ())

    async def produce(
        self,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> RecordMetadata:
        self.written.append((topic, partition, key, value, tuple(headers)))
        if self._failure is not None:
            raise self._failure
        return RecordMetadata(topic, 0, 9, 1_000)

    async def tail(
        self, topic: str, partition: int | None, after: Mapping[int, int]
    ) -> AsyncGenerator[TailPart]:
        self.followed.append((topic, partition, after))
        if self._failure is not None:
            raise self._failure
        yield TailPart((), 3, {0: 7})
        (record, *_) = (await self.read(RecordQuery(topic, partition))).records
        yield TailPart((record,), 0, {0: 8})


def send(
    target: str,
    records: Records | None = None,
    *,
    changes: Changes = Changes.RECORDS,
    connection: Any = None,
    values: DecodedValues | None = None,
    **more: Any,
) -> Answer:
    feeds = Feeds(SystemClock(), interval_s=60, linger_s=0)
    hosts = allowed_hosts("127.0.0.1", 8080)
    records = records or Records()
    app = application(Reader(), records, feeds, connection, hosts, changes=changes, values=values)
    return ask(app, target, **more)


PAGES = [
    "/",
    "/brokers",
    "/brokers/1",
    "/topics",
    "/topics?" + urlencode({"q": HOSTILE}),
    "/topics/t",
    "/topics/t/0",
    "/topics/t/settings",
    "/topics/t/messages",
    "/topics/t/messages?" + urlencode({"key": HOSTILE, "at": HOSTILE, "start": "newest"}),
    "/topics/t/messages?" + urlencode({"partition": HOSTILE}),
    "/groups",
    "/groups?" + urlencode({"q": HOSTILE, "sort": HOSTILE}),
    "/group?" + urlencode({"id": HOSTILE}),
    "/group?id=shared",
    "/transactions?all=1",
    "/security/acls",
    "/security/users",
    "/security/quotas",
    "/" + SCRIPT,
    "/topics/" + SCRIPT,
]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_cluster_holds_never_becomes_markup(page: str) -> None:
    answer = send(page)
    found = Elements(answer.text)
    assert found.scripts == ["/static/console.js"]
    assert "img" not in found.tags
    assert not any(name.startswith("on") for name in found.attributes)
    assert "script-src 'self'" in answer.headers["content-security-policy"]


def _hostile_share_group() -> ShareGroupView:
    place = TopicPartition("t", 0)
    member = MemberDescription(HOSTILE, None, HOSTILE, HOSTILE, (TopicPartition(HOSTILE, 0),))
    described = GroupDescription(HOSTILE, "share", HOSTILE, "share", HOSTILE, 1, (member,))
    held = DeliveryRange(
        first_offset=5, last_offset=6, state="acquired", delivery_count=2, member_id=HOSTILE, lock_left_ms=9
    )
    state = SharePartitionState(
        topic="t", partition=0, is_loaded=True, start_offset=5, end_offset=9, ranges=(held,)
    )
    return share_group_view(
        described, {place: ShareOffset(place, 5, 4)}, {place: state}, ShareSettingsView(5, 30, HOSTILE)
    )


def test_hostile_text_is_there_as_text() -> None:
    escaped = "&lt;script&gt;alert(1)&lt;/script&gt;"
    lists = ("/topics", "/groups", "/transactions", "/security/acls", "/security/users", "/security/quotas")
    for page in (
        *lists,
        "/topics/t",
        "/topics/t/messages",
        "/group?id=g",
        "/group?id=shared",
        "/topics/t/settings",
        "/brokers/1",
        "/",
    ):
        assert escaped in send(page).text, page


def test_each_page_answers_json_with_its_view() -> None:
    found = send("/topics/t/0", headers=[JSON]).document
    assert (found["high_watermark"], found["isr"], found["hold"]["is_held"]) == (10, [1, 2, 3], False)
    assert send("/", headers=[JSON]).document["records_per_s"] == 12.5
    assert send("/", headers=[JSON]).document["quorum"]["leader_id"] == 1
    assert send("/security/quotas", headers=[JSON]).document["page"]["items"] == [
        [f"client-id default, user {HOSTILE}", "producer_byte_rate", "1,048,576"]
    ]
    open_ones = send("/transactions", headers=[JSON]).document
    assert [(one["transactional_id"], one["open_ms"]) for one in open_ones["page"]["items"]] == [
        (HOSTILE, 90_000)
    ]
    assert [one["producer_id"] for one in open_ones["hanging"]] == [9]
    all_of_them = send("/transactions?all=1&sort=-producer", headers=[JSON]).document["page"]["items"]
    assert [one["producer_id"] for one in all_of_them] == [8, 7]
    assert send("/topics/t/messages", headers=[JSON]).document["records"][0]["offset"] == 7


def test_segments_are_shown_beside_the_replicas_that_describe_them() -> None:
    text = " ".join(send("/topics/t/0").text.split())
    assert "Broker 1 has 3 segments. The newest are shown." in text
    assert '2.0 KiB<p class="note">active, 1970-01-01 00:00:00.000</p>' in text
    assert "Broker 2: its broker is of a version that does not describe segments." in text


def test_what_does_not_exist_is_not_found() -> None:
    assert send("/nowhere").status == 404
    missing = send("/topics/gone")
    assert (missing.status, "topic gone does not exist" in missing.text) == (404, True)
    assert "data-live" not in missing.text
    assert send("/topics/gone/0", headers=[JSON]).document == {"error": "topic gone does not exist"}


def test_a_foreign_name_and_a_foreign_page_are_refused_before_anything_is_read() -> None:
    rebound = send("/", host="rebound.example:8080")
    assert (rebound.status, "served as 127.0.0.1:8080" in rebound.text) == (421, True)
    assert send("/", headers=[("origin", "http://foreign.example")]).status == 403
    records = Records()
    form = urlencode({"value": "v"}).encode()
    assert send("/topics/t/messages", records, method="POST", body=form).status == 403
    assert records.written == []


def test_a_record_is_written_and_then_shown() -> None:
    records = Records()
    entries = {"partition": "", "key": "k", "value": "a\r\nb", "headers": "one: 1\r\ntwo:"}
    done = send("/topics/t/messages", records, method="POST", headers=[OWN], body=urlencode(entries).encode())
    assert (done.status, done.headers["location"]) == (
        303,
        "/topics/t/messages?partition=0&start=offset&at=9&count=1&written=1",
    )
    assert records.written == [("t", None, b"k", b"a\nb", (("one", b"1"), ("two", b"")))]


def test_a_tombstone_is_a_null_and_needs_a_key() -> None:
    records = Records()
    body = urlencode({"key": "k", "tombstone": "1"}).encode()
    assert send("/topics/t/messages", records, method="POST", headers=[OWN], body=body).status == 303
    assert records.written == [("t", None, b"k", None, ())]
    refused = send("/topics/t/messages", method="POST", headers=[OWN], body=b"tombstone=1")
    assert (refused.status, "A tombstone needs a key." in refused.text) == (400, True)


def test_a_console_that_is_read_only_writes_nothing() -> None:
    records = Records()
    answer = send(
        "/topics/t/messages", records, changes=Changes.NONE, method="POST", headers=[OWN], body=b"value=v"
    )
    assert (answer.status, records.written) == (403, [])
    assert 'method="post"' not in send("/topics/t/messages", changes=Changes.NONE).text
    assert 'method="post"' in send("/topics/t/messages").text


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("start=offset&at=1", "choose one"),
        ("start=offset&at=x&partition=0", "The offset must be a whole number"),
        ("start=time&at=soon", "The time must be as in"),
        ("partition=-1", "The partition must be a whole number"),
        ("count=many", "The number of records"),
        ("start=middle", "Start must be one of"),
        ("form=xml", "Show as must be one of"),
        ("value=%24.a+%3D%3D", "There is nothing to compare with after =="),
    ],
)
def test_a_bad_entry_is_named(query: str, error: str) -> None:
    answer = send(f"/topics/t/messages?{query}")
    assert (answer.status, error in answer.text) == (400, True)


def test_entries_select_records() -> None:
    records = Records()
    send("/topics/t/messages?start=time&at=2026-01-31+12:00&key=k&count=900&committed=1", records)
    send("/topics/t/messages?start=offset&at=5&partition=0", records)
    send("/topics/t/messages?" + urlencode({"value": "$.user.id == 7"}), records)
    first, second, third = records.queries
    assert first == RecordQuery("t", None, "time", 1_769_860_800_000, b"k", 200, True)
    assert second == RecordQuery("t", 0, "offset", 5, None, 50, False)
    assert third == RecordQuery("t", None, value=json_filter("$.user.id == 7"))
    assert (first.searches, second.searches, third.searches) == (True, False, True)


@pytest.mark.parametrize(
    ("failure", "said", "unsaid"),
    [
        (
            MaybeWritten(ErrorCode.request_timed_out, "too late"),
            "the record may have been written",
            "is not written",
        ),
        (KafkaError(ErrorCode.message_too_large, "too large"), "not written: too large", "may have been"),
    ],
)
def test_a_record_that_was_not_confirmed_is_not_called_unwritten(
    failure: KafkaError, said: str, unsaid: str
) -> None:
    records = Records(failure)
    answer = send("/topics/t/messages", records, method="POST", headers=[OWN], body=b"value=v")
    assert (answer.status, said in answer.text) == (503, True)
    assert unsaid not in answer.text


def test_a_search_shows_what_it_has_found_so_far_and_at_last_all() -> None:
    answer = send("/topics/t/messages?key=k&count=9", headers=[EVENTS])
    first, last = (one.split("\n") for one in answer.text.strip().split("\n\n"))
    assert first[0] == "event: found"
    assert "0 records of 500 read so far: the search goes on" in first[1]
    assert last[0] == "event: done"
    assert "2 records." in last[1] and "record-0-7" in last[1]
    assert SCRIPT not in answer.text


@pytest.mark.parametrize(
    ("query", "said"), [("key=lost", "no broker responds"), ("key=k&count=x", "number of")]
)
def test_a_search_that_fails_says_so(query: str, said: str) -> None:
    events = send(f"/topics/t/messages?{query}", headers=[EVENTS]).text
    assert events.startswith("event: failure") and said in events


def test_a_tail_says_what_it_skipped_and_where_it_goes_on() -> None:
    records = Records()
    answer = send("/topics/t/tail?partition=0", records, headers=[EVENTS])
    skipped, tick, found, *_ = answer.text.split("\n\n")
    assert skipped == 'event: skipped\ndata: "3"', "without an id: a tail that ends here skipped nothing yet"
    assert tick == 'event: tick\nid: 0:7\ndata: ""'
    assert found.startswith('event: records\nid: 0:8\ndata: "<tr')
    send("/topics/t/tail?after=0:5,1:6", records, headers=[EVENTS])
    send("/topics/t/tail?after=0:5", records, headers=[EVENTS, ("last-event-id", "0:9")])
    assert records.followed == [("t", 0, {}), ("t", None, {0: 5, 1: 6}), ("t", None, {0: 9})]


@pytest.mark.parametrize("after", ["x", "0", "0:", "0:-1", ":1", "0:1,", "0:1 1:2"])
def test_a_tail_with_other_positions_is_refused(after: str) -> None:
    records = Records()
    answer = send("/topics/t/tail", records, headers=[EVENTS, ("last-event-id", after)])
    assert (answer.status, records.followed) == (400, [])


def test_only_what_reads_events_opens_a_tail() -> None:
    records = Records()
    for accept in ("text/html,*/*;q=0.8", "image/avif,image/webp,*/*"):
        assert send("/topics/t/tail", records, headers=[("accept", accept)]).status == 406
    assert send("/topics/t/tail", records).status == 406
    assert records.followed == []


def test_one_tail_too_many_says_so() -> None:
    answer = send("/topics/t/tail", Records(TooManyTails()), headers=[EVENTS])
    assert "event: failure" in answer.text and "followed already" in answer.text


def test_a_page_whose_records_are_cut_to_bound_it_says_so() -> None:
    class Many(Records):
        async def read(self, query: RecordQuery, progress: Callable[[Found], None] = lambda _: None) -> Found:
            (record, _) = (await super().read(query)).records
            return Found((record,) * query.count, query.count, False, None, ())

    assert "cut after 5,242 bytes" in send("/topics/t/messages?whole=1&count=200", Many()).text
    for shown in ("whole=1&count=1", "count=200"):
        assert "cut after" not in send(f"/topics/t/messages?{shown}", Many()).text


def test_a_large_body_is_refused() -> None:
    body = b"value=" + b"x" * (2 * 1024 * 1024)
    assert send("/topics/t/messages", method="POST", headers=[OWN], body=body).status == 413


def test_values_by_the_schemas_of_a_registry_are_shown_as_json_or_with_the_reason_why_not() -> None:
    with StubRegistry() as registry:
        schema = {"type": "record", "name": "Order", "fields": [{"name": "note", "type": "string"}]}
        number = registry.add("t-value", schema)
        text = HOSTILE.encode()
        written = framed(number, bytes([2 * len(text)]) + text)
        records = Records(values=[written, framed(number, b"\xff"), framed(99, SCRIPT.encode()), b"plain"])

        def shown(form: str) -> list[dict[str, Any]]:
            values = DecodedValues(SchemaRegistry(registry.url))
            target = f"/topics/t/messages?form={form}"
            return [
                one["value"]
                for one in send(target, records, values=values, headers=[JSON]).document["records"]
            ]

        first, second, third, plain = shown("auto")
        assert (first["kind"], first["note"], first["size"]) == ("json", "Avro, schema 1", len(written))
        assert json.loads(first["text"]) == {"note": HOSTILE}
        assert (second["kind"], second["text"][:24]) == ("hex", "000000  00 00 00 00 01 f")
        assert second["note"].startswith("Not decoded: it is no value of schema 1, Avro: ")
        assert third["note"] == "Not decoded: schema 99 of the registry: the registry does not have it"
        assert (plain["text"], plain["note"]) == ("plain", "")
        assert [one["note"] for one in shown("text")] == [""] * 4
        page = send("/topics/t/messages", records, values=DecodedValues(SchemaRegistry(registry.url)))
        assert "Avro, schema 1" in page.text
        assert Elements(page.text).scripts == ["/static/console.js"]
        events = send(
            "/topics/t/tail", records, values=DecodedValues(SchemaRegistry(registry.url)), headers=[EVENTS]
        )
        assert "Avro, schema 1" in events.text


def test_records_without_a_schema_do_not_wait_for_pages_that_wait_for_the_registry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(Decoding, "decode", lambda *_: answers.wait(60) and [None, None])

    def record(value: bytes) -> ConsumerRecord:
        return ConsumerRecord("t", 0, 0, 0, 0, None, value, (), 0)

    async def check() -> None:
        values = DecodedValues(SchemaRegistry("http://127.0.0.1:9"))
        waiting = [asyncio.ensure_future(values.of([record(framed(1, b""))])) for _ in range(PAGES_MAX)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                assert await values.of([record(b"plain")]) == [NO_SCHEMAS]
            assert not any(one.done() for one in waiting)
        finally:
            answers.set()
            await asyncio.gather(*waiting)

    asyncio.run(check())


def test_a_page_asks_the_registry_for_a_limited_number_of_schemas_and_bytes() -> None:
    with StubRegistry() as registry:
        values = [framed(registry.add("t", '"int"'), b"\x02") for _ in range(LIMITS.schemas + 5)]
        records = Records(values=[*values, framed(1, b"x" * LIMITS.value_bytes)])
        decoded = DecodedValues(SchemaRegistry(registry.url))
        found = send("/topics/t/messages", records, values=decoded, headers=[JSON]).document["records"]
        notes = [one["value"]["note"] for one in found]
        assert len(registry.requests) == LIMITS.schemas
        assert notes[LIMITS.schemas - 1] == "Avro, schema 20"
        assert notes[LIMITS.schemas].startswith(
            "Not decoded: schema 21 was not asked for: there are too many"
        )
        assert notes[-1] == "Not decoded: it is larger than 256 KiB"


def test_the_overview_shows_the_metadata_quorum() -> None:
    page = send("/").text
    assert "Node 1 leads in epoch 5; committed below offset 9. 2 of 2 voters are a majority." in page
    table = page.partition('id="quorum"')[2]
    rows = [re.sub(r"<[^>]*>", " ", row).split()[:4] for row in table.split("<tr>")[2:]]
    assert [row[:3] for row in rows] == [["1", "leader", "0"], ["2", "voter", "3"], ["3", "observer", "–"]]
    assert [row[3] for row in rows] == ["–", "250", "never"]


@pytest.mark.parametrize(
    ("target", "headers"),
    [("/topics/t/messages", [JSON]), ("/topics/t/messages", [EVENTS]), ("/topics/t/tail", [EVENTS])],
)
def test_records_are_made_readable_in_another_thread(
    monkeypatch: pytest.MonkeyPatch, target: str, headers: list[tuple[str, str]]
) -> None:
    """Two hundred of an internal topic, with thousands of partitions each, take seconds."""
    threads: list[int] = []

    def noting(*arguments: Any, **named: Any) -> Any:
        threads.append(threading.get_ident())
        return record_views(*arguments, **named)

    monkeypatch.setattr(message_pages, "record_views", noting)
    assert send(target, headers=headers).status == 200
    assert threads
    assert threading.get_ident() not in threads
