"""The keys of TLS that clients and brokers share, under Kafka's names."""

from __future__ import annotations

from nilometer.client.settings.key_kinds import text_key
from nilometer.config import ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue
from nilometer.runtime.tls import PEM, PKCS12

HTTPS = "https"


def _why_no_store(value: ConfigValue) -> str | None:
    known = value in (PEM, PKCS12)
    return None if known else "must be PEM or PKCS12: convert JKS stores with keytool -importkeystore"


def _store_type(name: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.STRING, default="JKS", validate=_why_no_store, doc=doc)


STORE_KEYS: tuple[ConfigKey, ...] = (
    text_key("ssl.keystore.location", "The file with the own private key and certificate chain."),
    _store_type("ssl.keystore.type", "The format of ssl.keystore.location, PEM or PKCS12: must be given."),
    text_key("ssl.keystore.password", "The password of a PKCS12 key store.", secret=True),
    text_key("ssl.key.password", "The password of the private key in a PEM file.", secret=True),
    text_key("ssl.keystore.key", "The private key as PEM text, in place of a file.", secret=True),
    text_key("ssl.keystore.certificate.chain", "The certificate chain of ssl.keystore.key, as PEM text."),
    text_key("ssl.truststore.location", "The file with the certificates of trusted authorities."),
    _store_type(
        "ssl.truststore.type", "The format of ssl.truststore.location, PEM or PKCS12: must be given."
    ),
    text_key("ssl.truststore.password", "The password of a PKCS12 trust store.", secret=True),
    text_key("ssl.truststore.certificates", "The certificates of trusted authorities, as PEM text."),
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
        doc="https: the certificate of a broker that is connected to must be for its host.",
    ),
)
