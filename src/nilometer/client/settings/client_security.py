"""How a client connects: security protocol, TLS, and its user, from settings with Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass, field

from nilometer.client.settings.oauth_login import OAUTH_LOGIN_KEYS, OAuthLogin, oauth_login
from nilometer.client.settings.tls_files import client_tls
from nilometer.client.settings.tls_keys import STORE_KEYS
from nilometer.config import ConfigError, ConfigKey, ConfigKind, Settings
from nilometer.runtime.tls import ClientTls
from nilometer.security.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    InvalidJaas,
    LoginModule,
    parse_jaas,
)
from nilometer.security.oauthbearer import OAUTHBEARER
from nilometer.security.plain import PLAIN
from nilometer.security.protocol import SecurityProtocol
from nilometer.security.scram import TOKEN_EXTENSION, ScramMechanism

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
MODULES = {
    PLAIN: PLAIN_MODULE,
    **{mechanism.value: SCRAM_MODULE for mechanism in ScramMechanism},
    OAUTHBEARER: OAUTHBEARER_MODULE,
}
"""The login module of each mechanism that clients support."""

SECURITY_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        name=PROTOCOL,
        kind=ConfigKind.STRING,
        default=SecurityProtocol.PLAINTEXT.value,
        choices=tuple(protocol.value for protocol in SecurityProtocol),
        doc="The protocol of the brokers' listener.",
    ),
    ConfigKey(
        name=MECHANISM,
        kind=ConfigKind.STRING,
        default="GSSAPI",
        doc=f"The SASL mechanism: {', '.join(MODULES)}.",
    ),
    ConfigKey(
        name=JAAS,
        kind=ConfigKind.STRING,
        default=None,
        doc="The login module, with the user's name and password.",
        sensitive=True,
    ),
    *OAUTH_LOGIN_KEYS,
    *STORE_KEYS,
)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    tls: ClientTls | None = None
    mechanism: str | None = None
    """The SASL mechanism; None: the connection has no SASL."""
    user: str = ""
    password: str = field(default="", repr=False)
    by_token: bool = False
    """Whether the user is the id of a delegation token, and the password its HMAC in base 64 (KIP-48)."""
    oauth: OAuthLogin | None = None
    """Where the token of OAUTHBEARER comes from."""


NO_SECURITY = ClientSecurity()


def client_security(settings: Settings) -> ClientSecurity:
    """Return what the settings of a client say. Raises ConfigError."""
    protocol = SecurityProtocol(settings.string(PROTOCOL))
    mechanism = settings.string(MECHANISM) if protocol.has_sasl else None
    text = settings.optional_string(JAAS)
    if mechanism is None:
        return security_of(settings, protocol, None, None, MECHANISM, JAAS)
    try:
        module = None if text is None else parse_jaas(text)
    except InvalidJaas as error:
        raise ConfigError(JAAS, f"{JAAS} is not valid: {error}") from None
    return security_of(settings, protocol, mechanism, module, MECHANISM, JAAS)


def security_of(
    settings: Settings,
    protocol: SecurityProtocol,
    mechanism: str | None,
    module: LoginModule | None,
    mechanism_key: str,
    jaas_key: str,
) -> ClientSecurity:
    """Return the security of connections. ``module`` has the user; the keys are for ConfigError."""
    tls = client_tls(settings) if protocol.has_tls else None
    if mechanism is None:
        return ClientSecurity(tls)
    if mechanism not in MODULES:
        raise ConfigError(
            mechanism_key,
            f"the SASL mechanism {mechanism} is not supported; set {mechanism_key} to one of "
            f"{', '.join(MODULES)}",
        )
    wanted = MODULES[mechanism]
    if mechanism == OAUTHBEARER:
        if module is not None and module.name != wanted:
            raise ConfigError(jaas_key, f"{jaas_key} must be: {wanted} required;")
        login = oauth_login(settings, {} if module is None else module.options)
        return ClientSecurity(tls, mechanism, oauth=login)
    if module is None or module.name != wanted:
        raise ConfigError(jaas_key, f'{jaas_key} must be: {wanted} required username="…" password="…";')
    user, password = module.options.get("username", ""), module.options.get("password", "")
    if not user or not password:
        raise ConfigError(jaas_key, f"{jaas_key} needs a username and a password")
    by_token = wanted == SCRAM_MODULE and module.options.get(TOKEN_EXTENSION, "").lower() == "true"
    return ClientSecurity(tls, mechanism, user, password, by_token)
