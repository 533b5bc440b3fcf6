"""The TLS settings of one listener, checked: keys and certificates are read when the listener opens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from nilometer.client.settings.client_security import tls_files
from nilometer.config import ConfigError, Settings
from nilometer.runtime.tls import ServerTls
from nilometer.security.principal_mapping import PrincipalMapping
from nilometer.security.protocol import SecurityProtocol

MAPPING_RULES = "ssl.principal.mapping.rules"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    server: ServerTls
    mapping: PrincipalMapping
    handshakes_max_per_address: int
    """How many handshakes an address may have open on the listener."""


def tls_settings(
    settings: Settings, own: Collection[str], listener: str, protocol: SecurityProtocol
) -> TlsSettings:
    """Return the TLS settings of ``listener``, whose effective settings are ``settings``. Raises ConfigError.

    ``own``: the keys that are set for this listener alone. With SASL a client is known by its user, and as in
    Kafka only the listener's own ``ssl.client.auth`` asks for a certificate.
    """
    files = tls_files(settings)
    if files.key_file is None and files.key is None:
        raise ConfigError(
            "ssl.keystore.location",
            f"the listener {listener} needs a private key: "
            "set ssl.keystore.location, and ssl.keystore.type to PEM or PKCS12",
        )
    text = settings.string(MAPPING_RULES)
    try:
        mapping = PrincipalMapping(text)
    except ValueError as error:
        raise ConfigError(MAPPING_RULES, f"{MAPPING_RULES} is not valid: {error}") from None
    asks = not protocol.has_sasl or "ssl.client.auth" in own
    client_auth = settings.string("ssl.client.auth") if asks else "none"
    if client_auth != "none" and files.trusted_file is None and files.trusted is None:
        raise ConfigError(
            "ssl.truststore.location",
            f"ssl.client.auth of the listener {listener} is {client_auth}: "
            "set ssl.truststore.location to the authorities of its clients",
        )
    timeout_ms = settings.integer("nilometer.authentication.timeout.ms")
    server = ServerTls(files=files, client_auth=client_auth, handshake_timeout_ms=timeout_ms)
    return TlsSettings(server, mapping, settings.integer("nilometer.unauthenticated.connections.max.per.ip"))
