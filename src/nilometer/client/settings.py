"""The settings that every client has, under Kafka's names: which cluster and how to wait, how a client
connects and who its user is; and the values that are given for one client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nilometer.config import ConfigDefinition, ConfigError, ConfigValue, Settings, key_table
from nilometer.http.url import HttpUrl, parse_url
from nilometer.runtime.tls import PEM, PKCS12, ClientTls, TlsFiles
from nilometer.security.oauthbearer import OAUTHBEARER
from nilometer.security.principal import SecurityProtocol
from nilometer.security.sasl import (
    OAUTHBEARER_MODULE,
    PLAIN,
    PLAIN_MODULE,
    SCRAM_MODULE,
    InvalidJaas,
    LoginModule,
    parse_jaas,
)
from nilometer.security.scram import TOKEN_EXTENSION, ScramMechanism

# How a client connects: security protocol, TLS, and its user, from settings with Kafka's names. Brokers
# share the keys of TLS and of the token endpoint.

# The keys of TLS that clients and brokers share, under Kafka's names.

HTTPS = "https"


def _why_no_store(value: ConfigValue) -> str | None:
    known = value in (PEM, PKCS12)
    return None if known else "must be PEM or PKCS12: convert JKS stores with keytool -importkeystore"


STORE_KEYS = key_table(
    f"""
ssl.keystore.location: string
    The file with the own private key and certificate chain.
ssl.keystore.type: string = JKS
    The format of ssl.keystore.location, PEM or PKCS12: must be given.
ssl.keystore.password: string secret
    The password of a PKCS12 key store.
ssl.key.password: string secret
    The password of the private key in a PEM file.
ssl.keystore.key: string secret
    The private key as PEM text, in place of a file.
ssl.keystore.certificate.chain: string
    The certificate chain of ssl.keystore.key, as PEM text.
ssl.truststore.location: string
    The file with the certificates of trusted authorities.
ssl.truststore.type: string = JKS
    The format of ssl.truststore.location, PEM or PKCS12: must be given.
ssl.truststore.password: string secret
    The password of a PKCS12 trust store.
ssl.truststore.certificates: string
    The certificates of trusted authorities, as PEM text.
ssl.enabled.protocols: list (TLSv1.2|TLSv1.3) = TLSv1.2,TLSv1.3
    The versions of TLS that are accepted.
ssl.endpoint.identification.algorithm: string = {HTTPS}
    https: the certificate of a broker that is connected to must be for its host.
""",
    choices={"ssl.endpoint.identification.algorithm": (HTTPS, "")},
    checks={"ssl.keystore.type": _why_no_store, "ssl.truststore.type": _why_no_store},
)


# What the keys of TLS that clients and brokers share result in.


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


# Where a client of OAUTHBEARER gets its tokens: a file, or an issuer's token endpoint (KIP-768).

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
URL_ENCODE = "sasl.oauthbearer.header.urlencode"
FILE_PREFIX = "file://"
_TLS_OPTIONS = ConfigDefinition.of("option of OAuthBearerLoginModule", STORE_KEYS)

OAUTH_LOGIN_KEYS = key_table(
    f"""
{TOKEN_URL}: string
    Where a client of OAUTHBEARER gets its token: a URL of https or http, or file:///path.
{CLIENT_ID}: string
    The client's id at the token endpoint.
{CLIENT_SECRET}: string secret
    The client's secret at the token endpoint.
{SCOPE}: string
    The scope that the token endpoint is asked for.
{URL_ENCODE}: boolean = false
    Whether id and secret are URL-encoded in the header Authorization, as RFC 6749 demands.
