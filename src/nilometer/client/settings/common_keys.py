"""The keys that every client has, with Kafka's names, defaults and limits."""

from __future__ import annotations

from nilometer.client.settings.client_security import SECURITY_KEYS
from nilometer.client.settings.client_settings import int_key, long_key
from nilometer.config import ConfigError, ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue


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


COMMON_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        name="bootstrap.servers",
        kind=ConfigKind.LIST,
        default=None,
        doc="Brokers to connect to first, as host:port. The client learns the others from them.",
        validate=_servers,
    ),
    ConfigKey(
        name="client.id",
        kind=ConfigKind.STRING,
        default="nilometer",
        doc="The client id sent with each request; it appears in the brokers' logs.",
    ),
    int_key("request.timeout.ms", 30_000, "How long to wait for the response to one request.", 1),
    long_key(
        "retry.backoff.ms", 100, "The pause before the first retry; it doubles with each further failure."
    ),
    long_key("retry.backoff.max.ms", 1_000, "The longest pause between retries."),
    long_key(
        "reconnect.backoff.ms",
        50,
        "The pause before connecting again to a broker; it doubles with each failure.",
    ),
    long_key("reconnect.backoff.max.ms", 1_000, "The longest pause between attempts to connect to a broker."),
    long_key(
        "socket.connection.setup.timeout.ms", 10_000, "How long to wait for a connection to be set up.", 1
    ),
    long_key("metadata.max.age.ms", 300_000, "The age after which metadata is fetched again."),
    *SECURITY_KEYS,
)

API_TIMEOUT: ConfigKey = int_key(
    "default.api.timeout.ms", 60_000, "How long an operation may take, all its retries included."
)
"""A key of the clients that retry whole operations: consumer and admin."""
