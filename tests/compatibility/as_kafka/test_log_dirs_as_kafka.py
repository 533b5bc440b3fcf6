"""Replicas are moved between log directories as in Apache Kafka (KIP-113), in every version.

Both brokers have two directories. A path is compared by its last name, sizes and lags by their sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.comparison import each_version, same
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import KEEP_OLD_RECORDS, Plain, Side
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded

KEY = ApiKey.ALTER_REPLICA_LOG_DIRS
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
BROKER = 4
"""The type of a broker's settings."""


def settings(folder: Path) -> dict[str, str]:
    return {
        **KEEP_OLD_RECORDS,
        "log.dirs": f"{folder / 'one'},{folder / 'two'}",
        "log.segment.delete.delay.ms": "0",
    }


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("kafka-dirs")
    apache = ApacheKafka(folder, overrides=settings(folder))
    try:
        apache.start()
        side = Side("Apache Kafka", apache.bootstrap)
        yield side
        side.hang_up()
    finally:
        apache.kill()


def nilometer_in(folder: Path) -> Iterator[Side]:
    with NilometerBroker(folder / "broker", settings(folder)) as broker:
        side = Side("Nilometer", broker.bootstrap)
        yield side
        side.hang_up()
    assert "Traceback" not in broker.output


@pytest.fixture(scope="module")
def nilometer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    yield from nilometer_in(tmp_path_factory.mktemp("beside-kafka-dirs"))


@pytest.fixture(scope="module")
def beside_recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    yield from nilometer_in(tmp_path_factory.mktemp("beside-recorded-dirs"))


def folders(side: Side) -> dict[str, str]:
    """Paths of the log directories by their last names."""
    found = side.message(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=()).results
    return {Path(one.log_dir).name: one.log_dir for one in found}


def alter(side: Side, version: int, *wanted: tuple[str, str, tuple[int, ...]]) -> Plain:
    """(path, topic, partitions) for each."""
    dirs = tuple(
        make(
            KEY,
            version,
            "AlterReplicaLogDir",
            path=path,
            topics=(make(KEY, version, "AlterReplicaLogDirTopic", name=topic, partitions=partitions),),
        )
        for path, topic, partitions in wanted
    )
    answer = side.ask(KEY, version, dirs=dirs)
    answer["results"].sort(key=lambda topic: topic["topic_name"])
    return answer


def places(side: Side, topic: str) -> list[tuple[str, int, bool, bool]]:
    """(folder, partition, is it a future log, does it lag) of all logs of the topic."""
    asked = make(
        ApiKey.DESCRIBE_LOG_DIRS, 4, "DescribableLogDirTopic", topic=topic, partitions=tuple(range(5))
    )
    return sorted(
        (Path(directory.log_dir).name, log.partition_index, log.is_future_key, log.offset_lag > 0)
        for directory in side.message(ApiKey.DESCRIBE_LOG_DIRS, 4, topics=(asked,)).results
        for found in directory.topics
        for log in found.partitions
    )


def place(side: Side, topic: str) -> str:
    """The folder of the topic's only replica, which does not move."""
    found: list[str] = []

    def is_alone() -> bool:
        found[:] = [name for name, _, is_future, _ in places(side, topic) if not is_future]
        return len(places(side, topic)) == len(found) == 1

    eventually(is_alone, f"{side.name} has one log of {topic}")
    return found[0]


def other(name: str) -> str:
    return {"one": "two", "two": "one"}[name]


