"""The SASL settings of one listener, checked: what is not supported is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nilometer.broker.settings.listener_overrides import PREFIX
from nilometer.broker.settings.listeners import Endpoint
from nilometer.broker.settings.oauth_settings import OAuthSettings, check_allowed, oauth_settings
from nilometer.broker.settings.security_config_keys import MECHANISM_KEYS, SASL_KEYS
from nilometer.client.settings.client_security import TOKEN_URL, ClientSecurity, security_of
from nilometer.config import ConfigDefinition, ConfigError, Settings
from nilometer.security.jaas import PLAIN_MODULE, InvalidJaas, LoginModule, parse_jaas
from nilometer.security.oauthbearer import OAUTHBEARER
from nilometer.security.plain import PLAIN
from nilometer.security.scram import ScramMechanism

SCRAM_MECHANISMS = tuple(mechanism.value for mechanism in ScramMechanism)
SASL_MECHANISMS = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
ENABLED = "sasl.enabled.mechanisms"
JAAS = "sasl.jaas.config"
INTER_BROKER_MECHANISM = "sasl.mechanism.inter.broker.protocol"
MAX_REAUTH = "connections.max.reauth.ms"
_OF_MECHANISMS = ConfigDefinition.of("broker", [key for key in SASL_KEYS if key.name in MECHANISM_KEYS])


@dataclass(frozen=True, slots=True)
class SaslSettings:
    mechanisms: tuple[str, ...]
    """Those that clients may use, in the order of the setting."""
    passwords: Mapping[str, str] = field(repr=False)
    """The passwords of PLAIN, by user."""
    receive_bytes_max: int
    failure_delay_ms: int
    timeout_ms: int
    unauthenticated_max_per_address: int
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict[str, int])
    """By mechanism, how long a session may last; 0: for as long as its credential is valid."""
    oauth: OAuthSettings | None = None
    """Of OAUTHBEARER, if that is enabled."""


def sasl_settings(settings: Settings, texts: Mapping[str, str], listener: str) -> SaslSettings:
    """Return the SASL settings of ``listener``, whose effective settings are ``settings``.

    ``texts`` are the same, and those of single mechanisms, which have the mechanism's name in small letters
    before their key. Raises ConfigError.
    """
    mechanisms = tuple(name.upper() for name in settings.strings(ENABLED))
    for name in mechanisms:
        if name not in SASL_MECHANISMS:
            raise ConfigError(
                ENABLED,
                f"the SASL mechanism {name} of the listener {listener} is not supported; "
                f"set {ENABLED} to some of {', '.join(SASL_MECHANISMS)}",
            )
    if not mechanisms:
        raise ConfigError(ENABLED, f"the listener {listener} has no SASL mechanism; set {ENABLED}")
    return SaslSettings(
        mechanisms,
        _passwords(texts, listener) if PLAIN in mechanisms else {},
        settings.integer("sasl.server.max.receive.size"),
        settings.integer("connection.failed.authentication.delay.ms"),
        settings.integer("nilometer.authentication.timeout.ms"),
        settings.integer("nilometer.unauthenticated.connections.max.per.ip"),
        {name: mechanism_settings(texts, name).integer(MAX_REAUTH) for name in mechanisms},
        _oauth(texts, listener) if OAUTHBEARER in mechanisms else None,
    )


def mechanism_settings(texts: Mapping[str, str], mechanism: str) -> Settings:
    """Return what may be set for single mechanisms, else for the listener, else for the broker."""
    own = f"{mechanism.lower()}."
    given = {key: texts.get(own + key, texts.get(key)) for key in MECHANISM_KEYS}
    return Settings(_OF_MECHANISMS, {key: text for key, text in given.items() if text is not None})


def _oauth(texts: Mapping[str, str], listener: str) -> OAuthSettings:
    module = login_module(texts, listener, OAUTHBEARER)
    return oauth_settings(mechanism_settings(texts, OAUTHBEARER), module, jaas_key(listener, OAUTHBEARER))


def _passwords(texts: Mapping[str, str], listener: str) -> dict[str, str]:
    module = login_module(texts, listener, PLAIN)
    key = jaas_key(listener, PLAIN)
    if module is None:
        raise ConfigError(
            key, f'{key} must be given: {PLAIN_MODULE} required user_NAME="password" …; for each user'
        )
    if module.name != PLAIN_MODULE:
        raise ConfigError(key, f"{key}: the login module of PLAIN is {PLAIN_MODULE}")
    return module.users()


def login_module(texts: Mapping[str, str], listener: str, mechanism: str) -> LoginModule | None:
    """Return the login module of a mechanism; None if none is given. Raises ConfigError."""
    text = texts.get(f"{mechanism.lower()}.{JAAS}")
    if text is None:
        return None
    try:
        return parse_jaas(text)
    except InvalidJaas as error:
        key = jaas_key(listener, mechanism)
        raise ConfigError(key, f"{key} is not valid: {error}") from None


def jaas_key(listener: str, mechanism: str) -> str:
    return f"{PREFIX}{listener.lower()}.{mechanism.lower()}.{JAAS}"


def inter_broker_security(settings: Settings, texts: Mapping[str, str], listener: Endpoint) -> ClientSecurity:
    """Return how a broker connects to the others by ``listener``: its key, and its user of SASL.

    The user is in the login module of ``sasl.mechanism.inter.broker.protocol``, which must be one of the
    mechanisms that are enabled: the other brokers have the same listener. Raises ConfigError.
    """
    mechanism = settings.string(INTER_BROKER_MECHANISM).upper() if listener.protocol.has_sasl else None
    module = None if mechanism is None else login_module(texts, listener.name, mechanism)
    key = jaas_key(listener.name, mechanism or "")
    if mechanism == OAUTHBEARER:
        check_allowed(settings, TOKEN_URL)
    security = security_of(settings, listener.protocol, mechanism, module, INTER_BROKER_MECHANISM, key)
    enabled = tuple(name.upper() for name in settings.strings(ENABLED))
    if mechanism is not None and mechanism not in enabled:
        raise ConfigError(
            INTER_BROKER_MECHANISM,
            f"{INTER_BROKER_MECHANISM} is {mechanism}, which the listener between brokers, {listener.name}, "
            f"does not enable; add it to {ENABLED}: {', '.join(enabled)}",
        )
    return security
