"""The settings of one client, with Kafka's keys: the keys that every client has, and the given values,
checked, with defaults for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nilometer.client.settings.client_security import SECURITY_KEYS
from nilometer.config import ConfigDefinition, ConfigError, ConfigValue, Settings, key_table

# The settings of one client, with Kafka's keys: the given values, checked, with defaults for the others.

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


GivenValue = str | int | float | bool | Sequence[str]
GivenConfig = Mapping[str, GivenValue]


class ClientSettings(Settings):
    def __init__(self, definition: ConfigDefinition, given: GivenConfig) -> None:
        super().__init__(definition, {name: _text(value) for name, value in given.items()})


def _text(value: GivenValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    return ",".join(value)


# The keys that every client has, with Kafka's names, defaults and limits.


def parse_server(text: str) -> tuple[str, int]:
    """Parse ``host:port`` (an IPv6 host in brackets). Raises ConfigError."""
    host, separator, port = text.rpartition(":")
    host = host.strip().removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            "bootstrap.servers",
            f"Invalid value {text} for configuration bootstrap.servers: must be host:port",
        )
    return host, int(port)


def _servers(value: ConfigValue) -> str | None:
    assert isinstance(value, tuple)
    if not value:
        return "must name at least one host:port"
    for text in value:
        try:
            parse_server(text)
        except ConfigError:
            return f"{text} is not of the form host:port"
    return None


COMMON_KEYS = (
    *key_table(
        """
bootstrap.servers: list
    Brokers to connect to first, as host:port. The client learns the others from them.
client.id: string = nilometer
    The client id sent with each request; it appears in the brokers' logs.
request.timeout.ms: int 1.. = 30_000
    How long to wait for the response to one request.
retry.backoff.ms: long 0.. = 100
    The pause before the first retry; it doubles with each further failure.
retry.backoff.max.ms: long 0.. = 1000
    The longest pause between retries.
reconnect.backoff.ms: long 0.. = 50
    The pause before connecting again to a broker; it doubles with each failure.
reconnect.backoff.max.ms: long 0.. = 1000
    The longest pause between attempts to connect to a broker.
socket.connection.setup.timeout.ms: long 1.. = 10_000
    How long to wait for a connection to be set up.
metadata.max.age.ms: long 0.. = 300_000
    The age after which metadata is fetched again.
""",
        checks={"bootstrap.servers": _servers},
    ),
    *SECURITY_KEYS,
)

(API_TIMEOUT,) = key_table(
    """
default.api.timeout.ms: int 0.. = 60_000
    How long an operation may take, all its retries included.
"""
)
"""A key of the clients that retry whole operations: consumer and admin."""
