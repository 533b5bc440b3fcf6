"""The lines of the controller's decisions, from the entries that it appended."""

from __future__ import annotations

import logging
import uuid

import pytest

from nilometer.broker.control.decision_log import ENTRIES_MAX, Cause, DecisionLog
from nilometer.cluster.entries import Controllership, Entry, encode_entry, sign
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    ConfigChanged,
    ConfigResourceType,
    ControllerElected,
    Election,
    PartitionChanged,
    PartitionCreated,
    Record,
    TopicCreated,
)
from nilometer.identifiers import (
    BrokerId,
    ControllerEpoch,
    EntryNumber,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    uuid_to_text,
)

TERM = Controllership(BrokerId(1), Incarnation("1"), ControllerEpoch(1))
TOPIC = uuid_to_text(uuid.UUID(int=7))
CAUSE = "a test wants it"


class Written:
    """A metadata log that writes the lines of each entry."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.log = DecisionLog()
        self.append(
            ControllerElected(controller_id=TERM[0], incarnation=TERM[1], controller_epoch=TERM[2]),
        )

    def append(self, *records: Record, cause: Cause | None = None, times_expected: int = 1) -> None:
        entry = sign(records, TERM)
        for _ in range(times_expected):
            self.log.expect(encode_entry(entry), entry, cause or Cause(CAUSE))
        self.fold(entry)

    def fold(self, entry: Entry) -> None:
        delta = self.image.apply_entry(EntryNumber(self.image.number + 1), entry)
        self.log.on_folded(encode_entry(entry), delta, self.image)


def create_topic(written: Written, partitions: int) -> None:
    replicas = (BrokerId(1), BrokerId(2), BrokerId(3))
    written.append(
        TopicCreated(name="clicks", topic_id=TOPIC),
        *(PartitionCreated(topic_id=TOPIC, partition=n, replicas=replicas) for n in range(partitions)),
    )


def elected(partition: int, election: Election = Election.IN_SYNC) -> PartitionChanged:
    return PartitionChanged(
        topic_id=TOPIC,
        partition=partition,
        partition_epoch=PartitionEpoch(1),
        leader=BrokerId(2),
        leader_epoch=LeaderEpoch(1),
        isr=(BrokerId(2), BrokerId(3)),
        election=election,
    )


@pytest.fixture
def written(caplog: pytest.LogCaptureFixture) -> Written:
    caplog.set_level(logging.INFO, "nilometer.broker.controller")
    return Written()


def test_a_new_topic_has_one_line_and_its_partitions_none(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    create_topic(written, 3)
    assert caplog.messages == [f"Topic clicks is created with 3 partitions, 3 replicas each, because {CAUSE}"]


def test_an_election_names_both_leaders_the_rule_and_the_isr(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(written, 1)
    caplog.clear()
    written.append(elected(0))
    assert caplog.messages == [
        "clicks-0: broker 2 is elected leader in epoch 1 (before it was 1, in sync), "
        f"the ISR shrinks from 1,2,3 to 2,3, because {CAUSE}"
    ]


def test_an_unclean_election_is_a_warning(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    create_topic(written, 1)
    caplog.clear()
    written.append(elected(0, Election.UNCLEAN))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "records may be lost" in record.getMessage()


def test_ten_thousand_elections_have_one_line(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    create_topic(written, 10_000)
    caplog.clear()
    written.append(*(elected(number) for number in range(10_000)))
    assert caplog.messages == [
        f"10000 leaders are elected: clicks (10000); each is logged at DEBUG, because {CAUSE}"
    ]


def test_an_isr_that_its_leader_requested_has_no_second_line(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(written, 1)
    caplog.clear()
    change = PartitionChanged(
        topic_id=TOPIC, partition=0, partition_epoch=PartitionEpoch(1), isr=(BrokerId(1), BrokerId(2))
    )
    written.append(change, cause=Cause("its leader requested it", is_isr_request=True))
    assert caplog.messages == []


def test_a_sensitive_value_is_hidden(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    for key in ("sasl.jaas.config", "listener.name.x.plain.sasl.jaas.config", "retention.ms"):
        written.append(
            ConfigChanged(resource_type=ConfigResourceType.BROKER, resource_name="1", key=key, value="7531")
        )
    assert ["7531" in message for message in caplog.messages] == [False, False, True]


def test_only_what_this_broker_appended_has_lines(written: Written, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    written.fold(sign([TopicCreated(name="clicks", topic_id=TOPIC)], TERM))
    assert caplog.messages == []


def test_an_entry_that_was_appended_again_has_one_line(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    written.append(TopicCreated(name="clicks", topic_id=TOPIC), times_expected=ENTRIES_MAX + 1)
    assert len(caplog.messages) == 1
