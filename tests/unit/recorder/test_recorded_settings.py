"""What a recording says of a broker's settings, without secrets."""

from __future__ import annotations

import pytest

from nilometer.recorder.folder import LEFT_OUT, NO_STORE, new_header
from nilometer.runtime.runtime import SystemClock

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("listeners", "PLAINTEXT://127.0.0.1:9092,SSL://host:9093", None),
        ("log.dirs", "/data/a?b", None),
        ("ssl.keystore.certificate.chain", CERTIFICATE, None),
        ("ssl.keystore.certificate.chain", CERTIFICATE + KEY, CERTIFICATE + "\n"),
        ("ssl.truststore.certificates", KEY + CERTIFICATE, "\n" + CERTIFICATE),
        ("ssl.truststore.certificates", CERTIFICATE + KEY[:50], CERTIFICATE),
        (
            "sasl.oauthbearer.jwks.endpoint.url",
            "https://joe:password@issuer/keys?token=secret",
            f"https://issuer/keys?{LEFT_OUT}",
        ),
        ("ssl.key.password", "secret", LEFT_OUT),
        ("nilometer.tier.uri", "s3://id:key@bucket", NO_STORE),
    ],
)
def test_secrets_are_left_out_of_all_settings(name: str, value: str, shown: str | None) -> None:
    sensitive = {"ssl.key.password", "nilometer.tier.uri"}
    header = new_header({name: value}, sensitive, SystemClock(), 100)
    assert header.settings == {name: value if shown is None else shown}
