"""Replicas move between the log directories of a broker while clients write and read; the broker is killed in
the middle, and what was acknowledged is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side, batch, produce_fields
from support.eventually import eventually
from support.wire.wire_peer import make

VALUE = b"v" * 10_000


def broker_with(tmp_path: Path, **settings: str) -> NilometerBroker:
    folders = [tmp_path / "one", tmp_path / "two"]
    overrides = {key.replace("_", "."): value for key, value in settings.items()}
    return NilometerBroker(tmp_path / "broker", {"log.dirs": ",".join(map(str, folders)), **overrides})


def alter(side: Side, path: Path | str, topic: str, *partitions: int) -> list[ErrorCode]:
    key = ApiKey.ALTER_REPLICA_LOG_DIRS
    named = make(key, 2, "AlterReplicaLogDirTopic", name=topic, partitions=partitions)
    asked = make(key, 2, "AlterReplicaLogDir", path=str(path), topics=(named,))
    [result] = side.message(key, 2, dirs=(asked,)).results
    return [partition.error_code for partition in result.partitions]


def places(side: Side, topic: str) -> list[tuple[str, int, bool, int]]:
    """(folder, partition, is it a future log, offset lag) of all logs of the topic."""
    asked = make(
        ApiKey.DESCRIBE_LOG_DIRS, 4, "DescribableLogDirTopic", topic=topic, partitions=tuple(range(20))
    )
    return sorted(
        (Path(directory.log_dir).name, log.partition_index, log.is_future_key, log.offset_lag)
        for directory in side.message(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=(asked,)).results
        for found in directory.topics
        for log in found.partitions
    )


def produce(side: Side, topic: str, partition: int, *values: bytes) -> int | None:
    """Append one batch with acks=all; return its offset, None unless it was acknowledged."""
    fields = produce_fields(9, topic, {partition: batch(*values)}, -1)
    outcome = side.message(ApiKey.PRODUCE, 9, **fields).responses[0].partition_responses[0]
    return outcome.base_offset if outcome.error_code == ErrorCode.none else None


def other(tmp_path: Path, side: Side, topic: str) -> Path:
    """The directory in which the topic's first partition is not."""
    [(name, _, _, _)] = [place for place in places(side, topic) if place[1] == 0]
    return tmp_path / ("two" if name == "one" else "one")


@pytest.mark.quick
def test_a_replica_moves_and_nothing_else_is_seen(tmp_path: Path) -> None:
    with broker_with(tmp_path, log_segment_delete_delay_ms="0") as broker:
        side = Side("Nilometer", broker.bootstrap)
        name = side.create("moved")
        target = other(tmp_path, side, name)
        for _ in range(50):
            assert produce(side, name, 0, VALUE, VALUE, VALUE) is not None
        assert alter(side, target, name, 0) == [ErrorCode.none]
        written = 150
        while places(side, name) != [(target.name, 0, False, 0)]:
            assert produce(side, name, 0, b"%d" % written) == written
            written += 1
        assert alter(side, target, name, 0) == [ErrorCode.none], "it is there"
        source = tmp_path / ("two" if target.name == "one" else "one")
        eventually(lambda: not [one for one in source.iterdir() if "moved" in one.name], "nothing is left")
        assert [one.name for one in target.iterdir() if "moved" in one.name] == ["moved-0"]
        assert not (target / "moved-0" / "moved-between-folders").exists()
        assert produce(side, name, 0, b"after") == written
        side.hang_up()
