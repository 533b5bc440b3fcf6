"""KIP-966: what a broker may say about the end of its last incarnation."""

from __future__ import annotations

import pytest

from nilometer.broker.replicas import log_directories
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
    disk.replace_file(f"/data/{log_directories.NAME}", b"{not json")
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
