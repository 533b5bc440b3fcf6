"""ShareFetch and ShareAcknowledge answered as Apache Kafka answers, step by step: sessions, what is refused,
acknowledgements of every kind, and what the group's configuration, the log and transactions change.

Left out is what Apache Kafka 4.4.0 answers without a meaning: an empty group id gets errors of its partitions
(here INVALID_REQUEST), an acquire mode that does not exist UNKNOWN_SERVER_ERROR after the session has gone on
(INVALID_REQUEST), a batch size below 1 an empty range of acquired records (it counts as 1), a negative number
of records an empty partition (as 0), a negative offset is acknowledged (INVALID_RECORD_STATE). With
``by_duration`` and no record young enough Kafka answers OFFSET_NOT_AVAILABLE until there is one; here the
group begins at the end. That the log begins later is noticed by Kafka when a fetch fails for it. The offsets
between two batches of a compacted log Kafka acquires if it reads both batches at once, and otherwise counts
in the lag for ever; here they are archived.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.brokers.comparison import NOWHERE, same
from support.brokers.record_requests import fetch_fields
from support.brokers.two_brokers import Plain, Side, produce_fields, records_of
from support.eventually import eventually
from support.groups.group_requests import wait_for_coordinator
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded

K = ApiKey
GROUP_CONFIGS, TOPIC_CONFIGS = 32, 2
NOW_MS = int(time.time() * 1000)
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
LONG_MS = 20_000
"""Until there is something."""
WAIT_S = 120.0
SHORT_MS = 300
"""Long enough for a share partition that is loaded; there is nothing."""
Acks = Sequence[tuple[int, int, Sequence[int]]]
"""First and last offsets with their types."""


class Member:
    """A member's requests about one partition; its session's epochs are counted."""

    def __init__(self, side: Side, topic: str, group: str, name: str = "m") -> None:
        self.side, self.topic, self.group, self.name = side, topic, group, name
        self.epoch = 0

    def join(self) -> Member:
        """Join the group, and wait until the share partition has a state."""
        wait_for_coordinator(self.side, self.group)
        epochs = [0]

        def has_partition() -> bool:
            topics = (self.topic,) if epochs[-1] == 0 else None
            told = self.side.message(
                K.SHARE_GROUP_HEARTBEAT,
                1,
                group_id=self.group,
                member_id=self.name,
                member_epoch=epochs[-1],
                rack_id=None,
                subscribed_topic_names=topics,
            )
            if told.error_code is not ErrorCode.none:
                return False
            epochs.append(told.member_epoch)
            return told.assignment is not None and bool(told.assignment.topic_partitions)

        eventually(has_partition, f"{self.side.name} gives {self.group} its partition")
        return self

    def leave(self) -> None:
        told = self.side.message(
            K.SHARE_GROUP_HEARTBEAT,
            1,
            group_id=self.group,
            member_id=self.name,
            member_epoch=-1,
            rack_id=None,
            subscribed_topic_names=None,
        )
        assert told.error_code is ErrorCode.none

    def fetch(
        self,
        *acks: tuple[int, int, Sequence[int]],
        epoch: int | None = None,
        wait_ms: int = LONG_MS,
        records: int = 500,
        batch_size: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        index: int | None = 0,
        forget: Sequence[int] = (),
        topic_id: UUID | None = None,
        version: int = 2,
        **more: object,
    ) -> Plain:
        fields: dict[str, object] = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self._next(epoch),
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "max_records": records,
            "batch_size": batch_size,
            "topics": self._topics(K.SHARE_FETCH, version, index, topic_id, acks),
            "forgotten_topics_data": (),
            **more,
        }
        if forget:
            of_topic = make(
                K.SHARE_FETCH,
                version,
                "ForgottenTopic",
                topic_id=self._id(topic_id),
                partitions=tuple(forget),
            )
            fields["forgotten_topics_data"] = (of_topic,)
        return self._count(self.side.ask(K.SHARE_FETCH, version, **fields))

    def acknowledge(
        self,
        *acks: tuple[int, int, Sequence[int]],
        epoch: int | None = None,
        index: int | None = 0,
        topic_id: UUID | None = None,
        version: int = 2,
        **more: object,
    ) -> Plain:
        answer = self.side.ask(
            K.SHARE_ACKNOWLEDGE,
            version,
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self._next(epoch),
            **{"topics": self._topics(K.SHARE_ACKNOWLEDGE, version, index, topic_id, acks), **more},
        )
        return self._count(answer)

    def _next(self, epoch: int | None) -> int:
        self._asked = self.epoch if epoch is None else epoch
        return self._asked

    def _count(self, answer: Plain) -> Plain:
        for topic in answer["responses"] if isinstance(answer, dict) else ():
            for part in topic["partitions"]:
                part.pop("acknowledge_error_message", None)
                if "records" in part:
                    part["records"] = _ranges([offset for offset, _, _ in part["records"]])
                    part["acquired_records"] = [tuple(one.values()) for one in part["acquired_records"]]
        if isinstance(answer, dict) and answer["error_code"] == "none":
            self.epoch = self._asked + 1
        return answer

    def _id(self, topic_id: UUID | None) -> UUID:
        return self.side.topic_ids[self.topic] if topic_id is None else topic_id

    def _topics(self, key: ApiKey, version: int, index: int | None, topic_id: UUID | None, acks: Acks) -> Any:
        if index is None:
            return ()
        kind = "Fetch" if key is K.SHARE_FETCH else "Acknowledge"
        batches = tuple(
            make(
                key,
                version,
                "AcknowledgementBatch",
                first_offset=first,
                last_offset=last,
                acknowledge_types=tuple(types),
            )
            for first, last, types in acks
        )
        part = make(key, version, f"{kind}Partition", partition_index=index, acknowledgement_batches=batches)
        return (make(key, version, f"{kind}Topic", topic_id=self._id(topic_id), partitions=(part,)),)


def _ranges(offsets: Sequence[int]) -> list[str]:
    """Return offsets in order as ranges, to be short."""
    found: list[list[int]] = []
    for offset in offsets:
        if found and offset == found[-1][1] + 1:
            found[-1][1] = offset
        else:
            found.append([offset, offset])
    return [f"{first}-{last}" for first, last in found]


def configure(side: Side, name: str, kind: int = GROUP_CONFIGS, **configs: str) -> None:
    key = K.INCREMENTAL_ALTER_CONFIGS
    changes = tuple(
        make(key, 1, "AlterableConfig", name=config.replace("_", "."), config_operation=0, value=value)
        for config, value in configs.items()
    )
    resource = make(key, 1, "AlterConfigsResource", resource_type=kind, resource_name=name, configs=changes)
    (answer,) = side.message(key, 1, resources=(resource,), validate_only=False).responses
    assert answer.error_code == ErrorCode.none, answer


def all_of(member: Member, count: int) -> Plain:
    """Fetch until so many records are acquired: what others release becomes available in its own time."""
    found: list[tuple[int, int, int]] = []

    def are_all() -> bool:
        answer = member.fetch(wait_ms=SHORT_MS)
        for topic in answer["responses"]:
            for part in topic["partitions"]:
                found.extend(part["acquired_records"])
        return sum(last - first + 1 for first, last, _ in found) >= count

    eventually(are_all, f"{member.name} gets {count} records of {member.topic}")
    return sorted(each for first, last, times in found for each in _single(first, last, times))


def _single(first: int, last: int, times: int) -> list[tuple[int, int]]:
    return [(offset, times) for offset in range(first, last + 1)]


def queue(side: Side, name: str, *batches: int, member: str = "m", **configs: str) -> Member:
    """Create a topic with batches of so many records, and a group that reads it from its start."""
    topic, group = f"share-{name}", f"of-{name}"
    side.create(topic)
    values = iter(range(1_000))
    for count in batches:
        side.append(topic, *(b"%d" % next(values) for _ in range(count)), timestamp=NOW_MS)
    configure(side, group, **{"share_auto_offset_reset": "earliest", **configs})
    return Member(side, topic, group, member).join()


def test_sessions(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "sessions", 3)
        told: dict[str, Plain] = {
            "fetches without a session": at.fetch(epoch=1),
            "acknowledges without a session": at.acknowledge((0, 0, [ACCEPT]), epoch=1),
            "acknowledges in epoch 0": at.acknowledge((0, 0, [ACCEPT]), epoch=0),
            "ends no session": at.fetch(epoch=-1),
            "ends no session, acknowledging": at.acknowledge((0, 0, [ACCEPT]), epoch=-1),
            "epoch -2": at.fetch(epoch=-2),
            "begins and acknowledges": at.fetch((0, 0, [ACCEPT]), epoch=0),
            "begins": at.fetch(records=1),
            "epoch ahead": at.fetch(epoch=5, wait_ms=0),
            "epoch behind": at.fetch(epoch=0x7FFFFFFF, wait_ms=0),
            "acknowledges, epoch ahead": at.acknowledge((0, 0, [ACCEPT]), epoch=7),
            "goes on": at.fetch(wait_ms=0, records=1),
            "acknowledges": at.acknowledge((0, 0, [ACCEPT])),
            "acknowledges nothing": at.acknowledge(index=None),
            "acknowledges a partition without batches": at.acknowledge(),
            "goes on again": at.fetch(wait_ms=SHORT_MS, index=None),
            "begins again": at.fetch(epoch=0, wait_ms=SHORT_MS),
            "ends": at.fetch(epoch=-1),
            "it ended": at.fetch(epoch=1),
            "begins once more": at.fetch(epoch=0, wait_ms=SHORT_MS),
            "ends by acknowledging": at.acknowledge((1, 1, [ACCEPT]), epoch=-1),
            "it ended then": at.acknowledge((1, 1, [ACCEPT]), epoch=1),
        }
        told["what is left"] = all_of(Member(side, at.topic, at.group, "n"), 1)
        return told

    same(sides, scenario)


def test_ends_with_acknowledgements_in_a_fetch(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "ends", 4)
        told = [at.fetch(), at.fetch((0, 1, [ACCEPT]), epoch=-1, wait_ms=SHORT_MS)]
        told.append(all_of(Member(side, at.topic, at.group, "n"), 2))
        return told

    same(sides, scenario)


def test_who_asks(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "who", 1)
        told: dict[str, Plain] = {}
        for label, group, member in (
            ("no member", at.group, ""),
            ("null group", None, "m"),
            ("null member", at.group, None),
            ("a group without members", "no-members", "m"),
            ("not a member of the group", at.group, "stranger"),
            ("a long member id", at.group, "m" * 37),
            ("a longer member id", at.group, "m" * 300),
        ):
            asks = Member(side, at.topic, group, member)  # type: ignore[arg-type]
            told[label] = [asks.fetch(wait_ms=SHORT_MS), asks.acknowledge((0, 0, [ACCEPT]), epoch=1)]
            told[f"{label}, at last"] = asks.fetch(epoch=-1)
        return told

    same(sides, scenario)


def test_what_is_asked(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "what", 2, 2)
        told: dict[str, Plain] = {
            "unknown topic id": at.fetch(topic_id=NOWHERE, wait_ms=SHORT_MS),
            "and again": at.fetch(wait_ms=SHORT_MS, index=None),
            "unknown partition too": at.fetch(index=5, wait_ms=SHORT_MS),
            "acknowledges unknown ones": at.acknowledge((0, 0, [ACCEPT]), topic_id=NOWHERE),
            "acknowledges an unknown partition": at.acknowledge((0, 0, [ACCEPT]), index=5),
            "forgets them": at.fetch(index=None, forget=(5,), wait_ms=SHORT_MS),
            "forgets what it does not have": at.fetch(index=None, forget=(0, 7), wait_ms=SHORT_MS),
            "forgets the unknown topic": at.fetch(
                index=None, forget=(0,), topic_id=NOWHERE, wait_ms=SHORT_MS
            ),
            "nothing is left": at.fetch(index=None, wait_ms=SHORT_MS),
            "no records": at.fetch(records=0, wait_ms=SHORT_MS),
            "no bytes": at.fetch(max_bytes=0, wait_ms=SHORT_MS, records=1),
            "more bytes than there are": at.fetch(min_bytes=1 << 20, wait_ms=SHORT_MS),
            "a negative wait": at.fetch(wait_ms=-1),
            "version 1": at.fetch(wait_ms=SHORT_MS, version=1),
            "version 1 acknowledges": at.acknowledge((0, 0, [ACCEPT]), version=1),
        }
        return told

    same(sides, scenario)


def test_a_partition_and_a_topic_named_twice(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "twice", 4)
        at.fetch()
        told: list[Plain] = []
        for key, kind in ((K.SHARE_ACKNOWLEDGE, "Acknowledge"), (K.SHARE_FETCH, "Fetch")):
            first, second = ((0, 0), (1, 1)) if kind == "Acknowledge" else ((2, 2), (3, 3))
            parts = [
                make(
                    key,
                    2,
                    f"{kind}Partition",
                    partition_index=0,
                    acknowledgement_batches=(
                        make(
                            key,
                            2,
                            "AcknowledgementBatch",
                            first_offset=span[0],
                            last_offset=span[1],
                            acknowledge_types=(ACCEPT,),
                        ),
                    ),
                )
                for span in (first, second)
            ]
            topic_id = side.topic_ids[at.topic]
            twice = (make(key, 2, f"{kind}Topic", topic_id=topic_id, partitions=tuple(parts)),)
            if kind == "Acknowledge":
                told.append(at.acknowledge(topics=twice))
            else:
                told.append(at.fetch(topics=twice, wait_ms=SHORT_MS))
        return told

    same(sides, scenario)


REFUSED: dict[str, Acks] = {
    "a type that does not exist": [(0, 0, [5])],
    "a negative type": [(0, 0, [-1])],
    "two types for three": [(0, 2, [ACCEPT, ACCEPT])],
    "more types than records": [(0, 0, [ACCEPT, ACCEPT])],
    "no types": [(0, 0, [])],
    "overlapping": [(0, 2, [ACCEPT]), (2, 3, [ACCEPT])],
    "unsorted": [(3, 3, [ACCEPT]), (0, 0, [ACCEPT])],
    "twice the same": [(1, 1, [ACCEPT]), (1, 1, [ACCEPT])],
    "last below first": [(2, 1, [ACCEPT])],
    "above the end": [(9, 10, [ACCEPT])],
    "far above the end": [(100, 100, [ACCEPT])],
    "not acquired": [(8, 8, [ACCEPT])],
    "partly not acquired": [(4, 8, [ACCEPT])],
    "one good, one not acquired": [(0, 0, [ACCEPT]), (8, 8, [ACCEPT])],
    "not acquired, then a wrong type": [(8, 8, [ACCEPT]), (9, 9, [7])],
    "a wrong type, then not acquired": [(0, 0, [7]), (8, 8, [ACCEPT])],
    "good and a wrong type": [(0, 1, [ACCEPT, 7])],
    "renewed without the flag": [(0, 0, [RENEW])],
    "renewed and accepted without the flag": [(0, 1, [RENEW, ACCEPT])],
}


def test_refused_acknowledgements(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "refused", 7, 3)
        told: dict[str, Plain] = {"acquired": at.fetch(records=5)}
        for label, acks in REFUSED.items():
            told[label] = at.acknowledge(*acks)
        for label, acks in REFUSED.items():
            told[f"{label}, in a fetch"] = at.fetch(*acks, wait_ms=0, records=0)
        told["all are still acquired"] = at.acknowledge((0, 6, [ACCEPT]))
        told["and done"] = at.acknowledge((0, 6, [ACCEPT]))
        told["and partly"] = [at.fetch(), at.acknowledge((5, 7, [ACCEPT])), at.acknowledge((7, 7, [ACCEPT]))]
        return told

    same(sides, scenario)


def test_every_type(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "types", 8)
        return [
            at.fetch(),
            at.acknowledge((0, 3, [ACCEPT, RELEASE, REJECT, GAP]), (5, 5, [RELEASE])),
            at.fetch(),
            at.fetch((1, 1, [ACCEPT]), (4, 5, [RELEASE, ACCEPT])),
            at.fetch((4, 4, [GAP]), (6, 7, [REJECT]), wait_ms=SHORT_MS),
            at.fetch(wait_ms=SHORT_MS),
            at.acknowledge((0, 7, [ACCEPT])),
        ]

    same(sides, scenario)


def test_two_members(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "two", 3, 3)
        other = Member(side, at.topic, at.group, "n")
        return [
            at.fetch(records=1),
            other.fetch(records=1),
            other.acknowledge((0, 0, [ACCEPT])),
            at.acknowledge((2, 3, [ACCEPT])),
            at.acknowledge((1, 1, [RELEASE])),
            other.acknowledge((1, 1, [ACCEPT])),
            other.fetch(),
            at.acknowledge((1, 1, [ACCEPT])),
            at.fetch(epoch=-1),
            all_of(other, 2),
            other.acknowledge((0, 5, [ACCEPT])),
        ]

    same(sides, scenario)


def test_renewals(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "renewed", 4)
        none: dict[str, Any] = {"wait_ms": 0, "records": 0, "min_bytes": 0, "max_bytes": 0}
        told: dict[str, Plain] = {
            "begins with it": at.fetch(epoch=0, is_renew_ack=True, **none),
            "acquired": at.fetch(epoch=0),
            "renews": at.acknowledge((0, 0, [RENEW]), is_renew_ack=True),
            "renews in a fetch": at.fetch((1, 1, [RENEW]), is_renew_ack=True, **none),
            "renews in a fetch that may wait": at.fetch(
                (1, 1, [RENEW]), is_renew_ack=True, **{**none, "wait_ms": 5}
            ),
            "… with records": at.fetch((1, 1, [RENEW]), is_renew_ack=True, **{**none, "records": 5}),
            "… with min bytes": at.fetch((1, 1, [RENEW]), is_renew_ack=True, **{**none, "min_bytes": 5}),
            "… with max bytes": at.fetch((1, 1, [RENEW]), is_renew_ack=True, **{**none, "max_bytes": 5}),
            "renews and accepts": at.acknowledge((0, 1, [RENEW, ACCEPT]), is_renew_ack=True),
            "the flag without a renewal": at.acknowledge((0, 0, [RELEASE]), is_renew_ack=True),
            "renews what it does not hold": at.acknowledge((0, 0, [RENEW]), is_renew_ack=True),
            "renews in a fetch without the flag": at.fetch((2, 2, [RENEW]), wait_ms=0, records=0),
            "in version 1": at.acknowledge((2, 2, [RENEW]), version=1),
            "ends and renews": at.acknowledge((2, 2, [RENEW]), is_renew_ack=True, epoch=-1),
        }
        other = Member(side, at.topic, at.group, "n")
        told["another gets"] = all_of(other, 3)
        told["ends by a fetch and renews"] = other.fetch((3, 3, [RENEW]), is_renew_ack=True, epoch=-1, **none)
        configure(side, at.group, share_renew_acknowledge_enable="false")
        last = Member(side, at.topic, at.group, "o")
        told["the last one gets"] = all_of(last, 3)
        told["not enabled"] = last.acknowledge((2, 2, [RENEW]), is_renew_ack=True)
        told["not enabled, in a fetch"] = last.fetch((2, 2, [RENEW]), is_renew_ack=True, **none)
        told["not enabled, with another"] = last.acknowledge((2, 3, [ACCEPT, RENEW]), is_renew_ack=True)
        return told

    same(sides, scenario)


def test_until_the_limit_of_deliveries(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "limit", 8, share_delivery_count_limit="4")
        told: list[Plain] = []
        for _ in range(14):
            answer = at.fetch(wait_ms=SHORT_MS)
            told.append(answer)
            (part,) = [part for topic in answer["responses"] for part in topic["partitions"]] or [None]
            if part is None:
                break
            held = [(first, last, [RELEASE]) for first, last, _ in part["acquired_records"]]
            told.append(at.acknowledge(*held))
        return told

    same(sides, scenario)


def test_a_limit_of_records(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        told: dict[str, Plain] = {}
        for mode in (0, 1):
            at = queue(side, f"records-{mode}", 4, 4, 4, 4)
            told[f"mode {mode}"] = [
                at.fetch(records=1, share_acquire_mode=mode),
                at.fetch(records=6, share_acquire_mode=mode),
                at.fetch(records=6, batch_size=2, share_acquire_mode=mode),
                at.acknowledge((0, 0, [RELEASE]), (2, 2, [RELEASE])),
                at.fetch(records=2, share_acquire_mode=mode, wait_ms=SHORT_MS),
                at.fetch(batch_size=3, wait_ms=SHORT_MS, share_acquire_mode=mode),
            ]
        return told

    same(sides, scenario)


def test_a_limit_of_locks(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "locks", 60, 60, 60, share_partition_max_record_locks="100")
        return [
            at.fetch(),
            at.fetch(wait_ms=SHORT_MS),
            at.fetch((0, 9, [ACCEPT]), wait_ms=SHORT_MS),
            at.fetch((30, 39, [RELEASE]), wait_ms=SHORT_MS),
            at.fetch((10, 99, [ACCEPT]), wait_ms=SHORT_MS),
            at.fetch((30, 39, [ACCEPT]), wait_ms=SHORT_MS),
        ]

    same(sides, scenario)


def test_configurations_that_change(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "changed", 4)
        told = [at.fetch()]
        configure(side, at.group, share_delivery_count_limit="2", share_record_lock_duration_ms="20000")
        eventually(
            lambda: at.acknowledge(index=None)["acquisition_lock_timeout"] == 20_000,
            f"{side.name} knows the new configurations",
        )
        told.append(at.acknowledge((0, 1, [RELEASE])))
        told += [at.fetch(), at.acknowledge((0, 0, [RELEASE])), at.fetch(wait_ms=SHORT_MS)]
        return told

    same(sides, scenario)


RESETS = ["earliest", "latest", "by_duration:PT1H"]


@pytest.mark.parametrize("reset", RESETS)
def test_where_a_group_begins(sides: tuple[Side, Side], reset: str) -> None:
    def scenario(side: Side) -> Plain:
        name = f"reset-{RESETS.index(reset)}"
        at = queue(side, name, 3, share_auto_offset_reset=reset)
        told = [at.fetch(wait_ms=SHORT_MS) if reset != "latest" else None]
        if reset == "latest":  # its start is decided with the first fetch
            eventually(lambda: at.fetch(wait_ms=SHORT_MS)["error_code"] == "none", "a fetch")
        side.append(at.topic, b"new")
        told.append(at.fetch())
        return told

    same(sides, scenario)


def delete_records(side: Side, topic: str, offset: int) -> None:
    key = K.DELETE_RECORDS
    part = make(key, 2, "DeleteRecordsPartition", partition_index=0, offset=offset)
    asked = make(key, 2, "DeleteRecordsTopic", name=topic, partitions=(part,))
    answer = side.message(key, 2, topics=(asked,), timeout_ms=10_000)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none


def test_records_that_were_deleted(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "deleted", 4, 4, 4)
        told = [at.fetch(records=1)]
        delete_records(side, at.topic, 2)
        told += [at.acknowledge((1, 2, [ACCEPT])), at.fetch(records=1), at.acknowledge((3, 7, [ACCEPT]))]
        delete_records(side, at.topic, 10)
        at.fetch(wait_ms=SHORT_MS)
        side.append(at.topic, b"new")
        at.fetch()
        told.append(at.acknowledge((10, 12, [ACCEPT])))
        return told

    same(sides, scenario)


def stored(side: Side, topic: str) -> list[str]:
    """Return the offsets of the records that the log has, whatever a broker returns at once of it."""
    found: list[int] = []
    offset = 0
    while True:
        told = side.message(K.FETCH, 12, **fetch_fields(side, 12, topic, [(0, offset)]))
        offsets = [each for each, _, _ in records_of(told.responses[0].partitions[0].records or b"")]
        if not offsets:
            return _ranges(found)
        found += offsets
        offset = offsets[-1] + 1


def compacted(side: Side, name: str, policy: str = "compact", **configs: str) -> Member:
    """A queue whose topic is being compacted, if that is its policy: offsets 0, 2, and a batch go."""
    topic, group = f"share-{name}", f"of-{name}"
    side.create(
        topic, cleanup_policy=policy, min_cleanable_dirty_ratio="0.01", segment_ms="1", retention_ms="-1"
    )
    for number, keys in enumerate(("abcd", "xy", "acxy", "e")):  # each in a segment of its own
        builder = BatchBuilder()
        for key in keys:
            builder.append(NOW_MS + 10 * number, key.encode(), b"of " + key.encode())
        fields = produce_fields(9, topic, {0: builder.build()})
        (outcome,) = side.message(K.PRODUCE, 9, **fields).responses[0].partition_responses
        assert outcome.error_code is ErrorCode.none, outcome
    configure(side, group, share_auto_offset_reset="earliest", **configs)
    return Member(side, topic, group).join()


def start(side: Side, at: Member) -> int:
    (group,) = offsets(side, at.group, at.topic, 0)["groups"]
    return group["topics"][0]["partitions"][0]["start_offset"]


def test_gaps_of_compaction(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at, by_record = (compacted(side, f"gaps-{number}") for number in range(2))
        held = compacted(side, "gaps-2", policy="delete")  # not before the records are held
        told: dict[str, Plain] = {"held before": held.fetch(records=3)}
        configure(side, held.topic, TOPIC_CONFIGS, cleanup_policy="compact")
        for each in (at, by_record, held):
            eventually(
                lambda each=each: stored(side, each.topic) == ["1-1", "3-3", "6-10"],
                f"{side.name} compacts",
                WAIT_S,
            )
        few: dict[str, Any] = {"records": 2, "wait_ms": SHORT_MS}
        told |= {
            "acquires": at.fetch(**few),
            "says what is not there": at.acknowledge((0, 3, [GAP, ACCEPT, GAP, RELEASE])),
            "gets again what it released": at.fetch(records=1),
            "goes on behind the gap": at.fetch(**few),
            "gets the rest": at.fetch(**few),
            "accepts what is behind the gap": at.acknowledge((6, 9, [ACCEPT]), (10, 10, [ACCEPT])),
            "begins at": start(side, at),
            "accepts what is before it": at.acknowledge((3, 3, [ACCEPT])),
            "begins then at": start(side, at),
            "nothing is left": at.fetch(**few),
            "by single records": [by_record.fetch(share_acquire_mode=1, **few) for _ in range(6)],
            "released what is gone meanwhile": held.acknowledge((0, 3, [RELEASE])),
            "gets it": held.fetch(**few),
            "gap by gap": held.acknowledge((0, 0, [GAP]), (1, 1, [ACCEPT]), (2, 2, [GAP]), (3, 3, [ACCEPT])),
            "and on": held.fetch(**few),
        }
        return told

    same(sides, scenario)


CONTROL = (8, 9, 11)
"""The offsets of the markers. Kafka gives them to members, which say that there is no record; here they are
passed over."""


def data_of(answer: Plain) -> list[tuple[int, int]]:
    """Return the offsets of the data that was acquired, each with its delivery count."""
    return [
        each
        for topic in answer["responses"]
        for part in topic["partitions"]
        for one in part["acquired_records"]
        for each in _single(*one)
        if each[0] not in CONTROL
    ]


def transaction(side: Side, topic: str, name: str, count: int) -> Producer:
    """Begin a transaction with one batch of so many records."""
    producer = Producer(
        {
            "bootstrap.servers": side.bootstrap,
            "transactional.id": f"{name}",
            "linger.ms": 500,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(60) == 0
    return producer


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions(sides: tuple[Side, Side], level: str) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, f"transactions-{level[5]}", 2, share_isolation_level=level)
        committed, aborted, still_open = (
            transaction(side, at.topic, f"{name}-{level}", 2) for name in ("committed", "aborted", "open")
        )
        told = [data_of(at.fetch(wait_ms=SHORT_MS))]
        aborted.abort_transaction(60)
        committed.commit_transaction(60)
        wait_for_end(side, at.topic, 10)
        side.append(at.topic, b"after")
        told.append(sorted(each for _ in range(3) for each in data_of(at.fetch(wait_ms=SHORT_MS))))
        told.append(at.acknowledge((0, 1, [ACCEPT])))
        still_open.abort_transaction(60)
        wait_for_end(side, at.topic, 12)
        told.append(sorted(each for _ in range(3) for each in data_of(at.fetch(wait_ms=SHORT_MS))))
        told.append(at.fetch(epoch=-1))
        side.append(at.topic, b"last")
        other = Member(side, at.topic, at.group, "n")
        found: list[tuple[int, int]] = []

        def has_all() -> bool:
            found.extend(data_of(other.fetch(wait_ms=SHORT_MS)))
            return len(found) >= (4 if level == "read_committed" else 8)

        eventually(has_all, "what was released, and the last record")
        return [*told, sorted(found)]

    same(sides, scenario)


def wait_for_end(side: Side, topic: str, offset: int) -> None:
    """Wait until the topic ends there: markers are written after a transaction's end is acknowledged."""

    def ends() -> bool:
        key = K.LIST_OFFSETS
        asked = make(key, 7, "ListOffsetsPartition", partition_index=0, timestamp=-1, current_leader_epoch=-1)
        topics = (make(key, 7, "ListOffsetsTopic", name=topic, partitions=(asked,)),)
        [found] = side.message(key, 7, replica_id=-1, topics=topics, timeout_ms=10_000).topics
        return found.partitions[0].offset == offset

    eventually(ends, f"{topic} ends at offset {offset}")


