"""What makes a local cluster closed: certificates, users and ACLs, in the folder ``security`` of its data.

``security/`` (mode 0700, files 0600) contains ``authority.key`` and ``authority.pem`` (a private certificate
authority), ``broker-<id>.pem`` (each broker's key and certificate), ``brokers.properties`` (the settings of
all brokers), ``admin.properties`` and ``client.properties`` (the settings of clients, for two users);
``quorum.key`` is that of the nodes of a metadata quorum.

The passwords are random. They are in these files, and in the brokers' ``server.properties``; the metadata and
ZooKeeper have hashes. The user ``admin`` may do everything, ``demo`` what
:mod:`nilometer.local.first_users` says, ``broker`` is that of the brokers' own connections.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from nilometer.config import parse_properties
from nilometer.local.private_files import private_folder, write_private
from nilometer.security.principal import SecurityProtocol
from nilometer.security.sasl import SCRAM_MODULE, client_jaas
from nilometer.security.scram import ScramMechanism

PROTOCOL = SecurityProtocol.SASL_SSL
MECHANISM = ScramMechanism.SHA_512
ADMIN, DEMO, BROKER = "admin", "demo", "broker"
BROKER_JAAS = f"listener.name.{PROTOCOL.value.lower()}.{MECHANISM.value.lower()}.sasl.jaas.config"
CLIENT_JAAS = "sasl.jaas.config"
PASSWORD_BYTES = 24
QUORUM_KEY_BYTES = 32


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
    def quorum_key_path(self) -> Path:
        return self.folder / "quorum.key"

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

    def create(self, *, zookeeper: bool = False, quorum: bool = False) -> None:
        """Create the authority, the passwords and the files of settings. An existing folder is kept.

        ``zookeeper``: whether the cluster's nodes in ZooKeeper get ACLs; ``quorum``: whether the nodes of a
        metadata quorum get a key.
        """
        if not self.exists:
            self._create(zookeeper=zookeeper)
        if quorum and not self.quorum_key_path.exists():
            write_private(self.quorum_key_path, secrets.token_hex(QUORUM_KEY_BYTES) + "\n")

    def _create(self, *, zookeeper: bool) -> None:
        from nilometer.local.authority import LocalAuthority  # needs the extra `secure`

        private_folder(self.folder.parent)
        private_folder(self.folder)
        trusted = str(LocalAuthority(self.folder).certificate_path)
        self._write(self.admin_path, _client_settings(ADMIN, trusted))
        self._write(self.client_path, _client_settings(DEMO, trusted))
        self._write(self._brokers_path, _broker_settings(trusted, zookeeper=zookeeper))  # the last one

    def issue(self, broker_id: int, host: str) -> None:
        """Issue a new key and certificate to a broker, for ``host`` and the names of this machine."""

        hosts = (host, "localhost", "127.0.0.1", "::1")
        from nilometer.local.authority import LocalAuthority

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
