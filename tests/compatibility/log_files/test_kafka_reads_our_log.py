"""Apache Kafka's own tools and broker take a log that Nilometer's storage wrote for one of theirs."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage import checkpoints
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.compression import Codec
from nilometer.wire.records import BatchBuilder, ControlType, EndTxnMarker, build_end_txn_marker
from support.kafka.apache_kafka import ApacheKafka, run_tool
from support.kafka.clients import JavaClient
from support.kafka.java_driver import JavaDriver

START_MS = 1_760_000_000_000
VALUE = b"the stone gauge of the river; " * 12
RECORDS_PER_BATCH = 10
ROUNDS = 40
COMPLAINTS = ("ismatch", "Non-consecutive", "out of order", "orrupt", "invalid", "exception")


def _batch(codec: Codec, number: int, **producer: int | bool) -> bytes:
    builder = BatchBuilder(codec)
    for index in range(RECORDS_PER_BATCH):
        timestamp = START_MS + number * 100 + index
        builder.append(timestamp, b"k%d" % index, VALUE + b"%d" % number, (("h", b"1"),))
    return builder.build(**producer)


def _write(folder: Path) -> tuple[int, int]:
    """Codecs, segments, epochs, producers, commits, aborts: the end, and the count of committed records."""
    config = LogConfig(segment_bytes=64 << 10, index_interval_bytes=512, retention_ms=-1)
    files = SegmentFiles.on(SystemDisk())
    checkpoints.write_partition_metadata(files.disk, str(folder), uuid.UUID(int=7))
    log = Log.open(
        files, str(folder), TopicPartition("ours", 0), config, OpenOptions(clean=True, wall_ms=START_MS)
    )
    visible = 0
    for number in range(ROUNDS):
        epoch = number // 10
        if number % 10 == 0:
            log.epochs.begin(epoch, log.log_end_offset)
        sequence = number * RECORDS_PER_BATCH
        plain = _batch(Codec(number % 5), number)
        numbered = _batch(Codec.NONE, number, producer_id=4000, producer_epoch=1, base_sequence=sequence)
        in_doubt = _batch(
            Codec.ZSTD, number, producer_id=5000, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        for records in (plain, numbered, in_doubt):
            log.append_as_leader(records, leader_epoch=epoch, wall_ms=START_MS + number * 100)
        committed = number % 3 != 0
        kind = ControlType.COMMIT if committed else ControlType.ABORT
        marker = build_end_txn_marker(
            EndTxnMarker(kind, 0, START_MS + number * 100 + 50), producer_id=5000, producer_epoch=0
        )
        log.append_as_leader(
            marker, leader_epoch=epoch, wall_ms=START_MS + number * 100, origin=AppendOrigin.COORDINATOR
        )
        visible += RECORDS_PER_BATCH * (3 if committed else 2)
    end = log.log_end_offset
    log.close(wall_ms=START_MS + ROUNDS * 100)
    return end, visible


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    folder = tmp_path_factory.mktemp("ours") / "ours-0"
    end, visible = _write(folder)
    assert len(list(folder.glob("*.log"))) > 3
    return folder, end, visible


def _dump(paths: list[Path], *options: str) -> str:
    return run_tool(
        "org.apache.kafka.tools.DumpLogSegments", *options, "--files", ",".join(str(path) for path in paths)
    )


def test_dump_log_segments_reads_every_record_and_finds_nothing_wrong(ours: tuple[Path, int, int]) -> None:
    folder, end, _ = ours
    printed = _dump(sorted(folder.glob("*.log")), "--deep-iteration")
    lines = printed.splitlines()
    batches = [line for line in lines if line.startswith("baseOffset:")]
    records = [line.removeprefix("| offset: ") for line in lines if line.startswith("| offset:")]
    offsets = [int(line.split(" ", 1)[0]) for line in records]
    assert offsets == list(range(end))
    assert len(batches) == ROUNDS * 4
    assert all("isvalid: true" in line for line in batches)
    assert {word for line in batches for word in (line.split("compresscodec: ")[1].split(" ")[0],)} == {
        "none",
        "gzip",
        "snappy",
        "lz4",
        "zstd",
    }
    assert sum("isControl: true" in line for line in batches) == ROUNDS
    assert sum("endTxnMarker: ABORT" in line for line in lines) == len(range(0, ROUNDS, 3))
    _assert_no_complaint([line for line in lines if not line.startswith(("baseOffset:", "| offset:"))])


@pytest.mark.parametrize("check", ["--index-sanity-check", "--verify-index-only"])
def test_dump_log_segments_finds_the_indexes_sane(ours: tuple[Path, int, int], check: str) -> None:
    folder, _, _ = ours
    indexes = sorted([*folder.glob("*.index"), *folder.glob("*.timeindex")])
    assert sum(path.stat().st_size > 0 for path in indexes) > 6
    printed = _dump(indexes, check)
    _assert_no_complaint(printed.splitlines())
    if check == "--index-sanity-check":
        assert printed.count("passed sanity check") == len(indexes)


def test_dump_log_segments_prints_snapshots_and_aborted_transactions(ours: tuple[Path, int, int]) -> None:
    folder, _, _ = ours
    snapshots = sorted(folder.glob("*.snapshot"))
    assert snapshots
    printed = _dump([snapshots[-1]])
    assert "producerId: 4000" in printed and "producerId: 5000" in printed
    aborted = _dump(sorted(folder.glob("*.txnindex")))
    assert aborted.count("producerId: 5000") == len(range(0, ROUNDS, 3))


def _assert_no_complaint(lines: list[str]) -> None:
    assert [line for line in lines if any(complaint in line for complaint in COMPLAINTS)] == []


@pytest.mark.long
def test_apache_kafka_opens_and_serves_it(ours: tuple[Path, int, int], tmp_path: Path) -> None:
    """As after a clean stop, when indexes and snapshots are taken as they are; then as after a crash."""
    folder, end, visible = ours
    kafka = ApacheKafka(tmp_path)
    config = {"bootstrap.servers": kafka.bootstrap}
    with JavaDriver() as java:
        with kafka:
            settings = {"retention.ms": "-1"}
            java.run("create_topics", config=config, topics=[{"name": "ours", "configs": settings}])
        theirs = kafka.data_dir / "ours-0"
        sizes = _put_in_place(folder, theirs)
        for stopped_cleanly in (True, False):
            if not stopped_cleanly:
                (kafka.data_dir / ".kafka_cleanshutdown").unlink()
            with kafka:
                _assert_served(java, kafka.bootstrap, end, visible)
            assert {path.name: path.stat().st_size for path in theirs.glob("*.log")} == sizes
    complaints = [line for line in kafka.brokers[0].output.splitlines() if "ours-0" in line]
    assert [line for line in complaints if "ERROR" in line or "corrupt" in line.lower()] == []


def _put_in_place(ours: Path, theirs: Path) -> dict[str, int]:
    for path in theirs.iterdir():
        if path.name != "partition.metadata":  # the topic's id in the other cluster
            path.unlink()
    for path in ours.iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, theirs)
    return {path.name: path.stat().st_size for path in theirs.glob("*.log")}


def _assert_served(java: JavaDriver, bootstrap: str, end: int, visible: int) -> None:
    config = {"bootstrap.servers": bootstrap}
    assert java.run("list_offsets", config=config, topic="ours", spec="latest")["offset"] == end
    assert len(JavaClient(bootstrap, java).read("ours", 1)) == end - ROUNDS  # without control records
    committed = {**config, "isolation.level": "read_committed"}
    assert len(java.run("consume", config=committed, topic="ours")) == visible
    time = START_MS + 20 * 100
    found = java.run("offsets_for_times", config=config, topic="ours", timestamp=time)
    assert found["0"]["timestamp"] == time
