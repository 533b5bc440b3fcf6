"""Options by name and value: what is accepted, and what is said of the rest."""

from __future__ import annotations

import pytest

from nilometer.pipeline.errors import OptionError
from nilometer.pipeline.source.source_options import ALLOWED, EARLIEST, LATEST, AtTime, parse_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "t"}


def test_defaults_are_those_of_sparks_kafka_source():
    batch, stream = parse_options(BASE, streaming=False), parse_options(BASE, streaming=True)
    assert (batch.starting, batch.ending, stream.starting) == (EARLIEST, LATEST, LATEST)
    assert batch.fail_on_data_loss
    assert not batch.include_headers


def test_names_are_taken_in_any_case():
    options = parse_options(
        {**BASE, "STARTINGOFFSETS": "Earliest", "failondataloss": "FALSE"}, streaming=True
    )
    assert options.starting == EARLIEST
    assert not options.fail_on_data_loss


def test_topics_partitions_and_patterns():
    def selection(**given):
        return parse_options({"kafka.bootstrap.servers": "h:1", **given}, streaming=True).selection

    assert selection(subscribe="b, a,b").topics == ("a", "b")
    assert selection(assign='{"t": [3, 1]}').assigned == {"t": (1, 3)}
    pattern = selection(subscribePattern="log-.*")
    assert pattern.matches("log-1")
    assert not pattern.matches("my-log-1")


def test_offsets_by_partition():
    options = parse_options(
        {**BASE, "startingOffsets": '{"t": {"0": 7, "1": -2}}', "endingOffsets": '{"t": {"0": 9, "1": -1}}'},
        streaming=False,
    )
    assert options.starting == {"t": {0: 7, 1: EARLIEST}}
    assert options.ending == {"t": {0: 9, 1: LATEST}}


def test_times_go_before_offsets_and_one_for_all_before_those_by_partition():
    given = {**BASE, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 7}}'}
    by_partition = parse_options(given, streaming=True).starting
    assert by_partition == AtTime("startingOffsetsByTimestamp", {"t": {0: 7}}, or_latest=False)
    given |= {"startingTimestamp": "9", "startingOffsetsByTimestampStrategy": "latest"}
    assert parse_options(given, streaming=True).starting == AtTime("startingTimestamp", 9, or_latest=True)
    ending = parse_options({**BASE, "endingTimestamp": "9"}, streaming=False).ending
    assert ending == AtTime("endingTimestamp", 9, or_latest=True)


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("3s", 3_000), ("15m", 900_000), ("2 min", 120_000), ("1h", 3_600_000)]
)
def test_the_delay_of_a_trigger_is_a_number_and_a_unit(text, ms):
    options = parse_options({**BASE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}, streaming=True)
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (5, ms)


def test_names_of_sparks_source_are_settings_of_the_client_here():
    given = {**BASE, "groupIdPrefix": "billing", "kafkaConsumer.pollTimeoutMs": "9000"}
    consumer = dict(parse_options(given, streaming=True).consumer)
    assert (consumer["client.id"], consumer["default.api.timeout.ms"]) == ("billing", "9000")


def test_a_group_that_sparks_source_reads_for_is_the_name_that_brokers_see():
    given = {**BASE, "kafka.group.id": "billing", "groupIdPrefix": "no-effect-as-in-spark"}
    consumer = dict(parse_options(given, streaming=True).consumer)
    assert consumer["client.id"] == "billing"
    assert "group.id" not in consumer, "no group is joined, and no right for one is needed"


@pytest.mark.parametrize(("pause", "longest"), [("10", "1000"), ("30000", "30000")])
def test_sparks_retries_for_offsets_are_those_of_the_client(pause, longest):
    given = {**BASE, "fetchOffset.numRetries": "0", "fetchOffset.retryIntervalMs": pause}
    consumer = dict(parse_options(given, streaming=False).consumer)
    assert (consumer["retry.backoff.ms"], consumer["retry.backoff.max.ms"]) == (pause, longest)


def test_an_unknown_option_is_refused_with_the_list_of_those_allowed():
    with pytest.raises(OptionError, match="startingOfsets") as error:
        parse_options({**BASE, "startingOfsets": "earliest"}, streaming=True)
    assert all(name in str(error.value) for name in ALLOWED)


@pytest.mark.parametrize(
    ("given", "streaming", "names"),
    [
        ({"subscribe": "t"}, True, "kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "h:1"}, True, "exactly one of"),
        ({**BASE, "assign": '{"t": [0]}'}, True, "exactly one of"),
        ({"kafka.bootstrap.servers": "h:1", "subscribe": " , "}, True, "subscribe"),
        ({"kafka.bootstrap.servers": "h:1", "assign": '{"t": ["a"]}'}, True, "assign"),
        ({"kafka.bootstrap.servers": "h:1", "subscribePattern": "("}, True, "subscribePattern"),
        ({"kafka.bootstrap.servers": "nowhere", "subscribe": "t"}, True, "kafka.bootstrap.servers"),
        ({**BASE, "startingOffsets": "latest"}, False, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"t": {"0": -1}}'}, False, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"t": {"0": -3}}'}, True, "startingOffsets"),
        ({**BASE, "startingOffsets": "[]"}, True, "startingOffsets"),
        ({**BASE, "startingOffsets": "newest"}, True, "startingOffsets"),
        ({**BASE, "endingOffsets": "earliest"}, False, "endingOffsets"),
        ({**BASE, "endingOffsets": "latest"}, True, "endingOffsets.*stream"),
        ({**BASE, "maxOffsetsPerTrigger": "5"}, False, "maxOffsetsPerTrigger.*batch"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, True, "maxOffsetsPerTrigger"),
        ({**BASE, "minPartitions": "many"}, True, "minPartitions"),
        ({**BASE, "failOnDataLoss": "maybe"}, True, "failOnDataLoss"),
        ({**BASE, "kafka.auto.offset.reset": "earliest"}, True, "startingOffsets"),
        ({**BASE, "kafka.isolation.level": "read_some"}, True, "isolation.level.*read_committed"),
        ({**BASE, "fetchOffset.numRetries": "-1"}, True, "fetchOffset.numRetries.*0 or more"),
        ({**BASE, "fetchOffset.retryIntervalMs": "1s"}, True, "fetchOffset.retryIntervalMs.*0 or more"),
        ({**BASE, "startingTimestamp": "yesterday"}, True, "startingTimestamp.*milliseconds"),
        ({**BASE, "startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, True, "startingOffsetsByTimestamp"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "first"}, True, "must be error or latest"),
        ({**BASE, "endingTimestamp": "5"}, True, "endingTimestamp.*stream"),
        ({**BASE, "endingOffsetsByTimestamp": "[]"}, False, "endingOffsetsByTimestamp"),
        ({**BASE, "minOffsetsPerTrigger": "5"}, False, "minOffsetsPerTrigger.*batch"),
        ({**BASE, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, True, "minOffsetsPerTrigger"),
        ({**BASE, "maxTriggerDelay": "soon"}, True, "maxTriggerDelay.*15m"),
        ({**BASE, "maxRecordsPerPartition": "0"}, True, "maxRecordsPerPartition"),
        ({**BASE, "kafka.fetch.min.bites": "1"}, True, "fetch.min.bites"),
        ({**BASE, "kafka.fetch.min.bytes": "some"}, True, "fetch.min.bytes"),
    ],
)
def test_what_is_refused_is_named(given, streaming, names):
    with pytest.raises(OptionError, match=names):
        parse_options(given, streaming=streaming)
