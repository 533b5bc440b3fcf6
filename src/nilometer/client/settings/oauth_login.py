"""Where a client of OAUTHBEARER gets its tokens: a file, or an issuer's token endpoint (KIP-768)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nilometer.client.settings.key_kinds import boolean_key, text_key
from nilometer.client.settings.tls_files import tls_files
from nilometer.client.settings.tls_keys import STORE_KEYS
from nilometer.config import ConfigDefinition, ConfigError, ConfigKey, Settings
from nilometer.http.url import HttpUrl, parse_url
from nilometer.runtime.tls import ClientTls

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
URL_ENCODE = "sasl.oauthbearer.header.urlencode"
FILE_PREFIX = "file://"
_TLS_OPTIONS = ConfigDefinition.of("option of OAuthBearerLoginModule", STORE_KEYS)

OAUTH_LOGIN_KEYS: tuple[ConfigKey, ...] = (
    text_key(
        TOKEN_URL, "Where a client of OAUTHBEARER gets its token: a URL of https or http, or file:///path."
    ),
    text_key(CLIENT_ID, "The client's id at the token endpoint."),
    text_key(CLIENT_SECRET, "The client's secret at the token endpoint.", secret=True),
    text_key(SCOPE, "The scope that the token endpoint is asked for."),
    boolean_key(
        URL_ENCODE,
        False,
        "Whether id and secret are URL-encoded in the header Authorization, as RFC 6749 demands.",
    ),
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
