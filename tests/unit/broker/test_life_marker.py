"""KIP-966: what a broker may say about the end of its last incarnation."""

from __future__ import annotations

import random
import uuid
from typing import Any, cast

import pytest

from nilometer.broker.replicas import log_directories
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.identifiers import NO_BROKER_EPOCH
from nilometer.runtime import Runtime
from nilometer.runtime.runtime import SeededEntropy, SystemClock
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.records import BatchBuilder
from support.logs.memory_disk import MemoryDisk


def marked_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_directories("/data")
    log_directories.write_marker(disk, "/data", 17)
    return disk


def test_a_killed_process_has_lost_nothing():
    disk = marked_disk()
    disk.crash_process()
    assert log_directories.read_lossless_broker_epoch(disk, "/data") == 17


def test_a_machine_that_went_down_may_have_lost_its_tail():
    disk = marked_disk()
    disk.crash_machine(seed=1)
    assert log_directories.read_lossless_broker_epoch(disk, "/data") is None


def test_an_empty_or_damaged_folder_says_nothing():
    disk = MemoryDisk()
    disk.make_directories("/data")
    assert log_directories.read_lossless_broker_epoch(disk, "/data") is None
    disk.replace_file(f"/data/{log_directories.MARKER_NAME}", b"{not json")
    assert log_directories.read_lossless_broker_epoch(disk, "/data") is None


def test_an_incarnation_in_doubt_stays_in_doubt_and_is_still_known():
    disk = marked_disk()
    log_directories.mark_possible_loss(disk, "/data")
    disk.crash_process()
    assert log_directories.read_lossless_broker_epoch(disk, "/data") is None
    assert log_directories.read_broker_epoch(disk, "/data") == 17


def test_a_doubt_that_cannot_be_written_takes_the_marker_away():
    disk = marked_disk()
    disk.fails = lambda _, verb, path: OSError(28, "no space left", path) if verb == "replace" else None
    with pytest.raises(OSError, match="no space left"):
        log_directories.mark_possible_loss(disk, "/data")
    disk.crash_process()
    assert log_directories.read_lossless_broker_epoch(disk, "/data") is None


def test_a_system_without_a_boot_id_is_never_trusted():
    disk = marked_disk()
    disk.boot_id = lambda: ""
    assert log_directories.read_lossless_broker_epoch(disk, "/data") is None


@pytest.mark.parametrize("is_torn", [False, True])
async def test_records_of_an_unknown_topic_are_lost_records(
    is_torn: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica starts again, without records that it had acknowledged."""
    disk = marked_disk()
    entropy = SeededEntropy(random.Random(1))
    options = ManagerOptions(
        node_id=1, directories=["/data"], entropy=entropy, config_for=lambda _: LogConfig()
    )
    log = LogManager.open(disk, options, wall_ms=1).create(
        TopicPartition("t", 0), LogConfig(), topic_id=uuid.UUID(int=7), wall_ms=1
    )
    builder = BatchBuilder()
    builder.append(1, None, b"acknowledged")
    log.append_as_leader(builder.build(), leader_epoch=0, wall_ms=1)
    disk.crash_process()
    if is_torn:
        disk.replace_file("/data/t-0/partition.metadata", b"version: 0\ntopic")
    runtime = Runtime(SystemClock(), disk, cast(Any, None), entropy)
    config = BrokerConfig({"node.id": "1", "log.dirs": "/data"})
    opened = await log_directories.LogDirectories.open(config, runtime, Tasks(), lambda reason: None)
    caplog.set_level("INFO")
    await opened.read_broker_epoch()
    assert ("may have lost records: a log has lost the id of its topic" in caplog.text) is is_torn
    assert opened.lossless_broker_epoch == (NO_BROKER_EPOCH if is_torn else 17)
    assert bool(opened.logs.logs) is not is_torn


@pytest.mark.parametrize("is_new", [False, True])
async def test_a_broker_says_why_it_does_not_vouch_for_its_last_incarnation(
    is_new: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = marked_disk()
    if is_new:
        disk.remove(f"/data/{log_directories.MARKER_NAME}")
    disk.crash_process()
    disk.boot_id = lambda: "of the next start"
    runtime = Runtime(SystemClock(), disk, cast(Any, None), SeededEntropy(random.Random(1)))
    config = BrokerConfig({"node.id": "1", "log.dirs": "/data"})
    opened = await log_directories.LogDirectories.open(config, runtime, Tasks(), lambda reason: None)
    caplog.set_level("INFO")
    await opened.read_broker_epoch()
    assert opened.lossless_broker_epoch == NO_BROKER_EPOCH
    assert ("the machine has been started again since" in caplog.text) is not is_new
