"""Entries: readable, versioned, bounded."""

from __future__ import annotations

import json
import uuid

import pytest
from cluster_harness import ClusterWorld

from nilometer.cluster.entries import (
    BadEntry,
    Controllership,
    Entry,
    EntryFromTheFuture,
    UnitTooLarge,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    entries_of,
)
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import FORMAT_VERSION, PartitionCreated, TopicCreated, TopicDeleted
from nilometer.identifiers import (
    BrokerId,
    ControllerEpoch,
    EntryNumber,
    Incarnation,
    TopicId,
    uuid_from_text,
    uuid_to_text,
)
from nilometer.invariants import InvariantBroken

CONTROLLERSHIP = Controllership(BrokerId(7), Incarnation("incarnation-7"), ControllerEpoch(3))
TOPIC = TopicId(uuid_to_text(uuid.UUID(int=1)))


def created(partition: int) -> PartitionCreated:
    return PartitionCreated(
        topic_id=TOPIC, partition=partition, replicas=(BrokerId(1), BrokerId(2), BrokerId(3))
    )


def test_uuid_text_is_kafkas() -> None:
    value = uuid.UUID("6f1d7a14-3c5f-4c63-9d63-2f1f6dfb7e0a")
    text = uuid_to_text(value)
    assert text == "bx16FDxfTGOdYy8fbft-Cg"
    assert uuid_from_text(text) == value


@pytest.mark.parametrize("text", ["", "short", "bx16FDxfTGOdYy8fbft-CgAA", "bx16FDxfTGOdYy8fbft!Cg"])
def test_uuid_text_of_another_length_or_alphabet_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="UUID"):
        uuid_from_text(text)


def test_an_entry_is_json_that_a_person_can_read() -> None:
    entry = next(entries_of([(TopicCreated(name="logs", topic_id=TOPIC), created(0))], CONTROLLERSHIP))
    data = encode_entry(entry)
    assert json.loads(data) == {
        "version": 1,
        "controller_id": 7,
        "controller_incarnation": "incarnation-7",
        "controller_epoch": 3,
        "records": [
            {"type": "TopicCreated", "name": "logs", "topic_id": TOPIC},
            {"type": "PartitionCreated", "topic_id": TOPIC, "partition": 0, "replicas": [1, 2, 3]},
        ],
    }
    assert decode_entry(data) == entry


def test_an_entry_of_a_newer_version_is_refused_with_a_clear_error() -> None:
    data = json.dumps({"version": FORMAT_VERSION + 1, "records": [{"type": "SomethingNew"}], "more": 1})
    with pytest.raises(EntryFromTheFuture, match=rf"version {FORMAT_VERSION + 1}.*upgrade this broker"):
        decode_entry(data.encode())
    with pytest.raises(EntryFromTheFuture, match="upgrade this broker"):
        decode_snapshot(data.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 1}',
        b'{"version": "1"}',
        b"\xff\xfe",
        b'{"version":1,"controller_id":1,"controller_incarnation":"a","controller_epoch":1,"records":[{"type":"X"}]}',
        b'{"version":1,"controller_id":1,"controller_incarnation":"\xff","controller_epoch":1,"records":[]}',
    ],
)
def test_bytes_that_are_no_entry_are_refused(data: bytes) -> None:
    with pytest.raises(BadEntry):
        decode_entry(data)


def test_units_are_packed_in_order_and_never_cut() -> None:
    units = [tuple(created(10 * unit + i) for i in range(7)) for unit in range(40)]
    entries = list(entries_of(units, CONTROLLERSHIP, target=4000))
    assert len(entries) > 5
    assert [record for entry in entries for record in entry.records] == [r for unit in units for r in unit]
    for entry in entries:
        assert len(encode_entry(entry)) <= 4000
        assert len(entry.records) % 7 == 0
        assert entry.controllership == CONTROLLERSHIP


def test_a_unit_above_the_target_gets_an_entry_of_its_own() -> None:
    big = tuple(created(i) for i in range(100))
    entries = list(entries_of([(created(0),), big, (created(1),)], CONTROLLERSHIP, target=2000))
    assert [len(entry.records) for entry in entries] == [1, 100, 1]


def test_a_unit_above_the_limit_of_the_stores_is_refused() -> None:
    with pytest.raises(UnitTooLarge, match="belong together"):
        list(entries_of([tuple(created(i) for i in range(12_000))], CONTROLLERSHIP))


def test_no_records_no_entry() -> None:
    assert list(entries_of([], CONTROLLERSHIP)) == []


def test_entries_must_follow_one_another(world: ClusterWorld) -> None:
    entry = Entry(
        controller_id=BrokerId(0),
        controller_incarnation=world.image.controllership.incarnation,
        controller_epoch=world.image.controller_epoch,
        records=(),
    )
    for number in (world.image.number, world.image.number + 2):
        with pytest.raises(InvariantBroken, match="cannot follow"):
            world.image.apply_entry(EntryNumber(number), entry)


def test_a_record_about_a_topic_that_is_not_there_stops_the_fold(world: ClusterWorld) -> None:
    for record in (TopicDeleted(topic_id=TOPIC), created(0)):
        with pytest.raises(InvariantBroken, match="no such topic"):
            entry = next(entries_of([(record,)], world.image.controllership))
            world.image.apply_entry(EntryNumber(world.image.number + 1), entry)


def test_a_topic_whose_name_or_id_is_taken_stops_the_fold(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    (topic,) = world.image.topics()
    for name, topic_id in ((topic.name, TOPIC), ("another", topic.id)):
        entry = next(entries_of([(TopicCreated(name=name, topic_id=topic_id),)], world.image.controllership))
        with pytest.raises(InvariantBroken, match="is taken"):
            world.image.apply_entry(EntryNumber(world.image.number + 1), entry)
        assert world.image.topics() == [topic]


def test_snapshot_is_readable_json_and_equal_to_the_fold(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    world.down(1)
    data = encode_snapshot(world.image.snapshot())
    assert json.loads(data)["topics"][0]["partitions"][0]["isr"] == [2, 3]
    assert ClusterImage.from_snapshot(decode_snapshot(data)) == world.image == world.refold()
    assert ClusterImage() != world.image
