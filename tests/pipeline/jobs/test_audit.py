"""``nilometer audit`` on Spark: no false alarms beside brokers at work, each planted damage by its place."""

from __future__ import annotations

import json
import shutil
import struct
import threading

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from nilometer.cli.pipelines import folder_commands as command
from nilometer.pipeline.audit.audit import audit, to_html, to_json, write_report
from nilometer.pipeline.audit.segment_check import Kind
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.spark import spark_session
from nilometer.wire.record_batch import pack_batch, read_header
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.pipeline.checkpoints import wait_for_checkpoint
from support.pipeline.filled_topics import Sent, Topics

pytestmark = pytest.mark.spark

QUICK = {
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
SMALL_SEGMENTS = {"segment.ms": "50000", "index.interval.bytes": "256", "retention.ms": "-1"}


def fill(topics, topic, rounds=6, start=0):
    for number in range(start, start + rounds):
        records = [
            Sent(n % 2, b"k%d" % n, b"v%d" % n * 9, 1_700_000_000_000 + number * 30_000 + n)
            for n in range(60)
        ]
        topics.send(topic, records, ("none", "lz4")[number % 2])


def wrong(spark, places, **more):
    return audit(spark, [str(place) for place in places], **more).wrong


@pytest.fixture(scope="module")
def data_dirs(tmp_path_factory):
    """The folders of three brokers that were stopped after some work: two topics, commits of two groups."""
    folder = tmp_path_factory.mktemp("audit")
    with NilometerCluster(folder, 3, QUICK) as cluster:
        topics = Topics(cluster.bootstrap)
        for name in ("events", "others"):
            cluster.create_topic(name, 2, 3, SMALL_SEGMENTS)
            fill(topics, name)
        leader = cluster.wait_leader("events", 0)
        cluster.stop(leader)
        cluster.wait_leader("events", 0, other_than=leader)
        fill(topics, "events", 3, start=6)  # of another epoch
        cluster.start(leader)
        cluster.wait_full_isr("events")
        commit(cluster.bootstrap, "readers", {0: 100, 1: 270})
        commit(cluster.bootstrap, "idle", {0: 1})
        # Followers learn the last high watermark one fetch later.
        for broker in cluster.brokers.values():
            wait_for_checkpoint(broker.data_dir, "events", {0: 270, 1: 270})
        for broker_id in cluster.brokers:
            cluster.stop(broker_id)
        return [broker.data_dir for broker in cluster.brokers.values()]


def commit(bootstrap, group, offsets, topic="events"):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


@pytest.fixture
def copies(data_dirs, tmp_path):
    """Copies of the three folders, to be damaged."""
    found = []
    for place in data_dirs:
        found.append(tmp_path / place.name)
        shutil.copytree(place, found[-1])
    return found


def segments_of(place, part="events-0"):
    return sorted((place / part).glob("*.log"))


# --- nothing is wrong


def test_a_good_cluster_and_what_is_told_of_it(spark, data_dirs, tmp_path):
    result = audit(spark, [str(place) for place in data_dirs])
    assert result.wrong == []
    of_events = [one for one in result.replicas if one.replica.part.topic == "events"]
    assert len(of_events) == 6
    assert {(one.end_offset, one.high_watermark) for one in of_events} == {(270, 270)}
    assert sum(one.records for one in of_events) == 3 * 540
    assert all(one.segments > 1 for one in of_events)
    assert {(one.group, one.part.partition, one.offset) for one in result.committed} == {
        ("readers", 0, 100),
        ("readers", 1, 270),
        ("idle", 0, 1),
    }
    write_report(result, tmp_path / "report.json")
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["wrong"] == 0
    row = next(one for one in told["partitions"] if one["partition"] == "events-0")
    assert row["high watermark"] == "270"
    write_report(result, tmp_path / "report.html")
    assert "no errors found" in (tmp_path / "report.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize("deaths", [1, pytest.param(9, marks=pytest.mark.soak)])
def test_a_cluster_at_work_whose_brokers_die_and_come_back(spark, tmp_path, deaths):
    """Segments roll and are deleted, logs are cut and fetched again while they are read."""
    overrides = {**QUICK, "log.retention.check.interval.ms": "200"}
    with NilometerCluster(tmp_path, 3, overrides) as cluster:
        moving = {"segment.ms": "100", "retention.bytes": "40000", "index.interval.bytes": "256"}
        cluster.create_topic("busy", 3, 3, {**moving, "file.delete.delay.ms": "0"})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 1, "log_level": 0})
        done = threading.Event()

        def produce():
            number = 0
            while not done.is_set():
                producer.produce("busy", b"record %d" % number * 5, partition=number % 3)
                producer.poll(0.001)
                number += 1

        load = threading.Thread(target=produce)
        load.start()
        try:
            places = [broker.data_dir for broker in cluster.brokers.values()]

            def start():
                # A listing may fall between the removal of the last segment and the next one's coming.
                return min((int(one.stem) for one in segments_of(places[0], "busy-0")), default=0)

            eventually(lambda: start() > 0, "retention has deleted segments", 60)
            for broker_id in [number % 3 + 1 for number in range(deaths)]:
                before = start()
                cluster.kill(broker_id)
                during = wrong(spark, places)
                cluster.start(broker_id)
                assert during == []
                eventually(lambda before=before: start() > before, "the log has moved on", 60)
            assert wrong(spark, places) == []
        finally:
            done.set()
            load.join()
            producer.purge()


