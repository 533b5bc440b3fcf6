"""``nilometer archive`` beside a running broker, into a folder and into an S3-compatible server.

What is read of archive and log is compared with the records that were sent.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from nilometer.cli.main import run
from nilometer.pipeline.archive.stored import open_stored
from support.brokers.nilometer_broker import NilometerBroker
from support.command_line import Outcome
from support.eventually import eventually
from support.pipeline.archives import rows_of
from support.pipeline.checkpoints import wait_for_checkpoint
from support.pipeline.filled_topics import Sent, Topics
from support.s3_server import SECRET, s3_server

QUICK = {
    "replica.high.watermark.checkpoint.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.retention.check.interval.ms": "200",
}
SMALL_SEGMENTS = {"internal.segment.bytes": "4096", "file.delete.delay.ms": "100"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with NilometerBroker(tmp_path_factory.mktemp("archived") / "data", QUICK) as running:
        yield running


@pytest.fixture(scope="module")
def storage():
    with s3_server() as running:
        yield running


@pytest.fixture(params=["folder", "s3"])
def target(request, tmp_path, storage):
    return str(tmp_path / "archive") if request.param == "folder" else storage.url(tmp_path.name)


@pytest.fixture
def archive(capsys):
    """The command `nilometer archive`, in this process."""

    def command(*arguments):
        capsys.readouterr()
        code = run(["archive", *arguments])
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return command


class Filled:
    """A topic and the records that were sent to its two partitions."""

    def __init__(self, broker):
        self._broker = broker
        self._topics = Topics(broker.bootstrap)
        self.name = self._topics.create(2, config=SMALL_SEGMENTS)
        self.sent = {0: [], 1: []}
        self._numbers = itertools.count()

    def send(self, count):
        """Send records in batches of about a kilobyte, and wait until they are below the checkpoint."""
        for _ in range(count // 40):
            records = [
                Sent(number % 2, b"k%d" % number, b"value %d " % number * 4, 1_700_000_000_000 + number)
                for number in itertools.islice(self._numbers, 40)
            ]
            for one in records:
                self.sent[one.partition].append((one.key, one.value))
            self._topics.send(self.name, records)
        wait_for_checkpoint(
            self._broker.data_dir, self.name, {part: len(rows) for part, rows in self.sent.items()}
        )

    def retain(self, size):
        """Have retention delete the oldest segments above this size, and wait until it has."""
        change = ConfigResource(
            ResourceType.TOPIC,
            self.name,
            incremental_configs=[
                ConfigEntry("retention.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
            ],
        )
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        for future in admin.incremental_alter_configs([change]).values():
            future.result(30)
        eventually(lambda: all(self.bases(part)[0] > 0 for part in (0, 1)), "retention has deleted", 60)

    def bases(self, partition):
        folder = self._broker.data_dir / f"{self.name}-{partition}"
        return sorted(int(name[:20]) for name in os.listdir(folder) if name.endswith(".log"))

    def rows(self, target, **given):
        """What is read of archive and log, by partition: key and value in the order of offsets."""
        found = rows_of(path=self._broker.data_dir, archive=target, subscribe=self.name, **given)
        parts = {part: [row for row in found if row["partition"] == part] for part in (0, 1)}
        for rows in parts.values():
            assert [row["offset"] for row in rows] == list(range(len(rows)))
        return {part: [(row["key"], row["value"]) for row in rows] for part, rows in parts.items()}


@pytest.fixture
def topic(broker):
    return Filled(broker)


def test_what_retention_deletes_is_read_from_the_archive(broker, topic, target, archive):
    places = ("--topic", topic.name, "--log-dirs", str(broker.data_dir), "--to", target)
    topic.send(800)
    sealed = {part: topic.bases(part)[1:] for part in (0, 1)}
    assert all(len(bases) > 2 for bases in sealed.values())
    first = archive(*places, "--verify", "--json")
    assert (first.code, first.err) == (0, "")
    assert [
        (one["start_offset"], one["end_offset"], one["segments_copied"], one["gaps"])
        for one in first.document["partitions"]
    ] == [(0, sealed[part][-1], len(sealed[part]), []) for part in (0, 1)]
    assert first.document["checked"]["problems"] == []
    assert first.document["checked"]["segments"] == sum(map(len, sealed.values()))
    again = archive(*places, "--json").document["partitions"]
    assert [one["segments_copied"] for one in again] == [0, 0]

    # What is sent now is less than what retention keeps: it only deletes segments that are in the archive.
    topic.retain(12_000)
    assert topic.rows(target) == topic.sent
    topic.send(240)
    assert archive(*places).code == 0
    assert topic.rows(target, bytesPerPartition=3000) == topic.sent
    listed = archive("list", "--from", target, "--topic", topic.name, "--json").document["partitions"]
    assert [(one["topic"], one["partition"], one["start_offset"], one["gaps"]) for one in listed] == [
        (topic.name, part, 0, []) for part in (0, 1)
    ]
    assert all(one["end_offset"] > sealed[one["partition"]][-1] for one in listed)
    assert f"{topic.name}-0" in archive("list", "--from", target).out


def test_a_run_that_is_killed_is_continued_also_by_two_at_once(broker, topic, tmp_path, archive):
    target = tmp_path / "archive"
    topic.send(1600)
    command = [sys.executable, "-m", "nilometer.cli", "archive", "--topic", topic.name]
    command += ["--log-dirs", str(broker.data_dir), "--to", str(target), "--json"]

    def start():
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with start() as killed:
        eventually(lambda: list(target.rglob("manifest-*")) or killed.poll() is not None, "a manifest", 120)
        killed.send_signal(signal.SIGKILL)
    with start() as one, start() as other:
        for process in (one, other):
            _, errors = process.communicate(timeout=300)
            assert (process.returncode, errors) == (0, "")
    listed = archive("list", "--from", str(target), "--verify", "--json")
    assert (listed.code, listed.document["checked"]["problems"]) == (0, [])
    assert [one["end_offset"] for one in listed.document["partitions"]] == [
        topic.bases(part)[-1] for part in (0, 1)
    ]
    topic.retain(20_000)
    assert topic.rows(target) == topic.sent


def test_a_topic_comes_back_from_the_archive_in_another_cluster(broker, topic, target, archive, tmp_path):
    topic.send(800)
    assert archive("--topic", topic.name, "--log-dirs", str(broker.data_dir), "--to", target).code == 0
    ends = {part: topic.bases(part)[-1] for part in (0, 1)}
    with NilometerBroker(tmp_path / "other") as other:
        admin = AdminClient({"bootstrap.servers": other.bootstrap})
        created = NewTopic("restored", 2, 1, config={"retention.ms": "-1"})
        admin.create_topics([created])["restored"].result(30)
        command = ["restore", "--from", target, "--topic", topic.name, "--as", "restored"]
        command += ["--log-dirs", str(other.data_dir), "--json"]
        running = archive(*command)
        assert (running.code, running.out) == (1, "")
        assert "runs, or it did not stop in order" in running.err
        other.stop()
        restored = archive(*command)
        assert (restored.code, restored.err) == (0, "")
        assert {
            one["partition"]: (one["start"], one["end"], one["records"])
            for one in restored.document["partitions"]
        } == {part: (0, end, end) for part, end in ends.items()}
        other.start()
        for part, end in ends.items():
            consumer = Consumer({"bootstrap.servers": other.bootstrap, "group.id": "g"})
            consumer.assign([TopicPartition("restored", part, 0)])
            found = []
            while len(found) < end:
                found += consumer.consume(end - len(found), 30)
            consumer.close()
            assert [one.offset() for one in found] == list(range(end))
            assert [(one.key(), one.value()) for one in found] == topic.sent[part][:end]
        producer = Producer({"bootstrap.servers": other.bootstrap, "enable.idempotence": True})
        offsets = []
        producer.produce("restored", b"new", partition=0, on_delivery=lambda _, sent: offsets.append(sent))
        producer.flush(30)
        assert [(one.error(), one.offset()) for one in offsets] == [(None, ends[0])]


def test_left_files_are_listed_and_removed_only_if_told_to(broker, topic, target, archive):
    topic.send(200)
    assert archive("--topic", topic.name, "--log-dirs", str(broker.data_dir), "--to", target).code == 0
    listed = archive("list", "--from", target, "--json").document["partitions"][0]
    orphan = f"{listed['cluster_id']}/{listed['topic_id']}/0/{7:020d}-0123abcd4567cdef.log"
    asyncio.run(open_stored(target).put(orphan, b"x" * 1000))
    clean = ("clean", "--from", target)
    assert archive(*clean).out == "0 files with 0 bytes are to be removed.\n", "it is too new"
    for more, done in (([], "can be removed, with --remove"), (["--remove"], "were removed")):
        outcome = archive(*clean, "--older-than", "0", *more)
        assert (outcome.code, outcome.err) == (0, "")
        assert f"{orphan}  1,000 bytes, 20" in outcome.out
        assert f"1 files with 1,000 bytes {done}." in outcome.out
    left = archive(*clean, "--older-than", "0", "--json")
    assert left.document == {"files": [], "bytes": 0, "removed": False}
    assert archive("list", "--from", target, "--verify").code == 0


def test_what_is_wrong_is_said_without_secrets(broker, topic, storage, archive):
    topic.send(200)
    place = ("--log-dirs", str(broker.data_dir))
    cases = [
        (("--topic", "nosuch", *place, "--to", storage.url("x")), 1, "topic nosuch has no replica in"),
        (
            ("--topic", topic.name, *place, "--to", storage.url("x", bucket="no-bucket")),
            1,
            "there is no such bucket",
        ),
        (("--topic", topic.name, *place, "--to", "s4://x/y"), 1, "s4://x/y: the URI of a store begins with"),
        (("--topic", topic.name), 2, "give --topic and --to"),
        (
            ("list", "--from", "/nowhere/at/all"),
            1,
            "/nowhere/at/all/: no such folder: create it, or mount it",
        ),
        (
            ("clean", "--from", "/nowhere/at/all"),
            1,
            "/nowhere/at/all/: no such folder: create it, or mount it",
        ),
    ]
    with storage.checking_credentials():
        denied = archive("--topic", topic.name, *place, "--to", storage.url("x"))
    assert (denied.code, SECRET in denied.err) == (1, False)
    assert "s3://archives/x/" in denied.err
    for arguments, code, says in cases:
        outcome = archive(*arguments)
        assert (outcome.code, outcome.out, SECRET in outcome.err) == (code, "", False), arguments
        assert says in outcome.err
        assert "Traceback" not in outcome.err
