"""The keys of SASL and TLS, under Kafka's names. All of them may be set for single listeners, too."""

from __future__ import annotations

from nilometer.config import ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue

SASL_KEYS = [
    ConfigKey(
        name="sasl.enabled.mechanisms",
        kind=ConfigKind.LIST,
        default=("GSSAPI",),
        doc="The SASL mechanisms that clients may use: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.",
    ),
    ConfigKey(
        name="sasl.jaas.config",
        kind=ConfigKind.STRING,
        default=None,
        doc="The login module of one mechanism of one listener: its users, and this broker's own user.",
        sensitive=True,
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
        name="nilometer.authentication.timeout.ms",
        kind=ConfigKind.LONG,
        default=10_000,
        doc="A connection that has not authenticated within this time is closed.",
        minimum=100,
    ),
    ConfigKey(
        name="nilometer.unauthenticated.connections.max.per.ip",
        kind=ConfigKind.INT,
        default=200,
        doc="How many connections of one address may be open that have not authenticated yet.",
        minimum=1,
    ),
]

PEM = "PEM"
HTTPS = "https"


def _text(name: str, doc: str, *, secret: bool = False) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.STRING, default=None, doc=doc, sensitive=secret)


def _choice(name: str, default: str, choices: tuple[str, ...], doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.STRING, default=default, choices=choices, doc=doc)


def _why_no_store(value: ConfigValue) -> str | None:
    return None if value == PEM else "only PEM is supported: convert JKS and PKCS12 stores with openssl"


def _store_type(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.STRING, default="JKS", validate=_why_no_store, doc=doc)


TLS_KEYS = [
    _text("ssl.keystore.location", "The PEM file with this broker's private key and certificate chain."),
    _store_type("ssl.keystore.type", "The format of ssl.keystore.location: PEM must be given."),
    _text("ssl.key.password", "The password of the private key.", secret=True),
    _text("ssl.keystore.key", "The private key as PEM text, in place of a file.", secret=True),
    _text("ssl.keystore.certificate.chain", "The certificate chain of ssl.keystore.key, as PEM text."),
    _text("ssl.truststore.location", "The PEM file with the certificates of trusted authorities."),
    _store_type("ssl.truststore.type", "The format of ssl.truststore.location: PEM must be given."),
    _text("ssl.truststore.certificates", "The certificates of trusted authorities, as PEM text."),
    _choice(
        "ssl.client.auth",
        "none",
        ("none", "requested", "required"),
        "Whether clients of SSL listeners need a certificate, by which they are known.",
    ),
    ConfigKey(
        name="ssl.enabled.protocols",
        kind=ConfigKind.LIST,
        default=("TLSv1.2", "TLSv1.3"),
        choices=("TLSv1.2", "TLSv1.3"),
        doc="The versions of TLS that are accepted.",
    ),
    ConfigKey(
        name="ssl.endpoint.identification.algorithm",
        kind=ConfigKind.STRING,
        default=HTTPS,
        choices=(HTTPS, ""),
        doc="https: the certificate of a broker that this one connects to must be for its host.",
    ),
    ConfigKey(
        name="ssl.principal.mapping.rules",
        kind=ConfigKind.STRING,
        default="DEFAULT",
        doc="How the subject of a client's certificate becomes the name of its user.",
    ),
]

LISTENER_KEYS = frozenset(key.name for key in [*SASL_KEYS, *TLS_KEYS])
"""The keys that may be set for a single listener."""
MECHANISM_KEYS = frozenset({"sasl.jaas.config"})
"""The keys that may be set for a single mechanism of a listener."""
