"""Replicas move between the log directories of a broker while clients write and read; the broker is killed in
the middle, and what was acknowledged is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nilometer.cli.main import run
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.turns import TURN_MS_MAX, longest_turns_ms
from support.brokers.two_brokers import Side, batch, produce_fields
from support.eventually import eventually
from support.logs.segments import stored_batches
from support.wire.wire_peer import make

VALUE = b"v" * 10_000
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


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


def set_rate(side: Side, rate: str) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    change = make(key, 1, "AlterableConfig", name=RATE, config_operation=0, value=rate)
    resource = make(key, 1, "AlterConfigsResource", resource_type=4, resource_name="1", configs=(change,))
    [outcome] = side.message(key, 1, resources=(resource,)).responses
    assert outcome.error_code == ErrorCode.none


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


def test_reassign_moves_replicas_to_the_directories_of_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker_with(tmp_path, log_segment_delete_delay_ms="0") as broker:
        side = Side("Nilometer", broker.bootstrap)
        name = side.create("by-file")
        assert produce(side, name, 0, VALUE) == 0
        target = other(tmp_path, side, name)

        def execute(path: Path) -> int:
            replica = {"topic": name, "partition": 0, "replicas": [1], "log_dirs": [str(path)]}
            file = tmp_path / "moves.json"
            file.write_text(json.dumps({"version": 1, "partitions": [replica]}))
            return run(["reassign", "execute", str(file), "--bootstrap-server", broker.bootstrap])

        assert execute(target) == 0
        assert f"by-file-0 on broker 1 is to be in {target}." in capsys.readouterr().out
        eventually(lambda: places(side, name) == [(target.name, 0, False, 0)], "it has moved")
        assert execute(tmp_path / "three") == 1
        assert "LOG_DIR_NOT_FOUND" in capsys.readouterr().err
        side.hang_up()


def test_ten_thousand_partitions_in_one_request_hold_the_loop_for_no_one(tmp_path: Path) -> None:
    with broker_with(tmp_path, metrics_listener="127.0.0.1:0", log_segment_delete_delay_ms="0") as broker:
        side = Side("Nilometer", broker.bootstrap)
        name = side.create("many", 100)
        target = other(tmp_path, side, name)
        key = ApiKey.ALTER_REPLICA_LOG_DIRS
        known = make(key, 2, "AlterReplicaLogDirTopic", name=name, partitions=tuple(range(5_000)))
        absent = make(key, 2, "AlterReplicaLogDirTopic", name="absent", partitions=tuple(range(4_900)))
        asked = make(key, 2, "AlterReplicaLogDir", path=str(target), topics=(known, absent))
        results = side.message(key, 2, dirs=(asked,)).results
        codes = {one.topic_name: [part.error_code for part in one.partitions] for one in results}
        assert codes[name] == [ErrorCode.none] * 100 + [ErrorCode.unknown_topic_or_partition] * 4_900
        assert codes["absent"] == [ErrorCode.unknown_topic_or_partition] * 4_900
        eventually(lambda: len(list(target.glob("many-*[0-9]"))) == 100, "all have moved", 60)
        turns = longest_turns_ms(broker)
        assert {work: ms for work, ms in turns.items() if ms >= TURN_MS_MAX} == {}
        side.hang_up()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_that_ends_in_the_middle_continues_its_moves(tmp_path: Path, end: str) -> None:
    """Of a topic without other replicas."""
    broker = broker_with(tmp_path, **{RATE.replace(".", "_"): "100000"}, log_segment_delete_delay_ms="0")
    broker.start()
    side = Side("Nilometer", broker.bootstrap)
    side.create("large", 4)
    for partition in range(4):
        for _ in range(100):
            assert produce(side, "large", partition, VALUE) is not None
    targets = {
        partition: tmp_path / ("two" if at == "one" else "one")
        for at, partition, _, _ in places(side, "large")
    }
    for partition, target in targets.items():
        assert alter(side, target, "large", partition) == [ErrorCode.none]
    eventually(lambda: len(list(tmp_path.glob("*/large-*-future"))) == 4, "all replicas move")
    written = [100] * 4
    for partition in range(4):
        assert produce(side, "large", partition, b"later") == written[partition]
        written[partition] += 1
    side.hang_up()
    if end == "kill":
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()
    side = Side("Nilometer", broker.bootstrap)
    side.wait_leaders("large", 4)
    assert broker.output.count("goes on at offset") == 4
    for partition in range(4):
        assert produce(side, "large", partition, b"last") == written[partition]
        written[partition] += 1
    set_rate(side, "1000000000")
    done = sorted((target.name, partition, False, 0) for partition, target in targets.items())
    eventually(lambda: places(side, "large") == done, "all have moved")
    side.hang_up()
    assert broker.stop() == 0
    for partition, target in targets.items():
        stored = stored_batches(target, "large", partition)
        assert all(found.crc_valid for found in stored)
        assert [found.base_offset for found in stored] == list(range(written[partition]))
        source = tmp_path / ("two" if target.name == "one" else "one")
        assert not (source / f"large-{partition}").exists()
