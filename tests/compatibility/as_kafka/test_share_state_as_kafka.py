"""The state of share partitions, initialized, read, written and deleted, as Apache Kafka's share coordinator
does it; and who coordinates a share partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from nilometer.identifiers import topic_id_of
from nilometer.wire.api_keys import ApiKey
from support.brokers.comparison import NOWHERE, each_version, same
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.java

K = ApiKey
TYPES = {
    K.INITIALIZE_SHARE_GROUP_STATE: "InitializeStateData",
    K.READ_SHARE_GROUP_STATE: "ReadStateData",
    K.WRITE_SHARE_GROUP_STATE: "WriteStateData",
    K.DELETE_SHARE_GROUP_STATE: "DeleteStateData",
    K.READ_SHARE_GROUP_STATE_SUMMARY: "ReadStateSummaryData",
}
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
Batch = tuple[int, int, int, int]
"""First and last offset, state and delivery count."""


def about(
    side: Side,
    key: ApiKey,
    topic: str,
    version: int = 0,
    *,
    index: int = 0,
    group: str = "workers",
    **more: object,
) -> Plain:
    part = make(key, version, "PartitionData", partition=index, **more)
    topic_id = side.topic_ids.get(topic, NOWHERE)
    asked = make(key, version, TYPES[key], topic_id=topic_id, partitions=(part,))
    return side.ask(key, version, group_id=group, topics=(asked,))


def initialize(side: Side, topic: str, epoch: int = 1, start: int = 100, index: int = 0) -> Plain:
    key = K.INITIALIZE_SHARE_GROUP_STATE
    return about(side, key, topic, index=index, state_epoch=epoch, start_offset=start)


def read(side: Side, topic: str, leader: int = 1, index: int = 0) -> Plain:
    return about(side, K.READ_SHARE_GROUP_STATE, topic, index=index, leader_epoch=leader)


def write(
    side: Side,
    topic: str,
    batches: Sequence[Batch] = (),
    *,
    version: int = 1,
    epoch: int = 1,
    leader: int = 1,
    start: int = -1,
    count: int = 0,
    index: int = 0,
) -> Plain:
    key = K.WRITE_SHARE_GROUP_STATE
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    parts = tuple(make(key, version, "StateBatch", **dict(zip(names, one, strict=True))) for one in batches)
    more = {"delivery_complete_count": count} if version else {}
    fields = {"state_epoch": epoch, "leader_epoch": leader, "start_offset": start, "state_batches": parts}
    return about(side, key, topic, version, index=index, **fields, **more)


def delete(side: Side, topic: str, index: int = 0) -> Plain:
    return about(side, K.DELETE_SHARE_GROUP_STATE, topic, index=index)


def summary(side: Side, topic: str, version: int = 1, index: int = 0) -> Plain:
    return about(side, K.READ_SHARE_GROUP_STATE_SUMMARY, topic, version, index=index, leader_epoch=0)


def begun(side: Side, name: str) -> str:
    """Create a topic, and wait until its share partition has a coordinator that knows it."""
    topic = side.create(name, 2)
    key = K.FIND_COORDINATOR
    text = f"workers:{topic_id_of(side.topic_ids[topic])}:0"

    def found() -> bool:
        answer = side.message(key, 6, key_type=2, coordinator_keys=(text,)).coordinators[0]
        return answer.node_id == 1

    eventually(found, f"{side.name} has a share coordinator")
    eventually(
        lambda: summary(side, topic)["results"][0]["partitions"][0]["error_code"] == "none",
        f"the share coordinator of {side.name} has loaded",
    )
    return topic


def run(side: Side, name: str, *steps: Callable[[Side, str], Plain]) -> Plain:
    topic = begun(side, name)
    return [answer for step in steps for answer in (step(side, topic), summary(side, topic))]


@each_version(K.WRITE_SHARE_GROUP_STATE)
def test_a_state_from_its_beginning_to_its_end(sides: tuple[Side, Side], version: int) -> None:
    steps = (
        initialize,
        partial(read, leader=3),
        partial(write, leader=3, start=100, version=version, batches=[(100, 109, ACKNOWLEDGED, 1)], count=10),
        partial(read, leader=3),
        partial(write, leader=4, start=110, version=version, batches=[(110, 119, AVAILABLE, 2)], count=0),
        partial(read, leader=4),
        delete,
        partial(read, leader=4),
        delete,
    )
    same(sides, run, f"state-{version}", *steps)


@each_version(K.READ_SHARE_GROUP_STATE_SUMMARY)
def test_summaries(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side) -> Plain:
        topic = begun(side, f"summary-{version}")
        told = [summary(side, topic, version)]
        for start in (-1, 50):
            told += [initialize(side, topic, start=start), summary(side, topic, version)]
        told += [summary(side, topic, version, index=1), summary(side, topic, version, index=7)]
        return told

    same(sides, scenario)


def test_batches_that_overlap(sides: tuple[Side, Side]) -> None:
    steps: list[Callable[[Side, str], Plain]] = [partial(initialize, start=0)]
    for batches in (
        [(0, 9, AVAILABLE, 1), (5, 14, AVAILABLE, 2)],
        [(3, 7, ACKNOWLEDGED, 1), (20, 29, ARCHIVED, 5)],
        [(0, 40, AVAILABLE, 1)],
        [(30, 34, ACKNOWLEDGED, 1), (35, 39, ACKNOWLEDGED, 1)],
        [(15, 19, AVAILABLE, 2)],
    ):
        steps += [partial(write, batches=batches), read]
    steps += [
        partial(write, start=12),
        read,
        partial(write, start=33, batches=[(10, 50, AVAILABLE, 9)]),
        read,
    ]
    same(sides, run, "overlaps", *steps)


@pytest.mark.parametrize(("start", "count"), [(100, 7), (100, 3), (120, 3), (90, 9), (-1, 9)])
def test_the_complete_count(sides: tuple[Side, Side], start: int, count: int) -> None:
    steps = (initialize, partial(write, start=100, count=5), partial(write, start=start, count=count), read)
    same(sides, run, f"count-{start}-{count}", *steps)


def test_fences(sides: tuple[Side, Side]) -> None:
    steps = (
        partial(initialize, epoch=3),
        partial(read, leader=5),
        partial(read, leader=4),
        partial(write, epoch=3, leader=4),
        partial(write, epoch=2, leader=5),
        partial(write, epoch=2, leader=4),
        partial(initialize, epoch=2),
        partial(write, epoch=7, leader=9),
        partial(read, leader=5),
        partial(initialize, epoch=4),
        partial(read, leader=4),
        partial(write, epoch=4, leader=4),
        partial(write, epoch=4, leader=5, batches=[(100, 101, ACKNOWLEDGED, 1)]),
        partial(read, leader=5),
    )
    same(sides, run, "fences", *steps)


def test_what_is_refused(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        topic = begun(side, "refused")
        told = [read(side, topic), write(side, topic), delete(side, topic), summary(side, topic)]
        told += [read(side, topic, -1), write(side, topic, leader=-1), write(side, topic, epoch=-1)]
        told += [initialize(side, topic, epoch=-1)]
        for index in (-1, 2):
            told += [step(side, topic, index=index) for step in (initialize, read, write, delete, summary)]
        told += [step(side, "nowhere") for step in (initialize, read, write, delete, summary)]
        for key in TYPES:
            told.append(side.ask(key, 0, group_id="workers", topics=()))
        return told

    same(sides, scenario)


KEYS = [
    "",
    "g",
    "g:{id}",
    "g:{id}:",
    " :{id}:0",
    "g:AAAA:0",
    "g:{id}:x",
    "g:{id}:2147483648",
    "a:b:{id}:0",
    "g:{id}:-1",
]


@pytest.mark.parametrize("text", KEYS)
def test_keys_of_share_partitions(sides: tuple[Side, Side], text: str) -> None:
    def scenario(side: Side) -> Plain:
        topic = begun(side, f"keys-{KEYS.index(text)}")
        asked = text.format(id=topic_id_of(side.topic_ids[topic]))
        (found,) = side.message(K.FIND_COORDINATOR, 6, key_type=2, coordinator_keys=(asked,)).coordinators
        return [found.error_code.name, found.node_id]

    same(sides, scenario)
