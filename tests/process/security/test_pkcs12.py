"""Keys and authorities in PKCS12 stores, as openssl and keytool write them."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nilometer.client.settings import STORE_KEYS, tls_files
from nilometer.config import ConfigDefinition, ConfigError, Settings
from nilometer.runtime.tls import ClientTls, ServerContexts, ServerTls, TlsFiles, TlsUnusable, client_context
from support.authority import Authority

PASSWORD, OTHER = "store-secret-7731", "another-secret-7731"
DEFINITION = ConfigDefinition.of("client", STORE_KEYS)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def server_files(authority: Authority, name: str = "broker") -> TlsFiles:
    store = authority.key_store(name, f"/CN={name}", PASSWORD)
    return files(
        {
            "ssl.keystore.location": str(store),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": PASSWORD,
        }
    )


def files(settings: dict[str, str]) -> TlsFiles:
    return tls_files(Settings(DEFINITION, settings))


def trust(store: Path, password: str = PASSWORD) -> TlsFiles:
    return files(
        {
            "ssl.truststore.location": str(store),
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.password": password,
        }
    )


def subject_seen(server: ServerContexts, client: ssl.SSLContext) -> str:
    """Do a handshake in memory; return the name in the server's certificate. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    connecting = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    accepting = server.first.wrap_bio(to_server, to_client, server_side=True)
    for side in (connecting, accepting, connecting, accepting):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found: Any = connecting.getpeercert()
    return next(value for part in found["subject"] for name, value in part if name == "commonName")


def test_a_handshake_with_stores_on_both_sides(authority: Authority) -> None:
    server = ServerContexts(ServerTls(files=server_files(authority)))
    client = client_context(ClientTls(files=trust(authority.trust_store(PASSWORD))))
    assert subject_seen(server, client) == "broker"


def test_a_trust_store_of_keytool(authority: Authority, tmp_path: Path) -> None:
    store = tmp_path / "trusted.p12"
    made = subprocess.run(
        [
            *("keytool", "-importcert", "-noprompt", "-alias", "authority", "-file", authority.certificate),
            *("-keystore", store, "-storetype", "PKCS12", "-storepass", PASSWORD),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    server = ServerContexts(ServerTls(files=server_files(authority)))
    assert subject_seen(server, client_context(ClientTls(files=trust(store)))) == "broker"


def test_a_replaced_store_is_used_from_the_next_handshake_on(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    own = server_files(authority, "rotated")
    server = ServerContexts(ServerTls(files=own))
    client = client_context(ClientTls(files=trust(authority.trust_store(PASSWORD))))
    assert subject_seen(server, client) == "rotated"
    assert own.key_file is not None
    second = authority.key_store("second", "/CN=second", PASSWORD)
    second.replace(own.key_file)
    assert subject_seen(server, client) == "second"
    authority.key_store("third", "/CN=third", OTHER).replace(own.key_file)
    assert subject_seen(server, client) == "second", "the previous one stays: this one cannot be read"
    assert "it is not PKCS12, or the password is wrong" in caplog.text
    assert PASSWORD not in caplog.text


def test_what_cannot_be_read_is_said_without_secrets(authority: Authority, tmp_path: Path) -> None:
    store = authority.trust_store(PASSWORD)
    damaged = tmp_path / "damaged.p12"
    damaged.write_bytes(store.read_bytes()[:-40])
    for wrong in (trust(store, OTHER), trust(damaged), trust(authority.certificate)):
        with pytest.raises(TlsUnusable, match="not PKCS12, or the password is wrong") as raised:
            client_context(ClientTls(files=wrong))
        assert not {PASSWORD, OTHER} & set(str(raised.value).split())
    with pytest.raises(TlsUnusable, match="No such file"):
        client_context(ClientTls(files=trust(tmp_path / "missing.p12")))
    without_key = TlsFiles(key_file=str(store), key_type="PKCS12", key_password=PASSWORD)
    with pytest.raises(TlsUnusable, match="no private key with its certificate"):
        ServerContexts(ServerTls(files=without_key))
    assert PASSWORD not in repr(without_key) + repr(trust(store))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"ssl.keystore.type": "PEM", "ssl.keystore.password": "x"}, "ssl.keystore.password"),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "x", "ssl.key.password": "y"},
            "ssl.key.password",
        ),
        ({"ssl.keystore.password": "x"}, "ssl.keystore.type"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        files({"ssl.keystore.location": "/etc/store", **settings})
    assert raised.value.key == key


def test_without_the_library_the_error_says_what_to_install(authority: Authority) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from nilometer.runtime.tls import *\n"
        "files = TlsFiles(trusted_file=sys.argv[1], trusted_type='PKCS12', trusted_password='x')\n"
        "try: client_context(ClientTls(files=files))\n"
        "except TlsUnusable as error: print(error)\n"
    )
    command = [sys.executable, "-c", program, str(authority.trust_store(PASSWORD))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PKCS12 needs: pip install 'nilometer[secure]'" in done.stdout, done.stderr