def offsets(side: Side, group: str, topic: str | None = None, *indexes: int) -> Plain:
    key = K.DESCRIBE_SHARE_GROUP_OFFSETS
    topics = None
    if topic is not None:
        topics = (
            make(
                key, 1, "DescribeShareGroupOffsetsRequestTopic", topic_name=topic, partitions=tuple(indexes)
            ),
        )
    asked = make(key, 1, "DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=topics)
    return side.ask(key, 1, groups=(asked,))


def alter(side: Side, group: str, topic: str, start: int, index: int = 0) -> Plain:
    key, kind = K.ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsetsRequest"
    part = make(key, 0, f"{kind}Partition", partition_index=index, start_offset=start)
    return side.ask(
        key,
        0,
        group_id=group,
        topics=(make(key, 0, f"{kind}Topic", topic_name=topic, partitions=(part,)),),
    )


def delete_offsets(side: Side, group: str, topic: str) -> Plain:
    key = K.DELETE_SHARE_GROUP_OFFSETS
    asked = make(key, 0, "DeleteShareGroupOffsetsRequestTopic", topic_name=topic)
    return side.ask(key, 0, group_id=group, topics=(asked,))


def test_offsets_of_a_group(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        at = queue(side, "offsets", 4)
        group, topic, other = at.group, at.topic, "share-deleted"
        told: dict[str, Plain] = {
            "before": offsets(side, group),
            "of no such group": offsets(side, "no-such"),
            "of a partition": offsets(side, group, topic, 0),
            "of a topic that does not exist": offsets(side, group, "no-such", 0),
            "altered with a member": alter(side, group, topic, 0),
            "deleted with a member": delete_offsets(side, group, topic),
            "fetches": at.fetch(),
            "its start is not kept yet": offsets(side, group),
            "accepts": at.acknowledge((0, 1, [ACCEPT]), (3, 3, [REJECT])),
            "then": offsets(side, group),
            "ends": at.fetch(epoch=-1),
        }
        at.leave()
        told |= {
            "without members": offsets(side, group),
            "altered": alter(side, group, topic, 1),
            "after that": offsets(side, group),
            "altered to what is not there": alter(side, group, topic, 99),
            "altered below 0": alter(side, group, topic, -5),
            "altered, another partition": alter(side, group, topic, 0, 7),
            "altered, another topic": alter(side, group, "no-such", 0),
            "altered, no such group": alter(side, "no-such", topic, 0),
            "deleted, another topic": delete_offsets(side, group, "no-such"),
            "deleted, no such group": delete_offsets(side, "no-such", topic),
            "deleted, a topic that it never read": delete_offsets(side, group, other),
            "deleted": delete_offsets(side, group, topic),
            "at last": offsets(side, group),
            "deleted again": delete_offsets(side, group, topic),
        }
        return told

    same(sides, scenario)
