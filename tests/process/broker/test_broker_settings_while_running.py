"""Settings that change, topics that are deleted and segments that are retained while a broker runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Side
from support.brokers.values import produce, side_of, values
from support.eventually import eventually
from support.logs.segments import stored_batches
from support.wire.wire_peer import make


def delete(side: Side, name: str) -> None:
    state = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name)
    answer = side.message(ApiKey.DELETE_TOPICS, 6, topics=(state,), timeout_ms=10_000)
    assert answer.responses[0].error_code == ErrorCode.none


def folders(broker: NilometerBroker, topic: str) -> list[str]:
    return sorted(path.name for path in broker.data_dir.glob(f"{topic}-*"))


def test_a_deleted_topic_is_renamed_and_then_removed(tmp_path: Path) -> None:
    settings = {"log.segment.delete.delay.ms": "600000"}
    with NilometerBroker(tmp_path / "data", settings) as broker:
        side = side_of(broker)
        side.create("slow", 2, file_delete_delay_ms="600000")
        side.create("quick", 2, file_delete_delay_ms="1")
        assert produce(side, "slow", b"old") == ErrorCode.none
        delete(side, "quick")
        delete(side, "slow")
        assert all(name.endswith("-delete") for name in folders(broker, "slow"))
        assert len(folders(broker, "slow")) == 2
        assert produce(side, "slow", b"none") == ErrorCode.unknown_topic_or_partition
        eventually(lambda: not folders(broker, "quick"), "its folders are removed")
        side.create("slow")
        assert values(side, "slow") == []
        assert produce(side, "slow", b"new") == ErrorCode.none
        side.hang_up()
        broker.kill()
        broker.start()
        side = side_of(broker)
        assert values(side, "slow") == [b"new"]
        eventually(lambda: folders(broker, "slow") == ["slow-0"], "what was left to remove is removed")
        side.hang_up()


def test_topics_neither_created_nor_deleted_without_a_request(tmp_path: Path) -> None:
    off = {"auto.create.topics.enable": "false", "delete.topic.enable": "false"}
    with NilometerBroker(tmp_path / "data", off) as broker:
        side = side_of(broker)
        asked = make(ApiKey.METADATA, 9, "MetadataRequestTopic", name="wanted")
        for _ in range(2):
            found = side.message(ApiKey.METADATA, 9, topics=(asked,), allow_auto_topic_creation=True)
            assert found.topics[0].error_code == ErrorCode.unknown_topic_or_partition
        assert not folders(broker, "wanted")
        name = side.create("stays")
        state = make(ApiKey.DELETE_TOPICS, 6, "DeleteTopicState", name=name)
        answer = side.message(ApiKey.DELETE_TOPICS, 6, topics=(state,), timeout_ms=10_000)
        assert answer.responses[0].error_code == ErrorCode.topic_deletion_disabled
        assert side.leaders(name) == [1]
        side.hang_up()


def alter(side: Side, topic: str, **changes: str | None) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    configs = tuple(
        make(
            key,
            1,
            "AlterableConfig",
            name=name.replace("_", "."),
            config_operation=0 if value is not None else 1,
            value=value,
        )
        for name, value in changes.items()
    )
    resource = make(key, 1, "AlterConfigsResource", resource_type=2, resource_name=topic, configs=configs)
    answer = side.message(key, 1, resources=(resource,))
    assert answer.responses[0].error_code == ErrorCode.none


def test_topic_settings_take_effect_at_once(tmp_path: Path) -> None:
    with NilometerBroker(tmp_path / "data") as broker:
        side = side_of(broker)
        side.create("changing")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        alter(side, "changing", max_message_bytes="1000")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.message_too_large
        alter(side, "changing", max_message_bytes=None)
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        alter(side, "changing", compression_type="gzip")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        alter(side, "changing", message_timestamp_type="LogAppendTime")
        assert produce(side, "changing", b"x" * 2000) == ErrorCode.none
        side.hang_up()
        assert [found.attributes for found in stored_batches(broker.data_dir, "changing", 0)] == [0, 0, 1, 9]


FAST_REBALANCE_CHECKS = {"log.retention.check.interval.ms": "200", "log.segment.delete.delay.ms": "1"}


def earliest(side: Side, topic: str) -> int:
    key = ApiKey.LIST_OFFSETS
    asked = make(key, 7, "ListOffsetsPartition", partition_index=0, timestamp=-2, current_leader_epoch=-1)
    answer = side.message(
        key,
        7,
        replica_id=-1,
        topics=(make(key, 7, "ListOffsetsTopic", name="" + topic, partitions=(asked,)),),
    )
    return answer.topics[0].partitions[0].offset


def segments(broker: NilometerBroker, topic: str) -> list[int]:
    return sorted(int(path.stem) for path in (broker.data_dir / f"{topic}-0").glob("*.log"))


@pytest.mark.parametrize(
    "retention",
    [
        pytest.param(lambda side: alter(side, "old", retention_bytes=str(2 << 20)), id="by-size"),
        pytest.param(lambda side: alter(side, "old", retention_ms="1000"), id="by-time"),
    ],
)
def test_retention_while_it_runs(tmp_path: Path, retention: Callable[[Side], None]) -> None:
    """Set while the topic is in use: old segments go, their files with them; what is left reads on."""
    with NilometerBroker(tmp_path / "data", FAST_REBALANCE_CHECKS) as broker:
        side = side_of(broker)
        side.create("old", segment_bytes=str(1 << 20), retention_ms="-1")
        for number in range(60):
            assert produce(side, "old", b"%02d" % number + b"." * 100_000) == ErrorCode.none
        before = segments(broker, "old")
        assert len(before) > 4
        assert earliest(side, "old") == 0
        retention(side)
        eventually(lambda: earliest(side, "old") > 0, "the log start has moved")
        eventually(lambda: segments(broker, "old")[0] == earliest(side, "old"), "files are gone")
        start = earliest(side, "old")
        left = values(side, "old", offset=start)
        assert [int(value[:2]) for value in left if value] == list(range(start, 60))
        assert produce(side, "old", b"next", acks=1) == ErrorCode.none
        side.hang_up()
        broker.kill()
        broker.start()
        side = side_of(broker)
        assert earliest(side, "old") >= start, "it does not go back"
        side.hang_up()
