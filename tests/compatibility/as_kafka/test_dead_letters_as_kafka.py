"""Dead letters of share groups (KIP-1191) as Apache Kafka writes them: which records have one, in which
partition, and what is in it.

One thing is left out: of a record that is copied, Nilometer copies the headers, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import batches
from nilometer.wire.records import decode_records
from support.brokers.comparison import same
from support.brokers.record_requests import fetch_fields
from support.brokers.two_brokers import Plain, Side
from support.eventually import eventually
from support.groups.group_requests import wait_for_coordinator
from support.share.share_member import (
    ACCEPT,
    REJECT,
    RELEASE,
    ShareMember,
    acquired,
    part_of,
    topic_named,
)
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded

K = ApiKey
GROUP_RESOURCE, TOPIC_RESOURCE = 32, 2
ENABLE = "errors_deadletterqueue_group_enable"
TOPIC_NAME, COPY = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
MEMBER = "q83vASNFZ4mrze8BI0VniQ"  # Apache Kafka takes UUIDs alone
WAIT_S = 60.0


class Queue:
    def __init__(self, side: Side, name: str, **settings: str) -> None:
        self.side, self.jobs, self.group = side, f"jobs-{name}", f"workers-{name}"
        side.create(self.jobs, 3)
        wait_for_coordinator(side, self.group)
        self.configure({"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "2", **settings})
        topic = topic_named(side.bootstrap, self.jobs)
        self.member = ShareMember(topic, self.group, MEMBER, side.bootstrap, partition=1)
        self.member.join()

    def configure(self, settings: Mapping[str, str], kind: int = GROUP_RESOURCE, name: str = "") -> Plain:
        key = K.INCREMENTAL_ALTER_CONFIGS
        configs = tuple(
            make(key, 1, "AlterableConfig", name=one, config_operation=0, value=value)
            for one, value in settings.items()
        )
        resource = make(
            key,
            1,
            "AlterConfigsResource",
            resource_type=kind,
            resource_name=name or self.group,
            configs=configs,
        )
        return self.side.ask(key, 1, resources=(resource,), validate_only=False)

    def set(self, settings: Mapping[str, str], kind: int = GROUP_RESOURCE, name: str = "") -> None:
        """Configure it, and wait until the broker knows: it answers when the controller does."""
        self.configure(settings, kind, name)

        def has_them() -> bool:
            key = K.DESCRIBE_CONFIGS
            resource = make(
                key, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name or self.group
            )
            [answer] = self.side.message(key, 4, resources=(resource,)).results
            return settings.items() <= {one.name: one.value for one in answer.configs}.items()

        eventually(has_them, f"{self.side.name} has {settings} of {name or self.group}", WAIT_S)

    def fetch(self) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []

        def has_any() -> bool:
            found.extend(acquired(self.member.fetch(wait_ms=500)))
            return bool(found)

        eventually(has_any, f"{self.side.name} delivers", WAIT_S)
        return found

    def say(self, first: int, last: int, kind: int) -> None:
        assert part_of(self.member.acknowledge((first, last, kind))).error_code is ErrorCode.none

    def lag(self) -> int:
        key = K.DESCRIBE_SHARE_GROUP_OFFSETS
        asked = make(key, 1, "DescribeShareGroupOffsetsRequestGroup", group_id=self.group, topics=None)
        (told,) = self.side.message(key, 1, groups=(asked,)).groups
        return sum(
            part.lag for topic in told.topics for part in topic.partitions if part.partition_index == 1
        )

    def is_done(self) -> bool:
        return self.lag() == 0


def letters(side: Side, topic: str, partition: int, count: int) -> list[Plain]:
    """Return key, value and headers of the letters in a partition; wait until there are so many."""
    found: list[Plain] = []

    def are_there() -> bool:
        found.clear()
        told = side.message(K.FETCH, 12, **fetch_fields(side, 12, topic, [(partition, 0)]))
        records = told.responses[0].partitions[0].records or b""
        for position, header in batches(records):
            for one in decode_records(records, position, header):
                headers = [(name, text(value)) for name, value in one.headers]
                found.append([text(one.key), text(one.value), headers])
        return len(found) >= count

    eventually(are_there, f"{side.name} has {count} letters in {topic}-{partition}", WAIT_S)
    return found


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def test_what_is_rejected_and_what_no_member_survives(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        side.create("dlq.both", 2, **{ENABLE: "true"})
        queue = Queue(side, "both", **{TOPIC_NAME: "dlq.both"})
        side.append(queue.jobs, b"a", b"b", b"c", b"d", partition=1)
        told: list[Any] = [queue.fetch()]
        queue.say(0, 0, REJECT)
        queue.say(1, 2, RELEASE)
        queue.say(3, 3, ACCEPT)
        told.append(queue.fetch())
        queue.say(1, 1, ACCEPT)
        queue.say(2, 2, RELEASE)
        told.append(letters(side, "dlq.both", 1, 2))
        eventually(queue.is_done, f"{side.name} has archived them", WAIT_S)
        return told

    same(sides, scenario)


def test_a_copy(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        side.create("dlq.copy", 1, **{ENABLE: "true"})
        queue = Queue(side, "copy", **{TOPIC_NAME: "dlq.copy", COPY: "true"})
        side.append(queue.jobs, b"a", b"b", b"c", partition=1)
        queue.fetch()
        queue.say(1, 2, REJECT)
        return letters(side, "dlq.copy", 0, 2)

    same(sides, scenario)


def test_where_no_letter_can_be_written(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        side.create("dlq.closed", 1)
        queue = Queue(side, "closed", **{TOPIC_NAME: "dlq.closed"})
        side.append(queue.jobs, b"a", b"b", b"c", b"d", partition=1)
        queue.fetch()
        queue.say(0, 0, REJECT)  # the topic is closed to groups
        queue.set({TOPIC_NAME: "dlq.missing"})
        queue.say(1, 1, REJECT)
        side.create("open", 1, **{ENABLE: "true"})
        queue.set({TOPIC_NAME: "open"})  # without the prefix
        queue.say(2, 2, REJECT)
        queue.say(3, 3, ACCEPT)
        eventually(queue.is_done, f"{side.name} archives them all the same", WAIT_S)
        queue.set({"errors.deadletterqueue.group.enable": "true"}, TOPIC_RESOURCE, "dlq.closed")
        queue.set({TOPIC_NAME: "dlq.closed"})
        side.append(queue.jobs, b"e", partition=1)
        queue.fetch()
        queue.say(4, 4, REJECT)
        return letters(side, "dlq.closed", 0, 1), letters(side, "open", 0, 0)

    same(sides, scenario)


def test_settings_of_dead_letters(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side) -> Plain:
        queue = Queue(side, "settings")
        key = K.DESCRIBE_CONFIGS
        asked = make(
            key,
            4,
            "DescribeConfigsResource",
            resource_type=GROUP_RESOURCE,
            resource_name=queue.group,
            configuration_keys=(TOPIC_NAME, COPY),
        )
        told = side.message(key, 4, resources=(asked,), include_synonyms=False, include_documentation=False)
        changes = [
            queue.configure({TOPIC_NAME: text})["responses"][0]["error_code"]
            for text in ("", "dlq.a", "other", "__internal", "a b")
        ]
        return changes, sorted(
            (one.name, one.value, int(one.config_source), int(one.config_type))
            for one in told.results[0].configs
        )

    same(sides, scenario)
