"""The settings of the authorizer: Kafka's own is built in, any other is refused by its name."""

from __future__ import annotations

import pytest

from nilometer.broker.settings.access_config_keys import STANDARD_AUTHORIZER
from nilometer.broker.settings.config import BrokerConfig
from nilometer.config import ConfigError


def config(**texts: str) -> BrokerConfig:
    return BrokerConfig({"node.id": "1", **{name.replace("_", "."): text for name, text in texts.items()}})


@pytest.mark.parametrize("given", ["", STANDARD_AUTHORIZER])
def test_kafkas_authorizer_or_none(given: str) -> None:
    assert config(authorizer_class_name=given).string("authorizer.class.name") == given


@pytest.mark.parametrize("other", ["kafka.security.authorizer.AclAuthorizer", "com.example.Mine"])
def test_any_other_authorizer_is_refused_by_name(other: str) -> None:
    with pytest.raises(ConfigError, match=f"{other} for configuration authorizer.class.name: only org"):
        config(authorizer_class_name=other)


def test_super_users_are_separated_by_semicolons() -> None:
    """A distinguished name has commas."""
    users = config(super_users="User:admin; User:CN=ops,O=Example ;").super_users
    assert users == {"User:admin", "User:CN=ops,O=Example"}
    with pytest.raises(ConfigError, match="'admin' is not a principal"):
        config(super_users="User:a;admin")
