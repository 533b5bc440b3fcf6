"""What the keys of TLS that clients and brokers share result in."""

from __future__ import annotations

from nilometer.config import ConfigError, Settings
from nilometer.runtime.tls import PEM, PKCS12, ClientTls, TlsFiles


def client_tls(settings: Settings) -> ClientTls:
    """Return how to connect by TLS. Raises ConfigError."""
    checks = settings.string("ssl.endpoint.identification.algorithm") != ""
    return ClientTls(files=tls_files(settings), checks_hostname=checks)


def tls_files(settings: Settings) -> TlsFiles:
    """Return the key and the trusted certificates of a broker or a client. Raises ConfigError."""
    key = settings.optional_string("ssl.keystore.key")
    chain = settings.optional_string("ssl.keystore.certificate.chain")
    if (key is None) != (chain is None):
        raise ConfigError(
            "ssl.keystore.key", "ssl.keystore.key and ssl.keystore.certificate.chain belong together"
        )
    location = settings.optional_string("ssl.keystore.location")
    trusted = settings.optional_string("ssl.truststore.location")
    certificates = settings.optional_string("ssl.truststore.certificates")
    _check_store(settings, "ssl.keystore", key)
    _check_store(settings, "ssl.truststore", certificates)
    versions = settings.strings("ssl.enabled.protocols")
    if not versions:
        raise ConfigError("ssl.enabled.protocols", "ssl.enabled.protocols must name a version of TLS")
    return TlsFiles(
        key_type=_type(settings, "ssl.keystore"),
        trusted_type=_type(settings, "ssl.truststore"),
        trusted_password=settings.optional_string("ssl.truststore.password"),
        key_file=location,
        key=None if key is None else f"{_pem(key)}\n{_pem(chain or '')}\n",
        key_password=_key_password(settings),
        trusted_file=trusted,
        trusted=None if certificates is None else _pem(certificates),
        versions=versions,
    )


def _type(settings: Settings, store: str) -> str:
    return settings.string(f"{store}.type") if settings.optional_string(f"{store}.location") else PEM


def _key_password(settings: Settings) -> str | None:
    """Return the password of the key. As in Java that of a PKCS12 store is for the key in it, too."""
    password = settings.optional_string("ssl.key.password")
    if _type(settings, "ssl.keystore") != PKCS12:
        return password
    of_store = settings.optional_string("ssl.keystore.password")
    if password is not None and password != of_store:
        raise ConfigError(
            "ssl.key.password", "ssl.key.password and ssl.keystore.password must be equal for PKCS12"
        )
    return of_store


def _check_store(settings: Settings, store: str, text: str | None) -> None:
    """Raise ConfigError unless the store is a file in a known format, or given as ``text`` instead."""
    location, kind, password = f"{store}.location", f"{store}.type", f"{store}.password"
    if settings.optional_string(location) is None:
        return
    if text is not None:
        raise ConfigError(location, f"{location} and the PEM text are both given: give one of them")
    if settings.string(kind) not in (PEM, PKCS12):
        raise ConfigError(kind, f"{kind} must be PEM or PKCS12: JKS, the default, is not supported")
    if settings.string(kind) == PEM and settings.optional_string(password) is not None:
        raise ConfigError(password, f"{password} is for PKCS12: certificates in PEM files are not encrypted")


def _pem(text: str) -> str:
    """Return PEM text with its line breaks, which a properties file may have as ``\\n`` or as spaces."""
    return text.replace("\\n", "\n").replace(" -----END", "\n-----END").replace("----- ", "-----\n")
