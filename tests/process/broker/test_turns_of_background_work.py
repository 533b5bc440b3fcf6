"""What a broker does by itself with thousands of partitions holds the event loop for no client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.turns import TURN_MS_MAX, longest_turns_ms
from support.brokers.two_brokers import produce_fields
from support.eventually import eventually
from support.wire.new_topics import new_topic
from support.wire.wire_peer import WirePeer, make

COMPACTED = "compacted"
PARTITIONS = 2_000
"""To begin a segment of each takes twice ``TURN_MS_MAX``."""
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    settings = {"metrics.listener": "127.0.0.1:0", "log.cleaner.backoff.ms": "1000"}
    with NilometerBroker(tmp_path_factory.mktemp("background") / "data", settings) as broker:
        yield broker
        assert "Traceback" not in broker.output
        assert " ERROR " not in broker.output


@pytest.fixture
def peer(broker: NilometerBroker) -> Iterator[WirePeer]:
    with WirePeer(broker.bootstrap, timeout_s=TIMEOUT_S) as peer:
        yield peer


def create(peer: WirePeer, name: str, partitions: int, **configs: str) -> None:
    key = ApiKey.CREATE_TOPICS
    chosen = tuple(
        make(key, 7, "CreatableTopicConfig", name=each.replace("_", "."), value=value)
        for each, value in configs.items()
    )
    topic = new_topic(name, partitions, configs=chosen)
    created = peer.ask(key, 7, topics=(topic,), timeout_ms=TIMEOUT_S * 1000).topics[0]
    assert created.error_code == ErrorCode.none, created


def set_config(peer: WirePeer, topic: str, name: str, value: str) -> None:
    key = ApiKey.INCREMENTAL_ALTER_CONFIGS
    change = make(key, 1, "AlterableConfig", name=name, config_operation=0, value=value)
    resource = make(key, 1, "AlterConfigsResource", resource_type=2, resource_name=topic, configs=(change,))
    assert peer.ask(key, 1, resources=(resource,), validate_only=False).responses[0].error_code == 0


def record() -> bytes:
    builder = BatchBuilder()
    builder.append(1_000, b"key", b"value")
    return builder.build()


def produce(peer: WirePeer, topic: str, partitions: int) -> None:
    fields = produce_fields(9, topic, dict.fromkeys(range(partitions), record()))
    [answer] = peer.ask(ApiKey.PRODUCE, 9, **fields | {"timeout_ms": TIMEOUT_S * 1000}).responses
    assert {each.error_code for each in answer.partition_responses} == {ErrorCode.none}


def segments(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*.log"))


def test_logs_that_are_due_to_be_compacted_at_once_are_rolled_in_short_turns(
    broker: NilometerBroker, peer: WirePeer
) -> None:
    create(peer, COMPACTED, PARTITIONS, cleanup_policy="compact")
    produce(peer, COMPACTED, PARTITIONS)
    set_config(peer, COMPACTED, "max.compaction.lag.ms", "1")
    folders = [broker.data_dir / f"{COMPACTED}-{index}" for index in range(PARTITIONS)]
    eventually(lambda: all(segments(folder) > 1 for folder in folders), "all logs are rolled", TIMEOUT_S)
    longest = longest_turns_ms(broker)
    assert max(longest.values()) < TURN_MS_MAX, longest
