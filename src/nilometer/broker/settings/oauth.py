"""OAUTHBEARER on a listener: its keys with Kafka's names, and its settings, checked.

They say where the keys are by which tokens are verified, and which tokens are accepted. All may be set for a
listener or its mechanism.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from nilometer.client.settings import FILE_PREFIX, file_path, oauth_tls
from nilometer.config import ConfigError, ConfigValue, Settings, key_table
from nilometer.http.url import HttpUrl, parse_url
from nilometer.invariants import check
from nilometer.runtime.tls import ClientTls
from nilometer.security.oauthbearer import OAUTHBEARER, TokenRules
from nilometer.security.sasl import OAUTHBEARER_MODULE, LoginModule

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
VALIDATORS = (f"{_PACKAGE}.DefaultJwtValidator", f"{_PACKAGE}.BrokerJwtValidator")
CALLBACK_HANDLER = f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"


def _why_no_validator(value: ConfigValue) -> str | None:
    return None if value in VALIDATORS else f"only {' and '.join(VALIDATORS)} are built in"


def _why_no_handler(value: ConfigValue) -> str | None:
    return None if value == CALLBACK_HANDLER else f"only {CALLBACK_HANDLER} is built in: tokens are verified"


OAUTH_KEYS = key_table(
    f"""
sasl.oauthbearer.jwks.endpoint.url: string
    Where the public keys of the tokens' issuer are (JWKS): a URL of https, http or file.
org.apache.kafka.sasl.oauthbearer.allowed.urls: list =
    The URLs that sasl.oauthbearer.*.url may be set to; in Kafka a property of the Java machine.
sasl.oauthbearer.jwks.endpoint.refresh.ms: long 1000.. = 3_600_000
    How often the public keys are read again.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms: long 1.. = 100
    The first pause after the public keys could not be read; it doubles with each attempt.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: long 1.. = 10_000
    The longest pause between two attempts to read the public keys.
sasl.oauthbearer.expected.audience: list =
    A token must be for one of these audiences (aud); without any, it must not name an audience.
sasl.oauthbearer.expected.issuer: string
    The issuer (iss) that a token must have.
sasl.oauthbearer.scope.claim.name: string = scope
    The claim with the token's scopes, which must be texts.
sasl.oauthbearer.sub.claim.name: string = sub
    The claim with the name of the user.
sasl.oauthbearer.clock.skew.seconds: int 0.. = 30
    By how much the clocks of the issuer and of this broker may differ.
sasl.oauthbearer.jwt.validator.class: string = {VALIDATORS[0]}
    How tokens are validated: Kafka's default, which is built in.
sasl.server.callback.handler.class: string = {CALLBACK_HANDLER}
    How tokens are validated, as Kafka calls it; only for OAUTHBEARER.
""",
    checks={
        "sasl.oauthbearer.jwt.validator.class": _why_no_validator,
        "sasl.server.callback.handler.class": _why_no_handler,
    },
)


ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    rules: TokenRules
    keys_url: HttpUrl | None
    """Where the public keys are fetched; None: they are in ``keys_file``."""
    keys_file: str = ""
    tls: ClientTls
    """The authorities that are trusted for ``keys_url``: the system's, unless the login module has others."""
    refresh_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int

    @property
    def where(self) -> str:
        """Where the public keys are, for the log."""
        url = self.keys_url
        return self.keys_file if url is None else f"{url.scheme}://{url.authority}{url.target}"


def oauth_settings(settings: Settings, module: LoginModule | None, jaas_key: str) -> OAuthSettings:
    """Return the settings of OAUTHBEARER. ``module`` may have TLS options. Raises ConfigError."""
    if importlib.util.find_spec("joserfc") is None:
        raise ConfigError(
            "sasl.enabled.mechanisms",
            f"{OAUTHBEARER} needs the package joserfc: install nilometer[oauth]",
        )
    if module is not None and module.name != OAUTHBEARER_MODULE:
        raise ConfigError(jaas_key, f"{jaas_key}: the login module of {OAUTHBEARER} is {OAUTHBEARER_MODULE}")
    handler = settings.string("sasl.server.callback.handler.class")
    check(handler == CALLBACK_HANDLER, "another callback handler was refused", handler)
    validator = settings.string("sasl.oauthbearer.jwt.validator.class")
    check(validator in VALIDATORS, "another validator was refused", validator)
    keys_url, keys_file = _keys_location(settings)
    options: Mapping[str, str] = {} if module is None else module.options
    return OAuthSettings(
        rules=_rules(settings),
        keys_url=keys_url,
        keys_file=keys_file,
        tls=oauth_tls(options),
        refresh_ms=settings.integer("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
        retry_backoff_ms=settings.integer("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        retry_backoff_max_ms=settings.integer("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )


def _keys_location(settings: Settings) -> tuple[HttpUrl | None, str]:
    url = (settings.optional_string(JWKS_URL) or "").strip()
    if not url:
        raise ConfigError(
            JWKS_URL,
            f"{OAUTHBEARER} needs {JWKS_URL}: where the public keys of the tokens' issuer are. "
            "Tokens that are not signed are never accepted",
        )
    check_allowed(settings, JWKS_URL)
    if url.startswith(FILE_PREFIX):
        return None, file_path(JWKS_URL, url)
    try:
        return parse_url(url), ""
    except ValueError as error:
        raise ConfigError(JWKS_URL, f"{JWKS_URL} {error}, nor file:///path") from None


def check_allowed(settings: Settings, key: str) -> None:
    """Raise ConfigError if the URL in ``key`` is not one of those that may be used."""
    url = (settings.optional_string(key) or "").strip()
    if url and url not in settings.strings(ALLOWED_URLS):
        raise ConfigError(key, f"{key} is {url}, which is none of the URLs in {ALLOWED_URLS}")


def _rules(settings: Settings) -> TokenRules:
    return TokenRules(
        issuer=settings.optional_string("sasl.oauthbearer.expected.issuer") or None,
        audiences=settings.strings("sasl.oauthbearer.expected.audience"),
        subject_claim=settings.string("sasl.oauthbearer.sub.claim.name"),
        scope_claim=settings.string("sasl.oauthbearer.scope.claim.name"),
        clock_skew_s=settings.integer("sasl.oauthbearer.clock.skew.seconds"),
    )
