"""A broker whose disk is far smaller than its topic, and what happens when the store is away for too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import batches
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.record_requests import fetch_fields
from support.brokers.small_disk import CannotMount, SmallDisk, small_disk
from support.brokers.two_brokers import Side, batch, produce_fields
from support.eventually import eventually

MIB = 1 << 20
DISK_BYTES = 40 * MIB
VALUE = b"v" * 500_000
TOPIC = "small"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", DISK_BYTES) as disk:
            yield disk
    except CannotMount as reason:
        pytest.skip(str(reason))


class Laptop:
    """One broker on ``disk``, whose tier is a folder elsewhere; its writer knows what was acknowledged."""

    def __init__(self, folder: Path, disk: SmallDisk) -> None:
        self._disk = disk
        self.tier = folder / "tier"
        self.tier.mkdir()
        settings = {
            "log.dirs": str(disk.path / "data"),
            "remote.log.storage.system.enable": "true",
            "nilometer.tier.uri": self.tier.as_uri(),
            "remote.log.manager.task.interval.ms": "100",
            "log.retention.check.interval.ms": "100",
            "log.segment.delete.delay.ms": "0",
        }
        self.broker = NilometerBroker(folder / "broker", settings)
        self.acknowledged = 0

    def start(self) -> None:
        self.broker.start()
        self.side = Side("Nilometer", self.broker.bootstrap)

    def write(self) -> ErrorCode:
        """Append one batch; its place is its offset. Raises ConnectionError, OSError."""
        fields = produce_fields(9, TOPIC, {0: batch(b"%06d" % self.acknowledged + VALUE)})
        outcome = self.side.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0]
        if outcome.error_code is ErrorCode.none:
            assert outcome.base_offset == self.acknowledged
            self.acknowledged += 1
        return outcome.error_code

    def wait_for_room(self, free_bytes: int) -> None:
        eventually(lambda: self._disk.free_bytes > free_bytes, "what is in the tier is deleted on the disk")

    def check_all(self) -> None:
        """Read everything from the first record on."""
        expected = 0
        while expected < self.acknowledged:
            fields = fetch_fields(self.side, 11, TOPIC, [(0, expected)], max_wait_ms=1_000)
            found = self.side.message(ApiKey.FETCH, 11, **fields).responses[0].partitions[0]
            assert found.error_code is ErrorCode.none
            data = bytes(found.records or b"")
            for position, header in batches(data):
                assert header.base_offset == expected
                assert b"%06d" % expected + VALUE in data[position : position + header.size]
                expected += 1

    @contextmanager
    def without_store(self) -> Iterator[None]:
        hidden = self.tier.with_name("hidden")
        self.tier.rename(hidden)
        try:
            yield
        finally:
            hidden.rename(self.tier)

    def end(self) -> None:
        self.side.hang_up()
        assert self.broker.stop() == 0
        assert "Traceback" not in self.broker.output


def test_a_topic_four_times_as_large_as_the_disk(tmp_path: Path, disk: SmallDisk) -> None:
    laptop = Laptop(tmp_path, disk)
    laptop.start()
    settings = {"remote_storage_enable": "true", "local_retention_bytes": "1", "retention_ms": "-1"}
    laptop.side.create(TOPIC, segment_bytes=str(2 * MIB), **settings)
    while laptop.acknowledged * len(VALUE) < 4 * DISK_BYTES:
        laptop.wait_for_room(DISK_BYTES // 2)
        assert laptop.write() is ErrorCode.none
    laptop.check_all()

    # The store is away until the disk is full. Nothing is deleted then, and nothing is lost.
    with laptop.without_store():
        before = laptop.acknowledged
        try:
            while laptop.write() is ErrorCode.none:
                assert laptop.acknowledged < before + 100, "the disk is full before that"
        except (ConnectionError, OSError) as ended:
            assert not isinstance(ended, TimeoutError), ended
        laptop.side.hang_up()
        eventually(lambda: not laptop.broker.alive(), "a broker without a log directory is of no use")
        assert laptop.broker.stop() == 1
        assert laptop.acknowledged > before + 20
    for told in ("cannot be used, and is tried again", "No space left on device"):
        assert told in laptop.broker.output
    assert "Traceback" not in laptop.broker.output

    # With a little room it starts, and the store frees the rest.
    disk.grow(DISK_BYTES + 4 * MIB)
    laptop.start()
    eventually(lambda: laptop.side.leaders(TOPIC) == [1], "it is led again")
    laptop.wait_for_room(DISK_BYTES // 2)
    stored = laptop.acknowledged
    found = laptop.side.ask(ApiKey.FETCH, 11, **fetch_fields(laptop.side, 11, TOPIC, [(0, stored)]))
    laptop.acknowledged = found["responses"][0]["partitions"][0]["high_watermark"]
    assert stored <= laptop.acknowledged <= stored + 1, "what failed may be stored, whole"
    laptop.acknowledged = stored
    laptop.check_all()
    laptop.end()
