"""A log folder that a real Apache Kafka wrote: opened, checked, read, cut and continued by our storage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nilometer.runtime.system_disk import SystemDisk
from nilometer.steps import at_once
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.record_batch import batches, check_batch
from nilometer.wire.records import decode_records
from support.kafka.apache_kafka import ApacheKafka
from support.kafka.clients import JavaClient, Options, Read, Written
from support.kafka.java_driver import JavaDriver
from support.logs.segments import CODECS, StoredBatch, stored_batches

START_MS = 1_760_000_000_000
TOPIC = "theirs"
VALUE = b"year by year the height was cut into the stone; " * 400


@dataclass(frozen=True, slots=True)
class Theirs:
    """What Kafka wrote, and what its own client read of it. `killed` is a copy taken after SIGKILL."""

    stopped: Path
    killed: Path
    read: list[Read]
    committed: list[Read]
    end: int


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    folder = tmp_path_factory.mktemp("kafka")
    kafka = ApacheKafka(folder, overrides={"transaction.state.log.num.partitions": "1"})
    config = {"bootstrap.servers": kafka.bootstrap}
    with JavaDriver() as java:
        client = JavaClient(kafka.bootstrap, java)
        kafka.start()
        settings = {"segment.bytes": "1048576", "retention.ms": "-1"}
        java.run("create_topics", config=config, topics=[{"name": TOPIC, "configs": settings}])
        for number, codec in enumerate(CODECS):
            _write(client, java, number, codec)
        kafka.stop()
        kafka.start()  # so that there are two leader epochs
        for number, codec in enumerate(CODECS):
            _write(client, java, number + len(CODECS), codec)
        read = client.read(TOPIC, 1)
        committed = [
            JavaClient.as_read(each)
            for each in java.run(
                "consume", config={**config, "isolation.level": "read_committed"}, topic=TOPIC
            )
        ]
        end = java.run("list_offsets", config=config, topic=TOPIC, spec="latest")["offset"]
        kafka.kill()
        killed = folder / "killed"
        shutil.copytree(kafka.data_dir / f"{TOPIC}-0", killed)
        kafka.start()
        kafka.stop()
    yield Theirs(kafka.data_dir / f"{TOPIC}-0", killed, read, committed, end)


def _write(client: JavaClient, java: JavaDriver, number: int, codec: str) -> None:
    times = range(START_MS + number * 1000, START_MS + number * 1000 + 40)
    records = [Written(VALUE + b"%d" % time, b"k%d" % time, timestamp=time) for time in times]
    client.write(TOPIC, records, Options(codec=codec))
    client.write(TOPIC, records[:3], Options(codec=codec, idempotent=False))
    for outcome in ("commit", "abort"):
        java.run(
            "produce",
            config={
                "bootstrap.servers": client.bootstrap,
                "transactional.id": "writer",
                "compression.type": codec,
            },
            records=[{"topic": TOPIC, "value": "dHg=", "timestamp": START_MS + number * 1000 + 50}] * 3,
            transaction=outcome,
        )


def _open(folder: Path, into: Path, clean: bool) -> Log:
    copy = into / f"{TOPIC}-0"
    shutil.copytree(folder, copy)
    return Log.open(
        SegmentFiles.on(SystemDisk()),
        str(copy),
        TopicPartition(TOPIC, 0),
        replace(LogConfig(), segment_bytes=1 << 20),
        OpenOptions(clean=clean, wall_ms=START_MS),
    )


def _read_all(log: Log, *, control: bool = False) -> list[Read]:
    """Every record, each batch checked; without control records, unless they are wanted."""
    read: list[Read] = []
    offset = 0
    while offset < log.log_end_offset:
        part = log.read(offset, 1 << 20, log.log_end_offset)
        assert part is not None and len(part.records)
        for position, header in batches(part.records):
            check_batch(part.records, position, header)
            if control or not header.is_control:
                read += [
                    Read(0, each.offset, each.key, each.value, each.timestamp, each.headers)
                    for each in decode_records(part.records, position, header)
                ]
        offset = part.next_offset
    return read


def _as_produced(batch: StoredBatch) -> bytes:
    """The batch as its producer sent it: a leader has written the base offset, which no CRC covers."""
    stored = batch.path.read_bytes()[batch.position : batch.position + batch.size]
    return bytes(8) + stored[8:]


@pytest.mark.long
@pytest.mark.parametrize(("which", "clean"), [("stopped", True), ("stopped", False), ("killed", False)])
def test_every_record_is_there(theirs: Theirs, tmp_path: Path, which: str, clean: bool) -> None:
    log = _open(getattr(theirs, which), tmp_path, clean)
    assert log.damages == ()
    assert (log.log_start_offset, log.log_end_offset) == (0, theirs.end)
    assert len(list((tmp_path / f"{TOPIC}-0").glob("*.log"))) > 1
    assert {batch.codec for batch in stored_batches(tmp_path, TOPIC, 0)} == set(CODECS)
    assert _read_all(log) == theirs.read
    log.close(wall_ms=START_MS)


def test_times_epochs_and_aborted_transactions_are_found(theirs: Theirs, tmp_path: Path) -> None:
    log = _open(theirs.stopped, tmp_path, clean=True)
    everything = _read_all(log, control=True)
    for record in everything[:: len(everything) // 12]:
        found = at_once(log.offset_for_timestamp(record.timestamp))
        assert found is not None
        expected = next(each for each in everything if each.timestamp >= record.timestamp)
        assert (found.offset, found.timestamp) == (expected.offset, expected.timestamp)
    assert at_once(log.offset_for_timestamp(max(each.timestamp for each in everything) + 1)) is None
    words = [int(word) for word in (theirs.stopped / "leader-epoch-checkpoint").read_text().split()[2:]]
    started = [pair for pair in zip(words[::2], words[1::2], strict=True) if pair[1] < theirs.end]
    assert len(started) >= 2
    ends = [start for _, start in started[1:]] + [theirs.end]
    for (epoch, _), end in zip(started, ends, strict=True):
        assert log.end_offset_for_epoch(epoch) == (epoch, end)
    aborted = {
        offset
        for each in log.aborted_transactions(0, theirs.end)
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    committed = [
        record for record in _read_all(log) if record.offset not in aborted
    ]  # nothing else is written between the records and the marker of an aborted transaction
    assert committed == theirs.committed
    assert log.last_stable_offset(theirs.end) == theirs.end
    log.close(wall_ms=START_MS)


def test_producers_go_on_where_they_were(theirs: Theirs, tmp_path: Path) -> None:
    """A duplicate of Kafka's last idempotent batch is answered with its offset, from Kafka's own snapshot."""
    batch = next(
        each
        for each in reversed(stored_batches(theirs.stopped.parent, TOPIC, 0))
        if each.producer_id >= 0 and not each.transactional
    )
    again = _as_produced(batch)
    log = _open(theirs.stopped, tmp_path, clean=True)
    info = log.append_as_leader(again, leader_epoch=log.latest_epoch, wall_ms=START_MS)
    assert (info.first_offset, info.last_offset) == (batch.base_offset, batch.last_offset)
    assert log.log_end_offset == theirs.end
    log.close(wall_ms=START_MS)


def test_it_can_be_cut_and_continued(theirs: Theirs, tmp_path: Path) -> None:
    log = _open(theirs.stopped, tmp_path, clean=True)
    middle = theirs.read[len(theirs.read) // 2].offset
    log.truncate_to(middle, wall_ms=START_MS)
    kept = log.log_end_offset
    assert kept <= middle
    plain = next(each for each in stored_batches(theirs.stopped.parent, TOPIC, 0) if each.producer_id < 0)
    records = _as_produced(plain)
    info = log.append_as_leader(records, leader_epoch=log.latest_epoch + 1, wall_ms=START_MS)
    assert info.first_offset == kept
    log.close(wall_ms=START_MS)
    reopened = Log.open(
        SegmentFiles.on(SystemDisk()),
        str(tmp_path / f"{TOPIC}-0"),
        TopicPartition(TOPIC, 0),
        replace(LogConfig(), segment_bytes=1 << 20),
        OpenOptions(clean=False, wall_ms=START_MS),
    )
    read = _read_all(reopened)
    assert [each for each in read if each.offset < kept] == [
        each for each in theirs.read if each.offset < kept
    ]
    assert read[-plain.records_count].offset == kept
    reopened.close(wall_ms=START_MS)
