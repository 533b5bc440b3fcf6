"""The files of a secure local cluster: what they contain, who may read them, who accepts its certificates."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.listeners import Endpoint
from nilometer.client.settings import COMMON_KEYS, ClientSettings, client_security
from nilometer.cluster.history import MetadataHistory
from nilometer.cluster.image import ClusterImage
from nilometer.config import ConfigDefinition
from nilometer.coordination.local.store import LocalStore
from nilometer.local.first_users import write_users
from nilometer.local.local_cluster import LocalCluster
from nilometer.local.private_files import write_private
from nilometer.local.secure_cluster import SecureFolder
from nilometer.runtime import Runtime
from nilometer.security.scram import ScramMechanism, credential_of, salted_password


@pytest.fixture
def secure(tmp_path: Path) -> SecureFolder:
    os.umask(0o022)
    folder = SecureFolder(tmp_path / "data")
    folder.create(zookeeper=True)
    folder.issue(1, "broker.example.org")
    return folder


def user_of(settings: dict[str, str]) -> tuple[str, str]:
    found = client_security(ClientSettings(ConfigDefinition.of("client", COMMON_KEYS), settings))
    return found.user, found.password


def test_only_the_owner_may_read_anything(secure: SecureFolder) -> None:
    assert secure.folder.stat().st_mode & 0o777 == 0o700
    assert secure.folder.parent.stat().st_mode & 0o777 == 0o700
    files = sorted(path.name for path in secure.folder.iterdir())
    assert files == [
        "admin.properties",
        "authority.key",
        "authority.pem",
        "broker-1.pem",
        "brokers.properties",
        "client.properties",
    ]
    assert {path.stat().st_mode & 0o777 for path in secure.folder.iterdir()} == {0o600}


def test_a_private_file_never_has_other_rights(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("open")
    path.chmod(0o644)
    write_private(path, "secret")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("secret", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_brokers_have_valid_settings(secure: SecureFolder) -> None:
    cluster = LocalCluster(secure.folder.parent)
    where = {"nilometer.coordination": "zookeeper://zk:2181/nilometer"}
    cluster.configure(1, cluster.new_settings(1, Endpoint("SASL_SSL", "127.0.0.1", 9092), where))
    path = cluster.broker_dir(1) / "server.properties"
    assert path.stat().st_mode & 0o777 == 0o600
    texts = dict(line.split("=", 1) for line in path.read_text().splitlines())
    config = BrokerConfig(texts)
    assert config.inter_broker_security.user == "broker"
    assert config.inter_broker_security.tls is not None
    assert config.super_users == {"User:admin"}
    assert config.zookeeper.set_acl
    assert config.tls["SASL_SSL"].server.files.key_file == str(secure.folder / "broker-1.pem")


def test_nothing_is_made_again(secure: SecureFolder) -> None:
    before = {path.name: path.read_text() for path in secure.folder.iterdir()}
    secure.create(zookeeper=True)
    assert {path.name: path.read_text() for path in secure.folder.iterdir()} == before
    secure.issue(1, "127.0.0.1")
    assert (secure.folder / "broker-1.pem").read_text() != before["broker-1.pem"]


def test_the_users_have_passwords_of_their_own(secure: SecureFolder) -> None:
    admin, demo = user_of(secure.admin_settings()), user_of(secure.client_settings())
    assert (admin[0], demo[0]) == ("admin", "demo")
    assert admin[1] != demo[1]
    assert min(len(admin[1]), len(demo[1])) >= 32


def test_the_users_are_in_the_metadata_before_a_broker_starts(tmp_path: Path) -> None:
    folder = SecureFolder(tmp_path / "data")
    folder.create()
    store = f"local:{tmp_path / 'store'}"
    asyncio.run(write_users(folder, store))
    asyncio.run(write_users(folder, store))  # after a failure in between
    image = _image(tmp_path / "store")
    for settings in (folder.admin_settings(), folder.client_settings()):
        name, password = user_of(settings)
        found = image.scram_users.of(name)[ScramMechanism.SHA_512]
        salted = salted_password(ScramMechanism.SHA_512, password, found.salt, found.iterations)
        assert found == credential_of(ScramMechanism.SHA_512, salted, found.salt, found.iterations)
    assert image.scram_users.names() == ["admin", "broker", "demo"]
    assert {acl.principal for _, acl in image.acls.items()} == {"User:demo"}
    assert all(acl.resource_name != "*" for _, acl in image.acls.items())


def _image(store_folder: Path) -> ClusterImage:
    async def fold() -> ClusterImage:
        store = LocalStore(Runtime.system(), str(store_folder))
        await store.open()
        history = MetadataHistory()
        list(history.apply((entry.number, entry.data) for entry in await store.read(0, 100)))
        await store.close()
        return history.image

    return asyncio.run(fold())


@pytest.mark.parametrize("host", ["broker.example.org", "127.0.0.1", "localhost", "::1"])
def test_a_client_accepts_the_broker_for_each_of_its_names(secure: SecureFolder, host: str) -> None:
    _shake_hands(secure, host)


def test_a_client_refuses_the_broker_for_another_host(secure: SecureFolder) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        _shake_hands(secure, "other.example.org")


def test_a_client_of_another_cluster_refuses_the_broker(secure: SecureFolder, tmp_path: Path) -> None:
    other = SecureFolder(tmp_path / "other")
    other.create()
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self-signed|unable to get local issuer"):
        _shake_hands(secure, "127.0.0.1", trusted=other)


def _shake_hands(secure: SecureFolder, host: str, trusted: SecureFolder | None = None) -> None:
    """Do a handshake in memory. Raises SSLError."""
    client_context = ssl.create_default_context(cafile=str((trusted or secure).folder / "authority.pem"))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(secure.folder / "broker-1.pem")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