# --- each damage by name and place


def test_each_planted_damage_is_found_in_its_place(spark, copies):
    first, second, third = copies
    flipped = segments_of(first)[1]
    content = bytearray(flipped.read_bytes())
    content[90] ^= 2
    flipped.write_bytes(content)

    missing = segments_of(second, "events-1")[2]
    missing.unlink()

    entry_of = next(one for one in sorted((third / "others-0").glob("*.index")) if one.stat().st_size >= 8)
    entries = bytearray(entry_of.read_bytes())
    struct.pack_into(">i", entries, 4, struct.unpack_from(">i", entries, 4)[0] + 1)
    entry_of.write_bytes(entries)

    other = segments_of(third, "others-1")[1]
    changed_at = rewrite_second_batch(other)

    found = wrong(spark, copies)
    by_kind = {one.kind: one for one in found}
    assert set(by_kind) == {Kind.CORRUPT_BATCH, Kind.MISSING_RECORDS, Kind.INDEX, Kind.DIVERGENCE}, found
    assert (by_kind[Kind.CORRUPT_BATCH].path, by_kind[Kind.CORRUPT_BATCH].position) == (str(flipped), 0)
    assert by_kind[Kind.MISSING_RECORDS].path == str(missing)
    assert by_kind[Kind.MISSING_RECORDS].offset == int(missing.stem)
    assert (by_kind[Kind.INDEX].path, by_kind[Kind.INDEX].position) == (str(entry_of), 0)
    divergences = {(one.path, one.offset): one for one in found if one.kind is Kind.DIVERGENCE}
    assert (str(other.parent), changed_at) in divergences
    assert divergences[str(other.parent), changed_at].replica == "broker 3"
    assert {path for path, _ in divergences} <= {str(other.parent), str(missing.parent)}


def rewrite_second_batch(path):
    """Change a record and compute the checksum again: the replica is sound in itself; the batch's offset."""
    content = path.read_bytes()
    at = read_header(content).size
    header = read_header(content, at)
    records = bytearray(content[at + 61 : at + header.size])
    records[-2] ^= 1
    path.write_bytes(content[:at] + pack_batch(header, bytes(records)) + content[at + header.size :])
    return header.base_offset


def test_an_offset_committed_beyond_the_end_is_found_and_the_exit_code_says_so(spark, tmp_path, monkeypatch):
    with NilometerCluster(tmp_path / "run", 1, {**QUICK, "default.replication.factor": "1"}) as cluster:
        topics = Topics(cluster.bootstrap)
        cluster.create_topic("events", 2, 1)
        fill(topics, "events", 1)
        commit(cluster.bootstrap, "strange", {0: 31})
        cluster.stop(1)
        place = cluster.brokers[1].data_dir
    report = tmp_path / "report.json"
    monkeypatch.setattr(spark_session, "build_session", lambda *_, **__: _Lent(spark))
    done = CliRunner().invoke(command.audit, ["--log-dirs", str(place), "--report", str(report)])
    assert done.exit_code == 1, done.output
    assert "group strange committed offset 31" in " ".join(done.output.split())
    (found,) = [
        one for one in json.loads(report.read_text())["findings"] if one["kind"] == "committed offset"
    ]
    assert found["topic"] == "events"
    assert found["path"].startswith(str(place / "__consumer_offsets-"))
    assert CliRunner().invoke(command.audit, ["--log-dirs", str(place / "events-1")]).exit_code == 0


class _Lent:
    """The tests' own session, which goes on when the command has done with it."""

    def __init__(self, session):
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def stop(self):
        pass


def test_a_topic_that_is_not_there_is_said(spark, data_dirs):
    with pytest.raises(PipelineError, match="topic nowhere has no replica in"):
        audit(spark, [str(place) for place in data_dirs], topics=["nowhere"])


def test_what_is_found_in_one_topic_is_written_down(spark, copies):
    rewrite_second_batch(segments_of(copies[0], "others-1")[1])
    path = segments_of(copies[1])[0]
    path.write_bytes(path.read_bytes()[:-3])
    result = audit(spark, [str(place) for place in copies], topics=["events"])
    assert str(path) in to_html(result)
    assert {one.topic for one in result.wrong} == {"events"}
    both = audit(spark, [str(place) for place in copies], topics=["others", "events"])
    assert {one.topic for one in both.wrong} == {"events", "others"}
    told = json.loads(to_json(result))
    assert told["wrong"] == len(result.wrong) > 0
    assert str(path) in {one["path"] for one in told["findings"]}
