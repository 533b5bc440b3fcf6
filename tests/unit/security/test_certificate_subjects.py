"""Subjects of certificates as Java prints them, and the rules that make users of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.security.principal import PrincipalMapping, subject_of
from support.der import BMP, IA5, PRINTABLE, T61, UTF8, certificate, name


def test_the_last_part_is_printed_first_and_the_attributes_of_a_part_are_joined() -> None:
    organization, common, user = ("2.5.4.10", "2.5.4.3", "0.9.2342.19200300.100.1.1")
    parts = [[(organization, UTF8, b"Nilometer")], [(common, UTF8, b"alice"), (user, IA5, b"17")]]
    assert subject_of(certificate(name(parts))) == "CN=alice+UID=17,O=Nilometer"


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
