"""The settings of OAUTHBEARER: what a broker and a client start with, and what is refused by name."""

from __future__ import annotations

import importlib.util

import pytest

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.oauth import OAuthSettings
from nilometer.client.settings import COMMON_KEYS, ClientSettings, OAuthLogin, client_security
from nilometer.config import ConfigDefinition, ConfigError
from nilometer.http.url import HttpUrl
from nilometer.security.sasl import OAUTHBEARER_MODULE

URL = "https://issuer.example:8443/keys"
PREFIX = "listener.name.sasl_plaintext."
OWN = f"{PREFIX}oauthbearer."
GIVEN = {
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:9092,SASL_PLAINTEXT://127.0.0.1:9093",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": URL,
    "org.apache.kafka.sasl.oauthbearer.allowed.urls": f"https://other.example,{URL}",
}
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured."
    "OAuthBearerUnsecuredValidatorCallbackHandler"
)


def oauth(**changes: str | None) -> OAuthSettings:
    texts = {key: text for key, text in (GIVEN | changes).items() if text is not None}
    found = BrokerConfig(texts).sasl["SASL_PLAINTEXT"].oauth
    assert found is not None
    return found


def test_the_defaults_are_kafkas() -> None:
    found = oauth()
    assert found.keys_url == HttpUrl("https", "issuer.example", 8443, "/keys")
    assert (found.refresh_ms, found.retry_backoff_ms, found.retry_backoff_max_ms) == (3_600_000, 100, 10_000)
    rules = found.rules
    assert (rules.issuer, rules.audiences, rules.clock_skew_s) == (None, (), 30)
    assert (rules.subject_claim, rules.scope_claim) == ("sub", "scope")


def test_a_mechanism_of_a_listener_has_its_own_settings() -> None:
    changes = {
        f"{OWN}sasl.oauthbearer.expected.audience": "a,b",
        f"{PREFIX}sasl.oauthbearer.expected.issuer": "of the listener",
        "sasl.oauthbearer.expected.issuer": "of the broker",
        f"{OWN}sasl.oauthbearer.sub.claim.name": "azp",
        f"{OWN}sasl.jaas.config": f"{OAUTHBEARER_MODULE} required;",
        f"{OWN}connections.max.reauth.ms": "5000",
    }
    rules = oauth(**changes).rules
    assert (rules.audiences, rules.issuer, rules.subject_claim) == (("a", "b"), "of the listener", "azp")
    assert BrokerConfig(GIVEN | changes).sasl["SASL_PLAINTEXT"].max_reauth_ms == {"OAUTHBEARER": 5000}


def test_keys_in_a_file() -> None:
    url = "file:///etc/keys.json"
    changes = {
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": url,
    }
    assert (oauth(**changes).keys_url, oauth(**changes).keys_file) == (None, "/etc/keys.json")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": None}, "never accepted"),
        ({"org.apache.kafka.sasl.oauthbearer.allowed.urls": None}, "none of the URLs"),
        ({"org.apache.kafka.sasl.oauthbearer.allowed.urls": "https://issuer.example"}, "none of the URLs"),
        ({f"{OWN}sasl.jaas.config": "x.PlainLoginModule required;"}, "login module of OAUTHBEARER"),
        ({f"{OWN}sasl.oauthbearer.clock.skew.seconds": "-1"}, "at least 0"),
        ({f"{OWN}sasl.oauthbearer.nothing": "1"}, "cannot be set"),
        ({"sasl.oauthbearer.jwt.validator.class": "example.Validator"}, "built in"),
        (
            {f"{OWN}sasl.server.callback.handler.class": UNSECURED},
            "tokens are verified",
        ),
        (
            {f"{OWN}sasl.jaas.config": f'{OAUTHBEARER_MODULE} required ssl.truststore.location="/x.jks";'},
            "PEM",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_start(changes: dict[str, str | None], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        oauth(**changes)


@pytest.mark.parametrize("url", ["ftp://a/b", "https:///b", "file://relative", "keys.json"])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    changes = {
        "sasl.oauthbearer.jwks.endpoint.url": url,
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": url,
    }
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
        oauth(**changes)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"nilometer\[oauth\]"):
        oauth()


def test_brokers_connect_to_each_other_by_an_allowed_token_endpoint_only() -> None:
    token_url = "https://issuer.example:8443/token"
    given = GIVEN | {
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token_url,
        "sasl.oauthbearer.client.credentials.client.id": "brokers",
        "sasl.oauthbearer.client.credentials.client.secret": "a secret",
    }
    with pytest.raises(ConfigError, match="none of the URLs"):
        BrokerConfig(given)
    allowed = given | {"org.apache.kafka.sasl.oauthbearer.allowed.urls": f"{URL},{token_url}"}
    security = BrokerConfig(allowed).inter_broker_security
    assert security.oauth is not None and security.oauth.client_id == "brokers"
    assert "a secret" not in repr(security)


CLIENT = ConfigDefinition.of("client", COMMON_KEYS)
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"


def client(**changes: str) -> OAuthLogin:
    given = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"} | changes
    login = client_security(ClientSettings(CLIENT, given)).oauth
    assert login is not None
    return login


def test_a_client_has_its_credentials_in_settings_or_in_the_login_module() -> None:
    module = f'{OAUTHBEARER_MODULE} required clientId="c" clientSecret="s" scope="x";'
    login = client(**{TOKEN_URL: "http://127.0.0.1:1/token", "sasl.jaas.config": module})
    assert (login.client_id, login.client_secret, login.scope) == ("c", "s", "x")
    assert client(**{TOKEN_URL: "file:///run/token"}).token_file == "/run/token"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {TOKEN_URL: "http://127.0.0.1:1/token"},
        {TOKEN_URL: "gopher://x"},
        {TOKEN_URL: "file://token"},
        {
            TOKEN_URL: "file:///t",
            "sasl.jaas.config": 'x.ScramLoginModule required username="a" password="b";',
        },
    ],
)
def test_a_client_without_a_token_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        client(**changes)
