"""Tokens: the claims that are accepted, the signatures that are verified, and hostile tokens of each kind."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from joserfc import jwk, jws

from nilometer.security.oauthbearer import BearerToken, InvalidToken, TokenRules, UnknownKey, check_claims
from nilometer.security.signing_keys import (
    KEYS_MAX,
    KEYS_TRIED_MAX,
    NO_KEYS,
    TOKEN_CHARACTERS_MAX,
    InvalidKeys,
    parse_keys,
)
from support.issuer import ec_key, jwks, rsa_key, signed

NOW_MS = 1_800_000_000_000
NOW_S = NOW_MS // 1000
RULES = TokenRules(issuer="issuer", audiences=("brokers", "others"))
GOOD: dict[str, object] = {
    "iss": "issuer",
    "aud": ["x", "brokers"],
    "sub": " alice ",
    "iat": NOW_S - 60,
    "exp": NOW_S + 60,
}


def changed(**changes: object) -> dict[str, object]:
    return {name: value for name, value in (GOOD | changes).items() if value is not None}


def encoded(value: object) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


# ── claims


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aud": "others"},
        {"exp": NOW_S + 0.5},
        {"exp": NOW_S - 29, "iat": NOW_S - 60},
        {"nbf": NOW_S + 30},
        {"iat": NOW_S + 20},
        {"scope": "read write"},
        {"scope": ["read", "write"]},
        {"scope": []},
    ],
)
def test_good_claims(changes: dict[str, object]) -> None:
    token = check_claims(changed(**changes), RULES, NOW_MS)
    assert token.subject == "alice"
    assert token.expires_ms == int(changed(**changes)["exp"]) * 1000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"exp": None}, "exp is missing"),
        ({"iat": None}, "iat is missing"),
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": NOW_S + 10, "nbf": NOW_S + 20}, "before it is valid"),
        ({"exp": NOW_S, "iat": NOW_S + 1}, "before it is valid"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"exp": "4000000000"}, "exp is not a number"),
        ({"exp": True}, "exp is not a number"),
        ({"exp": float("inf")}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"exp": 10**30}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"iat": -1}, "iat is not a time"),
        ({"nbf": []}, "nbf is not a number"),
        ({"iss": None}, "iss"),
        ({"iss": "Issuer"}, "iss"),
        ({"iss": ["issuer"]}, "iss"),
        ({"aud": None}, "aud"),
        ({"aud": "broker"}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": [["brokers"]]}, "aud"),
        ({"aud": {"brokers": 1}}, "aud"),
        ({"sub": None}, "sub"),
        ({"sub": "  "}, "sub"),
        ({"sub": ["alice"]}, "sub"),
        ({"scope": 5}, "scope"),
        ({"scope": " "}, "scope"),
        ({"scope": ["a", "a"]}, "scope"),
        ({"scope": ["a", 1]}, "scope"),
    ],
)
def test_bad_claims(changes: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidToken, match=why):
        check_claims(changed(**changes), RULES, NOW_MS)


def test_without_an_expected_audience_a_token_for_one_is_refused_as_by_kafka() -> None:
    assert check_claims(changed(aud=None, iss=None), TokenRules(), NOW_MS).subject == "alice"
    with pytest.raises(InvalidToken, match="names none"):
        check_claims(GOOD, TokenRules(), NOW_MS)


def test_claims_may_have_other_names_and_the_clock_another_tolerance() -> None:
    rules = TokenRules(subject_claim="azp", scope_claim="scp", clock_skew_s=0)
    claims = changed(aud=None, sub=None, azp="app", scp="x", scope=5)
    assert check_claims(claims, rules, NOW_MS) == BearerToken("app", NOW_MS + 60_000)
    with pytest.raises(InvalidToken, match="expired"):
        check_claims(claims | {"exp": NOW_S}, rules, NOW_MS)


# ── signatures


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
@pytest.mark.parametrize("kid", ["one", None])
def test_rsa_signatures(algorithm: str, kid: str | None) -> None:
    keys = parse_keys(jwks(other=ec_key(), another=rsa_key(1), one=rsa_key()))
    assert keys.verified_claims(signed(rsa_key(), GOOD, kid=kid, alg=algorithm, typ="at+jwt")) == GOOD


@pytest.mark.parametrize(("algorithm", "curve"), [("ES256", "P-256"), ("ES384", "P-384"), ("ES512", "P-521")])
def test_signatures_of_elliptic_curves(algorithm: str, curve: str) -> None:
    keys = parse_keys(jwks(one=ec_key(curve)))
    assert keys.verified_claims(signed(ec_key(curve), GOOD, alg=algorithm)) == GOOD


def test_a_key_that_is_not_known_is_told_apart_from_a_wrong_signature() -> None:
    keys = parse_keys(jwks(one=rsa_key()))
    with pytest.raises(UnknownKey):
        keys.verified_claims(signed(rsa_key(), GOOD, kid="two"))
    with pytest.raises(InvalidToken, match="signature") as wrong:
        keys.verified_claims(signed(rsa_key(1), GOOD))
    assert not isinstance(wrong.value, UnknownKey)
    with pytest.raises(UnknownKey):
        NO_KEYS.verified_claims(signed(rsa_key(), GOOD, kid=None))


@pytest.mark.parametrize("kid", [None, "same"])
def test_a_token_that_names_no_single_key_is_tried_with_few(
    kid: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    verify = jws.deserialize_compact

    def counted(*arguments: Any, **named: Any) -> Any:
        tried.append(arguments)
        return verify(*arguments, **named)

    monkeypatch.setattr(jws, "deserialize_compact", counted)
    others = {f"other-{number}": rsa_key(1) for number in range(KEYS_MAX - 1)}
    for before, is_found in ((KEYS_TRIED_MAX - 1, True), (KEYS_TRIED_MAX, False)):
        names = list(others)
        ordered = {name: others[name] for name in names[:before]} | {"one": rsa_key()} | others
        document = json.loads(jwks(**ordered))
        for key in document["keys"]:
            key["kid"] = key["kid"] if kid is None else kid
        keys = parse_keys(json.dumps(document).encode())
        assert len(keys) == KEYS_MAX
        tried.clear()
        token = signed(rsa_key(), GOOD, kid=kid)
        if is_found:
            assert keys.verified_claims(token) == GOOD
        else:
            with pytest.raises(InvalidToken, match="none of the first 8 of 100 keys"):
                keys.verified_claims(token)
        assert len(tried) == KEYS_TRIED_MAX
    named = parse_keys(jwks(**ordered))
    assert named.verified_claims(signed(rsa_key(), GOOD, kid="one")) == GOOD


def test_a_token_that_no_key_has_signed_has_a_wrong_signature_if_all_keys_were_tried() -> None:
    keys = parse_keys(jwks(**{f"other-{number}": rsa_key(1) for number in range(KEYS_TRIED_MAX)}))
    with pytest.raises(InvalidToken, match="the signature is wrong"):
        keys.verified_claims(signed(rsa_key(), GOOD, kid=None))


def test_a_token_that_is_too_long_is_refused_before_it_is_read() -> None:
    keys = parse_keys(jwks(one=rsa_key()))
    long = signed(rsa_key(), GOOD | {"groups": ["g" * 100] * 350})
    assert 30_000 < len(long) <= TOKEN_CHARACTERS_MAX
    assert keys.verified_claims(long)["sub"] == GOOD["sub"]
    with pytest.raises(InvalidToken, match="more than 65536 characters"):
        keys.verified_claims(signed(rsa_key(), GOOD | {"groups": "g" * TOKEN_CHARACTERS_MAX}))


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE"])
@pytest.mark.parametrize("signature", ["", "x"])
def test_a_token_that_is_not_signed_is_refused(name: str, signature: str) -> None:
    keys = parse_keys(jwks(one=rsa_key()))
    token = f"{encoded({'alg': name, 'kid': 'one'})}.{encoded(GOOD)}.{signature}"
    with pytest.raises(InvalidToken, match="algorithm"):
        keys.verified_claims(token)


@pytest.mark.parametrize("bits", [256, 384, 512])
def test_a_public_key_is_no_shared_secret(bits: int) -> None:
    """The classic attack: HMAC with the text of the public key, which is public."""
    document = jwks(one=rsa_key())
    for secret in (rsa_key().as_pem(private=False), rsa_key().as_der(private=False), document):
        head = f"{encoded({'alg': f'HS{bits}', 'kid': 'one'})}.{encoded(GOOD)}"
        mac = hmac.new(secret, head.encode(), getattr(hashlib, f"sha{bits}")).digest()
        with pytest.raises(InvalidToken, match="algorithm"):
            parse_keys(document).verified_claims(f"{head}.{encoded(mac)}")


def test_a_shared_secret_in_the_document_is_no_key() -> None:
    secret = {"kty": "oct", "kid": "one", "k": encoded(b"s" * 32)}
    with pytest.raises(InvalidKeys, match="no RSA key"):
        parse_keys(json.dumps({"keys": [secret]}).encode())


def test_a_signature_by_another_algorithm_than_the_keys_is_refused() -> None:
    document = json.loads(jwks(one=rsa_key()))
    document["keys"][0]["alg"] = "RS256"
    keys = parse_keys(json.dumps(document).encode())
    assert keys.verified_claims(signed(rsa_key(), GOOD)) == GOOD
    with pytest.raises(InvalidToken, match="signature"):
        keys.verified_claims(signed(rsa_key(), GOOD, alg="PS256"))
    head = f"{encoded({'alg': 'ES256', 'kid': 'one'})}.{encoded(GOOD)}"
    with pytest.raises(InvalidToken, match="signature"):
        keys.verified_claims(f"{head}.{encoded(bytes(64))}")


def test_changed_tokens_are_refused() -> None:
    keys = parse_keys(jwks(one=rsa_key()))
    header, payload, signature = signed(rsa_key(), GOOD).split(".")
    root = encoded(GOOD | {"sub": "root"})
    for token in (
        f"{header}.{root}.{signature}",
        f"{header}.{payload}.",
        f"{header}.{payload}.{signature[:-4]}",
        f"{encoded({'alg': 'RS512', 'kid': 'one'})}.{payload}.{signature}",
        f"{encoded({'alg': 'RS256', 'kid': 'one', 'jwk': rsa_key(1).as_dict(private=False)})}.{payload}."
        + signed(rsa_key(1), GOOD).split(".")[2],
    ):
        with pytest.raises(InvalidToken, match="signature"):
            keys.verified_claims(token)


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "token",
    [
        "",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "a.b.c.d.e",
        "." * 100_000,
        "=.=.=",
        f"{encoded([])}.{encoded(GOOD)}.x",
        f"{encoded({})}.{encoded(GOOD)}.x",
        f"{encoded({'alg': ['RS256']})}.{encoded(GOOD)}.x",
        f"{encoded({'alg': 'RS256', 'kid': 5})}.{encoded(GOOD)}.x",
        f"{encoded({'alg': 'RS256', 'kid': 'k' * 1001})}.{encoded(GOOD)}.x",
        f"{encoded({'alg': 'RS256', 'crit': ['b64'], 'b64': False})}.{encoded(GOOD)}.x",
        f"{encoded({'alg': 'RS256', 'x': 'x' * 9000})}.{encoded(GOOD)}.x",
        f"{encoded(DEEP[:6000])}.{encoded(GOOD)}.x",
        f"{encoded(bytes([255]))}.{encoded(GOOD)}.x",
    ],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidToken) as refused:
        parse_keys(jwks(one=rsa_key())).verified_claims(token)
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(
    "payload", [b"", b"5", b"[]", b"{", DEEP, b"\xff", b'{"exp":' + b"9" * 10_000 + b"}"]
)
def test_signed_claims_that_are_no_object_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidToken):
        parse_keys(jwks(one=rsa_key())).verified_claims(signed(rsa_key(), payload))


def test_only_the_spaces_that_kafka_removes_are_removed_from_a_name() -> None:
    for name, user in {" bob\t": "bob", "bob\u00a0": "bob\u00a0"}.items():
        assert check_claims(changed(sub=name), RULES, NOW_MS).subject == user


# ── documents


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_keys_that_cannot_be_used_are_left_out() -> None:
    weak = jwk.import_key({"kty": "RSA", "n": encoded(b"\xff" * 128), "e": "AQAB"})
    document = json.loads(jwks(one=rsa_key(), weak=weak, two=ec_key(), three=rsa_key(1)))
    document["keys"][3]["use"] = "enc"
    document["keys"] += [
        document["keys"][0] | {"alg": ["RS256"]},
        document["keys"][0] | {"alg": {}},
        5,
        {"kty": "EC", "crv": "P-1", "x": "AA", "y": "AA"},
        {"kty": "OKP"},
    ]
    keys = parse_keys(json.dumps(document).encode())
    assert (len(keys), keys.left_out) == (2, 7)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        DEEP,
        b'{"keys": [%s5]}' % (b"5," * 100),
    ],
)
def test_what_is_no_set_of_keys_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidKeys):
        parse_keys(text)