@each_version(KEY)
def test_replicas_are_moved(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name, at = side.create(f"to-be-moved-{version}"), folders(side)
        side.append(name, b"a" * 1000)
        before = place(side, name)
        told = {
            "where it is": alter(side, version, (at[before], name, (0,))),
            "elsewhere": alter(side, version, (at[other(before)], name, (0,))),
        }
        eventually(lambda: place(side, name) == other(before), f"{side.name} has moved {name}")
        side.append(name, b"b")
        told["again"] = alter(side, version, (at[other(before)], name, (0,)))
        told["and back"] = alter(side, version, (at[before], name, (0,)))
        eventually(lambda: place(side, name) == before, f"{side.name} has moved {name} back")
        return told

    same(sides, scenario, version)


@each_version(KEY)
def test_what_cannot_be_moved(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        name, at = side.create(f"fixed-{version}", 2), folders(side)
        long = "x" * 214
        return {
            "nothing": alter(side, version),
            "to nowhere": alter(side, version, ("/no/such/directory", name, (0,))),
            "to a relative path": alter(side, version, ("one", name, (0,))),
            "to no path": alter(side, version, ("", name, (0,))),
            "to a path with a slash": alter(side, version, (at["one"] + "/", name, (0,))),
            "no partition": alter(side, version, (at["one"], name, ())),
            "an unknown partition": alter(side, version, (at["one"], name, (7,))),
            "a negative partition": alter(side, version, (at["one"], name, (-1,))),
            "an unknown topic": alter(side, version, (at["one"], f"unknown-{version}", (0, 1))),
            "a name that is too long": alter(side, version, (at["one"], long, (0,))),
            "a name that is too long, to nowhere": alter(side, version, ("/no", long, (0,))),
            "an unknown topic to nowhere": alter(side, version, ("/no", f"unknown-{version}", (0,))),
            "some of each": alter(
                side, version, (at["one"], f"unknown-{version}", (0,)), ("/no", name, (1,))
            ),
        }

    same(sides, scenario, version)


@each_version(KEY)
def test_a_topic_is_created_where_it_was_asked_for(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        at, told = folders(side), list[Plain]()
        for folder in ("two", "one", "two"):
            name = f"chosen-{version}-{len(told)}"
            told.append(alter(side, version, (at[folder], name, (0,))))
            side.create(name)
            told.append(places(side, name))
        return told

    same(sides, scenario, version)


@each_version(KEY)
def test_a_move_is_slow_and_given_up(sides: tuple[Side, Side], version: int) -> None:
    def scenario(side: Side, version: int) -> Plain:
        def limit(rate: str | None) -> Plain:
            key = ApiKey.INCREMENTAL_ALTER_CONFIGS
            change = make(key, 1, "AlterableConfig", name=RATE, config_operation=0 if rate else 1, value=rate)
            resource = make(
                key, 1, "AlterConfigsResource", resource_type=BROKER, resource_name="1", configs=(change,)
            )
            return side.ask(key, 1, resources=(resource,))

        name, at = side.create(f"slow-{version}"), folders(side)
        for _ in range(12):
            side.append(name, b"v" * 500_000)
        before = place(side, name)
        told = {"limited": limit("100")}
        told["asked"] = alter(side, version, (at[other(before)], name, (0,)))
        moving = sorted([(before, 0, False, False), (other(before), 0, True, True)])
        eventually(lambda: places(side, name) == moving, f"{side.name} is copying {name}")
        told["asked again"] = alter(side, version, (at[other(before)], name, (0,)))
        assert places(side, name) == moving, "that changes nothing"
        told["given up"] = alter(side, version, (at[before], name, (0,)))
        assert place(side, name) == before
        told["asked once more"] = alter(side, version, (at[other(before)], name, (0,)))
        told["unlimited"] = limit(None)
        eventually(lambda: place(side, name) == other(before), f"{side.name} has moved {name}", 60)
        return told

    same(sides, scenario, version)


def test_a_topic_is_deleted_while_it_moves(sides: tuple[Side, Side]) -> None:
    def scenario(side: Side, _: int) -> Plain:
        name, at = side.create("deleted-soon"), folders(side)
        side.append(name, b"v" * 1000)
        before = place(side, name)
        told = alter(side, 2, (at[other(before)], name, (0,)))
        key = ApiKey.DELETE_TOPICS
        deleted = side.message(
            key, 6, topics=(make(key, 6, "DeleteTopicState", name=name, topic_id=None),), timeout_ms=10_000
        )
        assert [one.error_code for one in deleted.responses] == [ErrorCode.none]
        eventually(lambda: places(side, name) == [], f"{side.name} has deleted {name}")
        return told

    same(sides, scenario, 2)
