"""What the keys of TLS that clients and brokers share result in."""

from __future__ import annotations

from nilometer.config import ConfigError, Settings
from nilometer.runtime.tls import ClientTls, TlsFiles


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
    _check_store(settings, "ssl.keystore.location", "ssl.keystore.type", key)
    _check_store(settings, "ssl.truststore.location", "ssl.truststore.type", certificates)
    versions = settings.strings("ssl.enabled.protocols")
    if not versions:
        raise ConfigError("ssl.enabled.protocols", "ssl.enabled.protocols must name a version of TLS")
    return TlsFiles(
        key_file=location,
        key=None if key is None else f"{_pem(key)}\n{_pem(chain or '')}\n",
        key_password=settings.optional_string("ssl.key.password"),
        trusted_file=trusted,
        trusted=None if certificates is None else _pem(certificates),
        versions=versions,
    )


def _check_store(settings: Settings, location: str, kind: str, text: str | None) -> None:
    """Raise ConfigError unless the store at ``location`` is a PEM file, or given as ``text`` instead."""
    if settings.optional_string(location) is None:
        return
    if text is not None:
        raise ConfigError(location, f"{location} and the PEM text are both given: give one of them")
    if settings.string(kind) != "PEM":
        raise ConfigError(kind, f"{kind} must be PEM: JKS, the default, and PKCS12 are not supported")


def _pem(text: str) -> str:
    """Return PEM text with its line breaks, which a properties file may have as ``\\n`` or as spaces."""
    return text.replace("\\n", "\n").replace(" -----END", "\n-----END").replace("----- ", "-----\n")
