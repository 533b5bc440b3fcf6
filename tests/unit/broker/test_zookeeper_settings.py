"""How a broker connects to ZooKeeper: what its settings result in, and which are refused."""

from __future__ import annotations

import pytest

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.zookeeper_settings import security_from
from nilometer.config import ConfigError
from nilometer.coordination.zookeeper.connect import OPEN, ZooKeeperSecurity

USER = {"nilometer.zookeeper.user": "brokers", "nilometer.zookeeper.password": "s3cret"}
TLS = {"zookeeper.ssl.client.enable": "true"}


def config(**more: str) -> BrokerConfig:
    texts = {"node.id": "1", **{key.replace("__", "."): text for key, text in more.items()}}
    return BrokerConfig(texts)


def refusal(settings: dict[str, str]) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        security_from(settings)
    return raised.value


def test_nothing_is_set_by_default() -> None:
    assert security_from({}) == OPEN == config().zookeeper


def test_a_user_and_acls() -> None:
    found = security_from({**USER, "zookeeper.set.acl": "true"})
    assert found == ZooKeeperSecurity(user="brokers", password="s3cret", set_acl=True)
    assert found.credentials == "brokers:s3cret"
    assert "s3cret" not in repr(found)


def test_a_broker_has_what_its_file_says() -> None:
    texts = {**USER, "zookeeper.set.acl": "true", "zookeeper.connect": "zk:2181/nilometer", "node.id": "1"}
    assert BrokerConfig(texts).zookeeper.set_acl
    found = BrokerConfig(
        {**texts, "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty"}
    )
    assert found.without_effect == ("zookeeper.clientCnxnSocket",)


@pytest.mark.parametrize(
    ("settings", "key", "text"),
    [
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl", "SASL (Kerberos, DIGEST-MD5) is not supported"),
        ({"nilometer.zookeeper.user": "x"}, "nilometer.zookeeper.password", "belong together"),
        ({"nilometer.zookeeper.password": "x"}, "nilometer.zookeeper.user", "belong together"),
        ({**USER, "nilometer.zookeeper.user": "a:b"}, "nilometer.zookeeper.user", "colon"),
        ({**TLS, "zookeeper.ssl.truststore.location": "a.jks"}, "zookeeper.ssl.truststore.type", "PKCS12"),
        (
            {**TLS, "zookeeper.ssl.keystore.location": "a.pem", "zookeeper.ssl.keystore.type": "JKS"},
            "zookeeper.ssl.keystore.type",
            "JKS is not supported",
        ),
        ({"zookeeper.ssl.endpoint.identification.algorithm": "x"}, None, "must be https, or empty"),
    ],
)
def test_what_is_refused(settings: dict[str, str], key: str | None, text: str) -> None:
    error = refusal(settings)
    assert error.key == (key or next(iter(settings)))
    assert text in str(error)
    assert "s3cret" not in str(error)


def test_tls() -> None:
    given = {
        **TLS,
        "zookeeper.ssl.truststore.location": "/etc/zk.pem",
        "zookeeper.ssl.keystore.location": "/etc/broker.key",
        "zookeeper.ssl.keystore.type": "pem",
        "zookeeper.ssl.keystore.password": "s3cret",
        "zookeeper.ssl.enabled.protocols": "TLSv1.3",
    }
    tls = security_from(given).tls
    assert tls is not None and tls.checks_hostname
    files = tls.files
    assert (files.trusted_file, files.key_file, files.key_password) == (
        "/etc/zk.pem",
        "/etc/broker.key",
        "s3cret",
    )
    assert files.versions == ("TLSv1.3",)
    assert "s3cret" not in repr(tls)
    unchecked = security_from({**given, "zookeeper.ssl.endpoint.identification.algorithm": ""}).tls
    assert unchecked is not None and not unchecked.checks_hostname
    assert security_from({**given, "zookeeper.ssl.client.enable": "false"}).tls is None


def test_the_format_of_a_store() -> None:
    given = {
        **TLS,
        "zookeeper.ssl.keystore.location": "/etc/broker.p12",
        "zookeeper.ssl.keystore.password": "one",
        "zookeeper.ssl.truststore.location": "/etc/trusted",
        "zookeeper.ssl.truststore.type": "PKCS12",
        "zookeeper.ssl.truststore.password": "two",
    }
    tls = security_from(given).tls
    assert tls is not None
    files = tls.files
    assert (files.key_type, files.key_password) == ("PKCS12", "one")
    assert (files.trusted_type, files.trusted_password) == ("PKCS12", "two")


def test_settings_of_zookeeper_without_zookeeper_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"nilometer.zookeeper.* is given, but zookeeper.connect is not"):
        BrokerConfig({"node.id": "1", **USER})


def test_other_settings_of_a_brokers_file_are_ignored() -> None:
    assert security_from({"listeners": "PLAINTEXT://:9092", **USER}).user == "brokers"