"""
)


@dataclass(slots=True)
class CachedToken:
    """The last token from a token endpoint, and the monotonic time until which it is used."""

    token: str = field(default="", repr=False)
    use_until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthLogin:
    endpoint: HttpUrl | None
    """The token endpoint; None: the token is in ``token_file``."""
    token_file: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str | None = None
    url_encodes: bool = False
    """Whether id and secret are URL-encoded in the header Authorization."""
    tls: ClientTls
    """The authorities that are trusted for ``endpoint``."""
    cached: CachedToken = field(default_factory=CachedToken, compare=False, repr=False)


def oauth_login(settings: Settings, options: Mapping[str, str]) -> OAuthLogin:
    """Return the login. ``options``: of the login module, as Kafka's older clients have them.

    Raises ConfigError.
    """
    url = (settings.optional_string(TOKEN_URL) or "").strip()
    if not url:
        raise ConfigError(TOKEN_URL, f"OAUTHBEARER needs {TOKEN_URL}: a token endpoint, or file:///path")
    tls = oauth_tls(options)
    if url.startswith(FILE_PREFIX):
        return OAuthLogin(endpoint=None, token_file=file_path(TOKEN_URL, url), tls=tls)
    try:
        endpoint = parse_url(url)
    except ValueError as error:
        raise ConfigError(TOKEN_URL, f"{TOKEN_URL} {error}, nor file:///path") from None
    client_id = settings.optional_string(CLIENT_ID) or options.get("clientId", "")
    client_secret = settings.optional_string(CLIENT_SECRET) or options.get("clientSecret", "")
    if not client_id or not client_secret:
        raise ConfigError(CLIENT_ID, f"{TOKEN_URL} needs {CLIENT_ID} and {CLIENT_SECRET}")
    return OAuthLogin(
        endpoint=endpoint,
        client_id=client_id,
        client_secret=client_secret,
        scope=settings.optional_string(SCOPE) or options.get("scope"),
        url_encodes=settings.boolean(URL_ENCODE),
        tls=tls,
    )


def file_path(key: str, url: str) -> str:
    """Return the path in a URL of a file. Raises ConfigError, which names ``key``."""
    path = url.removeprefix(FILE_PREFIX)
    if not path.startswith("/"):
        raise ConfigError(key, f"{key} is {url}, which is not of the form file:///absolute/path")
    return path


def oauth_tls(options: Mapping[str, str]) -> ClientTls:
    """Return how to connect to an issuer of tokens: by the login module's options ``ssl.*``, as in Kafka.

    Without them the system's authorities are trusted. Raises ConfigError.
    """
    texts = {name: text for name, text in options.items() if name.startswith("ssl.")}
    return ClientTls(files=tls_files(Settings(_TLS_OPTIONS, texts)))


# How a client connects: security protocol, TLS, and its user, from settings with Kafka's names.

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
MODULES = {
    PLAIN: PLAIN_MODULE,
    **{mechanism.value: SCRAM_MODULE for mechanism in ScramMechanism},
    OAUTHBEARER: OAUTHBEARER_MODULE,
}
"""The login module of each mechanism that clients support."""

SECURITY_KEYS = (
    *key_table(
        f"""
{PROTOCOL}: string = {SecurityProtocol.PLAINTEXT.value}
    The protocol of the brokers' listener.
{MECHANISM}: string = GSSAPI
    The SASL mechanism: {", ".join(MODULES)}.
{JAAS}: string secret
    The login module, with the user's name and password.
""",
        choices={"security.protocol": tuple(protocol.value for protocol in SecurityProtocol)},
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


# The settings of one client, with Kafka's keys: the keys that every client has, and the given values,
# checked, with defaults for the others.

# The settings of one client, with Kafka's keys: the given values, checked, with defaults for the others.

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


GivenValue = str | int | float | bool | Sequence[str]
GivenConfig = Mapping[str, GivenValue]


class ClientSettings(Settings):
    def __init__(self, definition: ConfigDefinition, given: GivenConfig) -> None:
        super().__init__(definition, {name: _text(value) for name, value in given.items()})


def _text(value: GivenValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    return ",".join(value)


# The keys that every client has, with Kafka's names, defaults and limits.


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


COMMON_KEYS = (
    *key_table(
        """
bootstrap.servers: list
    Brokers to connect to first, as host:port. The client learns the others from them.
client.id: string = nilometer
    The client id sent with each request; it appears in the brokers' logs.
request.timeout.ms: int 1.. = 30_000
    How long to wait for the response to one request.
retry.backoff.ms: long 0.. = 100
    The pause before the first retry; it doubles with each further failure.
retry.backoff.max.ms: long 0.. = 1000
    The longest pause between retries.
reconnect.backoff.ms: long 0.. = 50
    The pause before connecting again to a broker; it doubles with each failure.
reconnect.backoff.max.ms: long 0.. = 1000
    The longest pause between attempts to connect to a broker.
socket.connection.setup.timeout.ms: long 1.. = 10_000
    How long to wait for a connection to be set up.
metadata.max.age.ms: long 0.. = 300_000
    The age after which metadata is fetched again.
""",
        checks={"bootstrap.servers": _servers},
    ),
    *SECURITY_KEYS,
)

(API_TIMEOUT,) = key_table(
    """
default.api.timeout.ms: int 0.. = 60_000
    How long an operation may take, all its retries included.
"""
)
"""A key of the clients that retry whole operations: consumer and admin."""
