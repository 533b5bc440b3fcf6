"""Connect strings of ZooKeeper, right and wrong."""

from __future__ import annotations

import pytest

from nilometer.broker.settings.config import BrokerConfig
from nilometer.config import ConfigError
from nilometer.coordination.zookeeper.connect import parse_connect_string

REFUSED = {
    "": "contains no server",
    "/chroot": "contains no server",
    ",": "an empty server name next to a comma",
    "a:2181,": "an empty server name next to a comma",
    "a:2181,,b:2181": "an empty server name next to a comma",
    "host:notaport": "host:notaport is not a server",
    "host:": "host: is not a server",
    "host:0": "there is no port 0",
    "host:65536": "there is no port 65536",
    "two words:2181": "is not a server",
    "zookeeper://host:2181": "zookeeper: is not a server",
    "a:2181//b": "is not a chroot",
    "a:2181/b/": "is not a chroot",
    "a:2181/b/../c": "is not a chroot",
    "a:2181/x,b:2181/x": "once, after the last server",
}


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a:2181", "a:2181"),
        ("a", "a:2181"),
        ("a:1,b.example:2, [::1]:3", "a:1,b.example:2,[::1]:3"),
        ("a:1,b:2/one", "a:1,b:2/one"),
        ("a:1/one/two", "a:1/one/two"),
        ("a:1/", "a:1"),
    ],
)
def test_understood(text: str, meaning: str) -> None:
    assert str(parse_connect_string(text)) == meaning


@pytest.mark.parametrize("text", REFUSED)
def test_refused_when_the_settings_are_read(text: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[text]):
        parse_connect_string(text)
    given = {"nilometer.coordination": f"zookeeper://{text}"}, {"zookeeper.connect": text}
    for settings in given if text else given[:1]:
        with pytest.raises(ConfigError, match=REFUSED[text]) as refused:
            BrokerConfig({"node.id": "1", **settings})
        assert next(iter(settings)) in str(refused.value)


def test_two_stores_are_one_too_many() -> None:
    settings = {"node.id": "1", "zookeeper.connect": "a:1", "nilometer.coordination": "local"}
    with pytest.raises(ConfigError, match="give one of them"):
        BrokerConfig(settings)
    settings["nilometer.coordination"] = "zookeeper://a:1"
    assert BrokerConfig(settings).coordination == "zookeeper://a:1"
