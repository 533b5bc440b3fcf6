"""A private certificate authority in two files: it issues the certificates of a local cluster's brokers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nilometer.local.private_files import write_private

ORGANIZATION = "Nilometer"
AUTHORITY_DAYS = 3650
BROKER_DAYS = 365
"""Brokers get new certificates whenever `nilometer up` starts them."""
LATE_CLOCK = timedelta(hours=1)
"""How far the clock of a client may be behind."""


class LocalAuthority:
    """The authority whose key and certificate are in ``folder``; created if they are not there.

    Keys are of the curve secp256r1.
    """

    def __init__(self, folder: Path) -> None:
        self.certificate_path = folder / "authority.pem"
        self._key_path = folder / "authority.key"
        if not (self._key_path.exists() and self.certificate_path.exists()):
            self._create()
        key = load_pem_private_key(self._key_path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "it was created here"
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(self.certificate_path.read_bytes())

    def issue(self, path: Path, name: str, hosts: Iterable[str]) -> None:
        """Write a new key with its certificate to ``path``. ``hosts`` are host names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(_name(name), self._certificate.subject, key, BROKER_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        write_private(path, _key_text(key) + _text(certificate))

    def _create(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name("Nilometer local authority")
        certificate = (
            _builder(subject, subject, key, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_private(self._key_path, _key_text(key))
        write_private(self.certificate_path, _text(certificate))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - LATE_CLOCK)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _text(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
