"""A disk that is full: an error at once, the folder out of use, the others as before, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.small_disk import CannotMount, SmallDisk, small_disk
from support.brokers.two_brokers import Side, batch, produce_fields
from support.eventually import eventually
from support.logs.segments import stored_batches
from support.wire.wire_peer import make

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", 64 * MIB) as disk:
            yield disk
    except CannotMount as reason:
        pytest.skip(str(reason))


def broker_on(tmp_path: Path, *folders: Path) -> NilometerBroker:
    return NilometerBroker(tmp_path / "broker", {"log.dirs": ",".join(map(str, folders))})


def produce(side: Side, topic: str, value: bytes, acks: int = -1) -> ErrorCode:
    fields = produce_fields(9, topic, {0: batch(value)}, acks)
    return side.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0].error_code


def one_topic_in_each(side: Side, *folders: Path) -> list[str]:
    """In the order of the folders; new logs go where there are fewest."""
    names = [side.create(f"topic-{number}") for number in range(len(folders))]
    found = {folder: [name for name in names if (folder / f"{name}-0").is_dir()] for folder in folders}
    assert all(len(names) == 1 for names in found.values()), found
    return [found[folder][0] for folder in folders]


def folder_errors(side: Side) -> dict[str, ErrorCode]:
    answer = side.message(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=None)
    return {result.log_dir: result.error_code for result in answer.results}


@pytest.mark.parametrize("acks", [-1, 1], ids=["acks-all", "acks-1"])
def test_a_full_folder_is_taken_out_of_use_and_the_others_go_on(
    tmp_path: Path, disk: SmallDisk, acks: int
) -> None:
    roomy, small = tmp_path / "roomy", disk.path / "data"
    broker = broker_on(tmp_path, roomy, small)
    broker.start()
    side = Side("Nilometer", broker.bootstrap)
    here, there = one_topic_in_each(side, roomy, small)
    filler = disk.fill(leaving_bytes=MIB)
    acknowledged = 0
    while (error := produce(side, there, b"%04d" % acknowledged + b"." * 50_000, acks)) == ErrorCode.none:
        acknowledged += 1
        assert acknowledged < 100, "the disk is full before that"
    assert acknowledged > 5
    assert error == ErrorCode.kafka_storage_error
    for _ in range(3):
        assert produce(side, there, b"again", acks) == ErrorCode.kafka_storage_error, "fenced at once"
        assert produce(side, here, b"fine", acks) == ErrorCode.none
    assert folder_errors(side) == {str(roomy): ErrorCode.none, str(small): ErrorCode.kafka_storage_error}
    assert "No space left on device" in broker.output
    assert side.create("another"), "new logs go where there is room"
    assert (roomy / "another-0").is_dir()
    side.hang_up()
    assert broker.stop() == 0
    filler.unlink()
    broker.start()
    side = Side("Nilometer", broker.bootstrap)
    eventually(lambda: side.leaders(there) == [1], "it is led again")
    assert produce(side, there, b"after", acks) == ErrorCode.none
    side.hang_up()
    broker.stop()
    stored = stored_batches(small, there, 0)
    assert all(found.crc_valid for found in stored)
    # What was acknowledged is there; the one that failed may be, whole, if it fitted after all.
    assert acknowledged + 1 <= len(stored) <= acknowledged + 2
    assert [found.base_offset for found in stored] == list(range(len(stored)))
    assert len(stored_batches(roomy, here, 0)) == 3


def test_without_another_folder_the_broker_ends_and_says_why(tmp_path: Path, disk: SmallDisk) -> None:
    small = disk.path / "data"
    broker = broker_on(tmp_path, small)
    broker.start()
    side = Side("Nilometer", broker.bootstrap)
    topic = side.create("only")
    filler = disk.fill(leaving_bytes=MIB // 2)
    acknowledged = 0
    try:
        while produce(side, topic, b"." * 50_000) == ErrorCode.none:
            acknowledged += 1
    except (ConnectionError, OSError) as ended:
        assert not isinstance(ended, TimeoutError), ended
    side.hang_up()
    eventually(lambda: not broker.alive(), "a broker without a folder is of no use")
    assert broker.stop() == 1
    assert "no log directory is usable any more" in broker.output
    assert "Traceback" not in broker.output
    filler.unlink()
    broker.start()
    side = Side("Nilometer", broker.bootstrap)
    eventually(lambda: side.leaders(topic) == [1], "it is led again")
    assert produce(side, topic, b"after") == ErrorCode.none
    side.hang_up()
    broker.stop()
    assert len(stored_batches(small, topic, 0)) >= acknowledged + 1


def test_no_room_to_begin_with(tmp_path: Path, disk: SmallDisk) -> None:
    """Exit code 1 and the reason, not a broker that cannot keep anything."""
    disk.fill(leaving_bytes=0)
    broker = broker_on(tmp_path, disk.path / "data")
    broker.launch()
    eventually(lambda: not broker.alive(), "it does not start")
    assert broker.stop() == 1
    assert "No space left on device" in broker.output
    assert "Traceback" not in broker.output


def test_a_full_disk_under_group_commit(tmp_path: Path, disk: SmallDisk) -> None:
    """With flush.messages=1: from the first failure on every answer is an error."""
    roomy, small = tmp_path / "roomy", disk.path / "data"
    with broker_on(tmp_path, roomy, small) as broker:
        side = Side("Nilometer", broker.bootstrap)
        _, there = one_topic_in_each(side, roomy, small)
        key = ApiKey.INCREMENTAL_ALTER_CONFIGS
        config = make(key, 1, "AlterableConfig", name="flush.messages", config_operation=0, value="1")
        resource = make(
            key, 1, "AlterConfigsResource", resource_type=2, resource_name=there, configs=(config,)
        )
        assert side.message(key, 1, resources=(resource,)).responses[0].error_code == ErrorCode.none
        assert produce(side, there, b"flushed") == ErrorCode.none
        disk.fill(leaving_bytes=200_000)
        errors = [produce(side, there, b"." * 50_000) for _ in range(20)]
        first = errors.index(ErrorCode.kafka_storage_error)
        assert errors == [ErrorCode.none] * first + [ErrorCode.kafka_storage_error] * (20 - first)
        side.hang_up()
    stored = stored_batches(small, there, 0)
    assert len([found for found in stored if found.crc_valid]) >= first + 1
