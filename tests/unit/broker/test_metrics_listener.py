"""The setting `metrics.listener`: off by default, loopback by default."""

from __future__ import annotations

import pytest

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.listeners import HttpEndpoint
from nilometer.config import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9404", "127.0.0.1", 9404),
        (":9404", "127.0.0.1", 9404),
        ("0", "127.0.0.1", 0),
        ("10.0.0.1:9404", "10.0.0.1", 9404),
        ("http://metrics.example:65535/", "metrics.example", 65535),
        ("HTTP://[::1]:1", "::1", 1),
    ],
)
def test_a_listener_is_an_address_or_a_port_on_loopback(text: str, host: str, port: int) -> None:
    config = BrokerConfig({"node.id": "1", "metrics.listener": text})
    assert config.metrics_endpoint == HttpEndpoint(host, port)


def test_without_the_setting_there_is_none() -> None:
    assert BrokerConfig({"node.id": "1"}).metrics_endpoint is None


@pytest.mark.parametrize(
    "text", ["", "x", "host:", "https://h:1", "h:65536", "h:1:2", "PLAINTEXT://h:1", "h:-1"]
)
def test_another_text_is_rejected_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listener"):
        BrokerConfig({"node.id": "1", "metrics.listener": text})


def test_an_endpoint_is_shown_as_its_url() -> None:
    assert [str(HttpEndpoint(host, 80)) for host in ("::1", "h")] == ["http://[::1]:80", "http://h:80"]


def test_a_name_that_begins_like_a_loopback_address_is_none() -> None:
    hosts = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "127.0.0.1.example", "10.0.0.1")
    assert [HttpEndpoint(host, 80).is_loopback for host in hosts] == [True] * 4 + [False] * 2
