"""What makes a local cluster closed: certificates, users and ACLs, in the folder ``security`` of its data.

``security/`` (mode 0700, files 0600) contains ``authority.key`` and ``authority.pem`` (a private certificate
authority), ``broker-<id>.pem`` (each broker's key and certificate), ``brokers.properties`` (the settings of
all brokers), ``admin.properties`` and ``client.properties`` (the settings of clients, for two users).

The passwords are random. They are in these files, and in the brokers' ``server.properties``; the metadata and
ZooKeeper have hashes. The user ``admin`` may do everything, ``demo`` what
:mod:`nilometer.local.first_users` says, ``broker`` is that of the brokers' own connections.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Iterable, Mapping
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

from nilometer.config import parse_properties
from nilometer.security.jaas import SCRAM_MODULE, client_jaas
from nilometer.security.protocol import SecurityProtocol
from nilometer.security.scram import ScramMechanism

# Files and folders that only their owner may read: keys, passwords, settings that contain them.

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def private_folder(path: Path) -> Path:
    """Create a folder for its owner only; one that exists is closed to others."""
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    path.chmod(FOLDER_MODE)
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file for its owner only, in one step: a reader sees the old content or the new one."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


# A private certificate authority in two files: it issues the certificates of a local cluster's brokers.

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


PROTOCOL = SecurityProtocol.SASL_SSL
MECHANISM = ScramMechanism.SHA_512
ADMIN, DEMO, BROKER = "admin", "demo", "broker"
BROKER_JAAS = f"listener.name.{PROTOCOL.value.lower()}.{MECHANISM.value.lower()}.sasl.jaas.config"
CLIENT_JAAS = "sasl.jaas.config"
PASSWORD_BYTES = 24


class SecureFolder:
    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir.absolute() / "security"

    @property
    def exists(self) -> bool:
        return self._brokers_path.exists()

    @property
    def admin_path(self) -> Path:
        return self.folder / "admin.properties"

    @property
    def client_path(self) -> Path:
        return self.folder / "client.properties"

    @property
    def _brokers_path(self) -> Path:
        return self.folder / "brokers.properties"

    def admin_settings(self) -> dict[str, str]:
        """Return the settings of a client with all rights."""
        return _read(self.admin_path)

    def client_settings(self) -> dict[str, str]:
        """Return the settings of a client that is the user ``demo``."""
        return _read(self.client_path)

    @classmethod
    def of_authority(cls, certificate: str) -> SecureFolder | None:
        """Return the folder whose authority's certificate a path names; None if it is of no such folder."""
        at = Path(certificate).absolute().parent
        found = cls(at.parent)
        return found if found.exists and found.folder == at else None

    def file_of(self, user: str) -> Path | None:
        """Return the file that has the password of one of the folder's users; None for another user."""
        return {ADMIN: self.admin_path, DEMO: self.client_path, BROKER: self._brokers_path}.get(user)

    def change_password(self, user: str, password: str) -> None:
        """Write the new password of a client, `ADMIN` or `DEMO`, into its file of settings."""
        path = {ADMIN: self.admin_path, DEMO: self.client_path}[user]
        self._write(path, {**_read(path), CLIENT_JAAS: client_jaas(SCRAM_MODULE, user, password)})

    def common_broker_settings(self) -> dict[str, str]:
        """Return the settings that all brokers have."""
        return _read(self._brokers_path)

    def broker_settings(self, broker_id: int) -> dict[str, str]:
        """Return the settings of a broker, besides its address."""
        return {**self.common_broker_settings(), "ssl.keystore.location": str(self._key_path(broker_id))}

    def create(self, *, zookeeper: bool) -> None:
        """Create the authority, the passwords and the files of settings. An existing folder is kept.

        ``zookeeper``: whether the cluster's nodes in ZooKeeper get ACLs.
        """

        if self.exists:
            return
        private_folder(self.folder.parent)
        private_folder(self.folder)
        trusted = str(LocalAuthority(self.folder).certificate_path)
        self._write(self.admin_path, _client_settings(ADMIN, trusted))
        self._write(self.client_path, _client_settings(DEMO, trusted))
        self._write(self._brokers_path, _broker_settings(trusted, zookeeper=zookeeper))  # the last one

    def issue(self, broker_id: int, host: str) -> None:
        """Issue a new key and certificate to a broker, for ``host`` and the names of this machine."""

        hosts = (host, "localhost", "127.0.0.1", "::1")
        LocalAuthority(self.folder).issue(self._key_path(broker_id), f"broker-{broker_id}", hosts)

    def _key_path(self, broker_id: int) -> Path:
        return self.folder / f"broker-{broker_id}.pem"

    @staticmethod
    def _write(path: Path, settings: Mapping[str, str]) -> None:
        write_private(path, "".join(f"{key}={value}\n" for key, value in settings.items()))


def _client_settings(user: str, trusted: str) -> dict[str, str]:
    return {
        "security.protocol": PROTOCOL.value,
        "sasl.mechanism": MECHANISM.value,
        CLIENT_JAAS: _jaas(user),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": trusted,
    }


def _broker_settings(trusted: str, *, zookeeper: bool) -> dict[str, str]:
    settings = {
        "security.inter.broker.protocol": PROTOCOL.value,
        "sasl.enabled.mechanisms": MECHANISM.value,
        "sasl.mechanism.inter.broker.protocol": MECHANISM.value,
        BROKER_JAAS: _jaas(BROKER),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": trusted,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN}",
    }
    if zookeeper:
        settings |= {
            "zookeeper.set.acl": "true",
            "nilometer.zookeeper.user": "brokers",
            "nilometer.zookeeper.password": secrets.token_urlsafe(PASSWORD_BYTES),
        }
    return settings


def _jaas(user: str) -> str:
    return client_jaas(SCRAM_MODULE, user, secrets.token_urlsafe(PASSWORD_BYTES))


def _read(path: Path) -> dict[str, str]:
    return parse_properties(path.read_text(encoding="utf-8"), str(path))
