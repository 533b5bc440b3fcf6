"""SASL and TLS on the listeners: the keys with Kafka's names, and the settings of one listener, checked.

All may be set for single listeners: ``listener.name.NAME.KEY``. What is not supported is refused by name.
Keys and certificates are read when the listener opens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nilometer.broker.settings.listeners import Endpoint
from nilometer.broker.settings.oauth import OAUTH_KEYS, OAuthSettings, check_allowed, oauth_settings
from nilometer.client.settings import (
    OAUTH_LOGIN_KEYS,
    STORE_KEYS,
    TOKEN_URL,
    ClientSecurity,
    security_of,
    tls_files,
)
from nilometer.config import ConfigDefinition, ConfigError, Settings, key_table
from nilometer.runtime.tls import ServerTls
from nilometer.security.oauthbearer import OAUTHBEARER
from nilometer.security.principal import PrincipalMapping, SecurityProtocol
from nilometer.security.sasl import PLAIN, PLAIN_MODULE, InvalidJaas, LoginModule, parse_jaas
from nilometer.security.scram import ScramMechanism

SASL_KEYS = (
    *key_table(
        """
sasl.enabled.mechanisms: list = GSSAPI
    The SASL mechanisms that clients may use: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.
sasl.jaas.config: string secret
    The login module of one mechanism of one listener: its users, and this broker's own user.
sasl.mechanism.inter.broker.protocol: string = GSSAPI
    The SASL mechanism by which this broker authenticates to others; see sasl.enabled.mechanisms.
sasl.server.max.receive.size: int 1.. = 524_288
    The largest request that a connection may send before it has authenticated, in bytes.
connection.failed.authentication.delay.ms: int 0.. = 100
    How long a failed authentication waits for its response and the end of its connection.
connections.max.reauth.ms: long 0.. = 0
    A client must authenticate again within this time, or its connection is closed. 0: never.
nilometer.authentication.timeout.ms: long 100.. = 10_000
    A connection that has not authenticated within this time is closed; a TLS handshake has as much.
nilometer.unauthenticated.connections.max.per.ip: int 1.. = 200
    How many connections of one address may be open on a listener that have not authenticated yet: in
    their TLS handshake, or before their SASL login.
"""
    ),
    *OAUTH_KEYS,
    *OAUTH_LOGIN_KEYS,
)

TLS_KEYS = (
    *STORE_KEYS,
    *key_table(
        """
ssl.client.auth: string (none|requested|required) = none
    Whether clients of SSL listeners need a certificate, by which they are known.
ssl.principal.mapping.rules: string = DEFAULT
    How the subject of a client's certificate becomes the name of its user.
"""
    ),
)

CONNECTION_KEYS = ("max.connections", "max.connection.creation.rate")
LISTENER_KEYS = frozenset([*CONNECTION_KEYS, *(key.name for key in [*SASL_KEYS, *TLS_KEYS])]) - {
    "sasl.mechanism.inter.broker.protocol"
}
"""The keys that may be set for a single listener."""
MECHANISM_KEYS = frozenset(
    {"sasl.jaas.config", "connections.max.reauth.ms", *(key.name for key in OAUTH_KEYS)}
)
"""The keys that may be set for a single mechanism of a listener."""


PREFIX = "listener.name."


def split_overrides(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings of the broker, and those of single listeners with their whole keys."""
    broker = {key: text for key, text in texts.items() if not key.startswith(PREFIX)}
    return broker, {key: text for key, text in texts.items() if key.startswith(PREFIX)}


def overrides_by_listener(
    given: Mapping[str, str], names: Iterable[str], mechanisms: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return the settings of single listeners by listener name, their keys without the prefix.

    ``given`` is the second result of :func:`split_overrides`, ``names`` are the listeners'. Raises
    ConfigError for a key that a listener or a mechanism cannot have, and for an unknown listener.
    """
    prefixes = {f"{PREFIX}{name.lower()}.": name for name in names}
    heads = tuple(f"{mechanism.lower()}." for mechanism in mechanisms)
    found: dict[str, dict[str, str]] = {name: {} for name in prefixes.values()}
    for key, text in given.items():
        prefix = max((one for one in prefixes if key.startswith(one)), key=len, default=None)
        if prefix is None:
            raise ConfigError(key, f"{key}: no listener has this name; there are {', '.join(found)}")
        rest = key.removeprefix(prefix)
        head = next((head for head in heads if rest.startswith(head)), "")
        if rest.removeprefix(head) not in (MECHANISM_KEYS if head else LISTENER_KEYS):
            raise ConfigError(key, f"{key}: {rest} cannot be set for a single listener")
        found[prefixes[prefix]][rest] = text
    return found


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
    """Return the settings of ``mechanism``: each is its own in ``texts``, else that of all mechanisms.

    ``texts`` are the settings of a listener, which include the broker's.
    """
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


def own_security(
    settings: Settings,
    texts: Mapping[str, str],
    listener: Endpoint,
    mechanism_key: str = INTER_BROKER_MECHANISM,
    *,
    listens: bool = True,
) -> ClientSecurity:
    """Return how a broker connects to the others by ``listener``: its key, and its user of SASL.

    The user is in the login module of ``mechanism_key``. The mechanism must be one of those that are enabled,
    if this broker ``listens`` there itself: the others have the same listener. Raises ConfigError.
    """
    mechanism = settings.string(mechanism_key).upper() if listener.protocol.has_sasl else None
    module = None if mechanism is None else login_module(texts, listener.name, mechanism)
    key = jaas_key(listener.name, mechanism or "")
    if mechanism == OAUTHBEARER:
        check_allowed(settings, TOKEN_URL)
    security = security_of(settings, listener.protocol, mechanism, module, mechanism_key, key)
    enabled = tuple(name.upper() for name in settings.strings(ENABLED))
    if mechanism is not None and listens and mechanism not in enabled:
        raise ConfigError(
            mechanism_key,
            f"{mechanism_key} is {mechanism}, which the listener {listener.name} does not enable; add it to "
            f"{ENABLED}: {', '.join(enabled)}",
        )
    return security


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
