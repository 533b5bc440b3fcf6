"""The keys of OAUTHBEARER listeners, under Kafka's names. All may be set for a listener or its mechanism."""

from __future__ import annotations

from nilometer.config import ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue

_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
VALIDATORS = (f"{_PACKAGE}.DefaultJwtValidator", f"{_PACKAGE}.BrokerJwtValidator")
CALLBACK_HANDLER = f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"


def _why_no_validator(value: ConfigValue) -> str | None:
    return None if value in VALIDATORS else f"only {' and '.join(VALIDATORS)} are built in"


def _why_no_handler(value: ConfigValue) -> str | None:
    return None if value == CALLBACK_HANDLER else f"only {CALLBACK_HANDLER} is built in: tokens are verified"


OAUTH_KEYS = [
    ConfigKey(
        name="sasl.oauthbearer.jwks.endpoint.url",
        kind=ConfigKind.STRING,
        default=None,
        doc="Where the public keys of the tokens' issuer are (JWKS): a URL of https, http or file.",
    ),
    ConfigKey(
        name="org.apache.kafka.sasl.oauthbearer.allowed.urls",
        kind=ConfigKind.LIST,
        default=(),
        doc="The URLs that sasl.oauthbearer.*.url may be set to; in Kafka a property of the Java machine.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.jwks.endpoint.refresh.ms",
        kind=ConfigKind.LONG,
        default=3_600_000,
        doc="How often the public keys are read again.",
        minimum=1000,
    ),
    ConfigKey(
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        kind=ConfigKind.LONG,
        default=100,
        doc="The first pause after the public keys could not be read; it doubles with each attempt.",
        minimum=1,
    ),
    ConfigKey(
        name="sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        kind=ConfigKind.LONG,
        default=10_000,
        doc="The longest pause between two attempts to read the public keys.",
        minimum=1,
    ),
    ConfigKey(
        name="sasl.oauthbearer.expected.audience",
        kind=ConfigKind.LIST,
        default=(),
        doc="A token must be for one of these audiences (aud); without any, it must not name an audience.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.expected.issuer",
        kind=ConfigKind.STRING,
        default=None,
        doc="The issuer (iss) that a token must have.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.scope.claim.name",
        kind=ConfigKind.STRING,
        default="scope",
        doc="The claim with the token's scopes, which must be texts.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.sub.claim.name",
        kind=ConfigKind.STRING,
        default="sub",
        doc="The claim with the name of the user.",
    ),
    ConfigKey(
        name="sasl.oauthbearer.clock.skew.seconds",
        kind=ConfigKind.INT,
        default=30,
        doc="By how much the clocks of the issuer and of this broker may differ.",
        minimum=0,
    ),
    ConfigKey(
        name="sasl.oauthbearer.jwt.validator.class",
        kind=ConfigKind.STRING,
        default=VALIDATORS[0],
        doc="How tokens are validated: Kafka's default, which is built in.",
        validate=_why_no_validator,
    ),
    ConfigKey(
        name="sasl.server.callback.handler.class",
        kind=ConfigKind.STRING,
        default=CALLBACK_HANDLER,
        doc="How tokens are validated, as Kafka calls it; only for OAUTHBEARER.",
        validate=_why_no_handler,
    ),
]
