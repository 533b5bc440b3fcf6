"""Client settings: Kafka's keys, refused by name; and the pauses they stand for."""

from __future__ import annotations

import random

import pytest

from nilometer.client.consumer.consumer_settings import CONSUMER_CONFIG_DEFINITION
from nilometer.client.network.connection_pool import Backoff
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION
from nilometer.client.settings import ClientSettings, parse_server
from nilometer.config import ConfigError
from nilometer.runtime.runtime import SeededEntropy


def test_values_may_be_text_or_python() -> None:
    settings = ClientSettings(
        PRODUCER_CONFIG_DEFINITION,
        {
            "bootstrap.servers": ["a:1", "[::1]:2"],
            "linger.ms": 7,
            "enable.idempotence": False,
            "acks": 1,
            "batch.size": "100",
        },
    )
    assert settings.strings("bootstrap.servers") == ("a:1", "[::1]:2")
    assert settings.integer("linger.ms") == 7
    assert settings.boolean("enable.idempotence") is False
    assert settings.string("acks") == "1"
    assert settings.integer("batch.size") == 100
    assert settings.integer("retry.backoff.ms") == 100
    assert settings.is_given("linger.ms")
    assert not settings.is_given("retry.backoff.ms")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("linger", 5, "Unknown producer config name: linger"),
        ("acks", "2", "acks: must be one of all, -1, 0, 1"),
        ("batch.size", -1, "batch.size: must be at least 0"),
        ("compression.type", "brotli", "compression.type: must be one of"),
        ("bootstrap.servers", "localhost", "localhost is not of the form host:port"),
        ("bootstrap.servers", "", "must name at least one"),
        ("bootstrap.servers", "a:99999", "not of the form"),
    ],
)
def test_refusals_name_the_key(key: str, value: str | int, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        ClientSettings(PRODUCER_CONFIG_DEFINITION, {key: value})
    assert refused.value.key == key


def test_near_miss_is_offered() -> None:
    with pytest.raises(ConfigError, match=r"did you mean fetch\.max\.wait\.ms"):
        ClientSettings(CONSUMER_CONFIG_DEFINITION, {"fetch.max.wait": 1})


def test_server_addresses() -> None:
    assert parse_server("broker:9092") == ("broker", 9092)
    assert parse_server("[2001:db8::1]:9093") == ("2001:db8::1", 9093)
    with pytest.raises(ConfigError):
        parse_server(":9092")


def test_pauses_double_up_to_the_maximum_and_are_jittered() -> None:
    backoff = Backoff(100, 1000)
    entropy = SeededEntropy(random.Random(1))
    assert backoff.delay_ms(0, entropy) == 0
    for failures, base in [(1, 100), (2, 200), (3, 400), (4, 800)]:
        delays = {backoff.delay_ms(failures, entropy) for _ in range(200)}
        assert base * 0.8 <= min(delays) < max(delays) <= base * 1.2
    assert all(800 <= backoff.delay_ms(failures, entropy) <= 1000 for failures in (5, 50, 5_000))
