"""Apache Kafka and Nilometer read each other's ``__consumer_offsets``, field for field and byte for byte."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from nilometer.groups.records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    GroupMetadataValue,
    OffsetCommitValue,
    decode_record,
    encode_record,
)
from nilometer.identifiers import uuid_to_text
from nilometer.wire.record_batch import batches
from nilometer.wire.records import BatchBuilder, Record, decode_records
from nilometer.wire.value_bytes import decode_assignment, decode_subscription
from support.eventually import eventually
from support.groups.record_samples import NOW_MS, SAMPLES
from support.kafka.apache_kafka import ApacheKafka, run_tool

pytestmark = pytest.mark.java

LINE = re.compile(r"^\| offset: .*? key: (?P<key>\{.*\}) payload: (?P<value>.*)$", re.MULTILINE)
DELETED = "<DELETE>"
EMPTY_CLASSIC = {"sessionTimeoutMs": 0, "supportedProtocols": []}
OVERRIDES = {
    "offsets.topic.num.partitions": "1",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "0",
}


def dumped(log: Path) -> list[tuple[dict[str, object], dict[str, object] | None]]:
    """(key, value) of each record, as Kafka's own tool understands them."""
    printed = run_tool("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", str(log))
    return [
        (
            json.loads(found["key"])["data"],
            None if found["value"] == DELETED else json.loads(found["value"])["data"],
        )
        for found in LINE.finditer(printed)
    ]


def in_kafkas_json(value: object) -> object:
    """As Kafka's tool prints a record: field names in camel case, bytes in base64, ids as text."""
    if isinstance(value, msgspec.Struct):
        return {
            re.sub(r"_(\w)", lambda found: found[1].upper(), name): in_kafkas_json(getattr(value, name))
            for name in value.__struct_fields__
        }
    if isinstance(value, tuple):
        return [in_kafkas_json(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return uuid_to_text(value) if isinstance(value, UUID) else value


def assert_same(ours: object, theirs: object, where: str) -> None:
    """Fields that their version lacks must have their defaults in ours."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        assert set(theirs) <= set(ours), where
        for name, value in ours.items():
            if name in theirs:
                assert_same(value, theirs[name], f"{where}.{name}")
            else:
                assert value in (None, -1, 0, [], EMPTY_CLASSIC), f"{where}.{name}"
    elif isinstance(ours, list) and isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    elif isinstance(ours, str) and isinstance(theirs, Mapping):
        assert_same_embedded(base64.b64decode(ours), theirs, where)
    else:
        assert ours == theirs, where


def assert_same_embedded(ours: bytes, theirs: Mapping[str, object], where: str) -> None:
    """What consumers say among themselves, which Kafka's tool opens where it can."""
    if where.endswith("subscription"):
        assert list(decode_subscription(ours).topics) == theirs["topics"], where
    else:
        assigned = theirs["assignedPartitions"]
        assert isinstance(assigned, list)
        partitions = [(each["topic"], number) for each in assigned for number in each["partitions"]]
        assert list(decode_assignment(ours).partitions) == partitions, where


def assert_understood_alike(records: list[CoordinatorRecord], log: Path) -> None:
    printed = dumped(log)
    assert len(printed) == len(records)
    for record, (key, value) in zip(records, printed, strict=True):
        assert_same(in_kafkas_json(record.key), key, f"key of {record}")
        assert (record.value is None) == (value is None), record
        if record.value is not None:
            assert_same(in_kafkas_json(record.value), value, f"value of {record}")


# ── theirs ────────────────────────────────────────────────────────────────────────────────────────
class Member:
    """One consumer, polled by hand."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **settings: str) -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        self.consumer = Consumer(
            {**config, **{name.replace("_", "."): value for name, value in settings.items()}}
        )
        self.consumer.subscribe(list(topics))

    def assigned(self) -> list[int]:
        self.consumer.poll(0.02)
        return sorted(each.partition for each in self.consumer.assignment())

    def commit(self, metadata: str) -> None:
        position = TopicPartition("t", 0, 0, metadata=metadata, leader_epoch=0)
        self.consumer.commit(offsets=[position], asynchronous=False)


def _live(kafka: ApacheKafka) -> None:
    """Groups of both protocols, one by regular expression, one that changes its protocol under way."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_topics([NewTopic("t", 2)]).values():
        future.result(20)
    classic = Member(kafka.bootstrap, "classic", "t", group_instance_id="static")
    modern = Member(kafka.bootstrap, "modern", "t", group_protocol="consumer")
    matching = Member(kafka.bootstrap, "matching", "^t.*", group_protocol="consumer")
    old = Member(kafka.bootstrap, "mixed", "t")
    members = (classic, modern, matching, old)
    eventually(lambda: [each.assigned() for each in members] == [[0, 1]] * 4, "all is assigned to each")
    for number, member in enumerate(members):
        member.commit(f"{number} · ☥")
    new = Member(kafka.bootstrap, "mixed", "t", group_protocol="consumer")
    eventually(
        lambda: sorted(old.assigned() + new.assigned()) == [0, 1] and len(new.assigned()) == 1,
        "each of both has one partition",
    )
    for member in (classic, modern, matching, old, new):
        member.consumer.close()
    for future in admin.delete_consumer_groups(["modern"]).values():
        future.result(20)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Record], Path]]:
    kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"), overrides=OVERRIDES)
    with kafka:
        _live(kafka)
    [log] = (kafka.data_dir / "__consumer_offsets-0").glob("*.log")
    data = log.read_bytes()
    yield [record for at, header in batches(data) for record in decode_records(data, at, header)], log


def test_we_read_what_kafka_wrote_and_would_write_the_same(theirs: tuple[list[Record], Path]) -> None:
    records, log = theirs
    decoded: list[CoordinatorRecord] = []
    for record in records:
        assert record.key is not None
        understood = decode_record(record.key, record.value)
        assert understood is not None
        assert encode_record(understood) == (record.key, record.value), understood
        decoded.append(understood)
    assert {type(record.value) for record in decoded} >= {
        OffsetCommitValue,
        GroupMetadataValue,
        ConsumerGroupMetadataValue,
        ConsumerGroupMemberMetadataValue,
        ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupRegularExpressionValue,
        type(None),
    }
    members = [
        record.value for record in decoded if isinstance(record.value, ConsumerGroupMemberMetadataValue)
    ]
    assert any(member.classic_member_metadata is not None for member in members)
    assert any(
        record.value.topic_id is not None for record in decoded if isinstance(record.value, OffsetCommitValue)
    )
    assert_understood_alike(decoded, log)


def test_kafka_reads_what_we_write(tmp_path: Path) -> None:
    builder = BatchBuilder()
    for record in SAMPLES:
        builder.append(NOW_MS, *encode_record(record))
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(builder.build())
    assert_understood_alike(SAMPLES, log)
