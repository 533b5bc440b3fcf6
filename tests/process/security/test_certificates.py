"""Subjects of certificates that openssl issues, as Java prints them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from nilometer.security.principal import subject_of
from support.authority import Authority


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
