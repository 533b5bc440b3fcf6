"""The keys of SASL and TLS, under Kafka's names. All of them may be set for single listeners, too."""

from __future__ import annotations

from nilometer.broker.settings.oauth_config_keys import OAUTH_KEYS
from nilometer.client.settings.client_security import OAUTH_LOGIN_KEYS, STORE_KEYS
from nilometer.config import ConfigKey, ConfigKind

SASL_KEYS = [
    ConfigKey(
        name="sasl.enabled.mechanisms",
        kind=ConfigKind.LIST,
        default=("GSSAPI",),
        doc="The SASL mechanisms that clients may use: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    ),
    ConfigKey(
        name="sasl.jaas.config",
        kind=ConfigKind.STRING,
        default=None,
        doc="The login module of one mechanism of one listener: its users, and this broker's own user.",
        sensitive=True,
    ),
    ConfigKey(
        name="sasl.mechanism.inter.broker.protocol",
        kind=ConfigKind.STRING,
        default="GSSAPI",
        doc="The SASL mechanism by which this broker authenticates to others; see sasl.enabled.mechanisms.",
    ),
    ConfigKey(
        name="sasl.server.max.receive.size",
        kind=ConfigKind.INT,
        default=524_288,
        doc="The largest request that a connection may send before it has authenticated, in bytes.",
        minimum=1,
    ),
    ConfigKey(
        name="connection.failed.authentication.delay.ms",
        kind=ConfigKind.INT,
        default=100,
        doc="How long a failed authentication waits for its response and the end of its connection.",
        minimum=0,
    ),
    ConfigKey(
        name="connections.max.reauth.ms",
        kind=ConfigKind.LONG,
        default=0,
        doc="A client must authenticate again within this time, or its connection is closed. 0: never.",
        minimum=0,
    ),
    ConfigKey(
        name="nilometer.authentication.timeout.ms",
        kind=ConfigKind.LONG,
        default=10_000,
        doc="A connection that has not authenticated within this time is closed; a TLS handshake has "
        "as much.",
        minimum=100,
    ),
    ConfigKey(
        name="nilometer.unauthenticated.connections.max.per.ip",
        kind=ConfigKind.INT,
        default=200,
        doc="How many connections of one address may be open on a listener that have not authenticated yet: "
        "in their TLS handshake, or before their SASL login.",
        minimum=1,
    ),
    *OAUTH_KEYS,
    *OAUTH_LOGIN_KEYS,
]

TLS_KEYS = [
    *STORE_KEYS,
    ConfigKey(
        name="ssl.client.auth",
        kind=ConfigKind.STRING,
        default="none",
        choices=("none", "requested", "required"),
        doc="Whether clients of SSL listeners need a certificate, by which they are known.",
    ),
    ConfigKey(
        name="ssl.principal.mapping.rules",
        kind=ConfigKind.STRING,
        default="DEFAULT",
        doc="How the subject of a client's certificate becomes the name of its user.",
    ),
]

CONNECTION_KEYS = ("max.connections", "max.connection.creation.rate")
LISTENER_KEYS = frozenset([*CONNECTION_KEYS, *(key.name for key in [*SASL_KEYS, *TLS_KEYS])]) - {
    "sasl.mechanism.inter.broker.protocol"
}
"""The keys that may be set for a single listener."""
MECHANISM_KEYS = frozenset(
    {"sasl.jaas.config", "connections.max.reauth.ms", *(key.name for key in OAUTH_KEYS)}
)
"""The keys that may be set for a single mechanism of a listener."""
