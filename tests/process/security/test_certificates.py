"""Subjects of certificates as Java prints them, and the rules that make users of them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.security.principal import PrincipalMapping, subject_of
from support.authority import Authority
from support.der import BMP, PRINTABLE, T61, UTF8, certificate, name


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def der_of(path: Path) -> bytes:
    text = path.read_text()
    return ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE") :])


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        ("/C=EG/ST=Cairo/L=Roda/O=Nilometer/OU=Brokers/CN=broker-1", None),
        ("/CN=a,b\\+c/O=x;y<z>", r"O=x\;y\<z\>,CN=a\,b\+c"),
        ("/CN= padded /O=#first", r"O=\#first,CN=\ padded\ "),
        ("/DC=org/DC=example/UID=alice", "UID=alice,DC=example,DC=org"),
        ("/O=Größe/CN=ü", "CN=ü,O=Größe"),
        ("/CN=a/emailAddress=a@b.c", "1.2.840.113549.1.9.1=#16056140622e63,CN=a"),
        ("/CN=a/serialNumber=12", "2.5.4.5=#13023132,CN=a"),
    ],
)
def test_a_subject_is_printed_as_java_does(authority: Authority, subject: str, shown: str | None) -> None:
    expected = shown or "CN=broker-1,OU=Brokers,O=Nilometer,L=Roda,ST=Cairo,C=EG"
    key = authority.issue(f"subject-{abs(hash(subject))}", subject)
    assert subject_of(der_of(key)) == expected


def test_several_attributes_of_one_part_are_joined(authority: Authority) -> None:
    key = authority.issue("multi", "/O=Nilometer/CN=alice+UID=17")
    assert subject_of(der_of(key)) == "CN=alice+UID=17,O=Nilometer"


@pytest.mark.parametrize(
    ("tag", "value", "shown"),
    [
        (UTF8, b"alice\0evil", r"CN=alice\00evil"),
        (PRINTABLE, b"\xe4", "CN=\ufffd"),
        (T61, "Größe".encode("latin-1"), "CN=Gr\ufffd\ufffde"),
        (T61, "Größe".encode(), "CN=Größe"),
        (BMP, "bob".encode("utf-16-be"), r"CN=\00b\00o\00b"),
        (UTF8, b"\r a \r", "CN=\\\r\\ a\\ \\\r"),
        (UTF8, b"\xed\xa0\x80", "CN=\ufffd"),
        (0x12, b"12", "CN=#12023132"),  # a NumericString
    ],
)
def test_what_java_does_not_print_as_it_was_meant_is_printed_as_java_does(
    tag: int, value: bytes, shown: str
) -> None:
    assert subject_of(certificate(name([[("2.5.4.3", tag, value)]]))) == shown


@given(st.binary(max_size=300))
def test_damaged_certificates_are_refused(data: bytes) -> None:
    try:
        subject_of(data)
    except ValueError:
        return


SUBJECT = "CN=Alice Smith,OU=Users,O=Nilometer"


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("DEFAULT", SUBJECT),
        ("RULE:^CN=(.*?),OU=Users.*$/$1/L,DEFAULT", "alice smith"),
        ("RULE:^CN=(.*?),OU=Users.*$/$1@users/U", "ALICE SMITH@USERS"),
        ("RULE:^CN=(.*?),OU=Brokers.*$/$1/, RULE:^CN=([^ ]+).*$/$1/", "Alice"),
        (r"RULE:^CN=(.*?),.*O=(.*?)$/$2\/$1/ ,DEFAULT", "Nilometer/Alice Smith"),
        ("RULE:^CN=none$/x/,DEFAULT", SUBJECT),
        ("RULE:CN=Alice/short/,DEFAULT", SUBJECT),  # a pattern must match the whole subject
    ],
)
def test_the_first_rule_that_matches_gives_the_name(rules: str, name: str) -> None:
    assert PrincipalMapping(rules).name_of(SUBJECT) == name


def test_a_subject_to_which_no_rule_applies_has_no_name() -> None:
    with pytest.raises(ValueError, match="no rule"):
        PrincipalMapping("RULE:^CN=none$/x/").name_of(SUBJECT)


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "default",
        "RULE:a/b",
        "RULE:(/b/",
        "RULE:a/$1/",
        "DEFAULT RULE:a/b/",
        "RULE:a/b/X",
        r"RULE:(a)/\d$1/",
    ],
)
def test_invalid_rules_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match="rule"):
        PrincipalMapping(rules)
