"""ACLs and TLS at real ZooKeeper servers: who can read and change the nodes of a cluster, what is logged."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from nilometer.broker.control.secret_keeper import find_or_make_secrets
from nilometer.cli.metadata import metadata, rotate_secret
from nilometer.coordination.factory import make_store, open_reader
from nilometer.coordination.store import CoordinationStore, StoreRefused, StoreUnavailable
from nilometer.coordination.zookeeper.connect import OPEN, ZooKeeperSecurity
from nilometer.runtime import Runtime
from nilometer.runtime.tls import ClientTls, TlsFiles
from support.authority import Authority
from support.coordination.zookeeper_server import ServerTls, ZooKeeperEnsemble, running_ensemble
from support.documentation.code_blocks import DOCS
from support.documentation.shell_samples import blocks

PASSWORD = "open-sesame-7731"
BROKERS = ZooKeeperSecurity(user="brokers", password=PASSWORD, set_acl=True)
_numbers = itertools.count()


SESSION_TIMEOUT_MS = 6000
REFUSED_TIMEOUT_MS = 2000
"""For what is refused: it is tried for two of these."""
HANDSHAKE_TIMEOUT_MS = 20_000
"""A session timeout with which the first handshakes of a JVM are never too slow."""


def store_at(
    setting: str, security: ZooKeeperSecurity, timeout_ms: int = SESSION_TIMEOUT_MS
) -> CoordinationStore:
    return make_store(
        setting, Runtime.system(), local_folder="", session_timeout_ms=timeout_ms, zookeeper=security
    )


def filled(setting: str, security: ZooKeeperSecurity, timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
    """Make a store, with a node of every kind that outlives its session."""

    async def fill() -> None:
        store = store_at(setting, security, timeout_ms)
        await store.open()
        try:
            await store.register(1, b"payload")
            assert await store.claim_controller()
            await find_or_make_secrets(store, Runtime.system().entropy)
            for number in range(3):
                assert await store.append(number, b"entry")
            assert await store.write_snapshot(1, b"snapshot")
        finally:
            await store.close()

    asyncio.run(fill())


def opened(setting: str, security: ZooKeeperSecurity, timeout_ms: int = SESSION_TIMEOUT_MS) -> str:
    async def open_and_close() -> str:
        store = store_at(setting, security, timeout_ms)
        await store.open()
        try:
            return store.cluster_id
        finally:
            await store.close()

    return asyncio.run(open_and_close())


@pytest.fixture
def setting(zookeeper_server: ZooKeeperEnsemble) -> str:
    return f"zookeeper://{zookeeper_server.hosts}/security-{next(_numbers)}/cluster"


def chroot_of(setting: str) -> str:
    return "/" + setting.removeprefix("zookeeper://").partition("/")[2]


@pytest.fixture
def client(zookeeper_server: ZooKeeperEnsemble) -> Iterator[Any]:
    client: Any = KazooClient(zookeeper_server.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def nodes(client: Any, path: str) -> list[str]:
    found = [path]
    for child in client.get_children(path):
        found += nodes(client, f"{path}/{child}")
    return found


@contextmanager
def as_brokers(zookeeper_server: ZooKeeperEnsemble) -> Iterator[Any]:
    client: Any = KazooClient(zookeeper_server.hosts, auth_data=[("digest", f"brokers:{PASSWORD}")])
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def unprotected(zookeeper_server: ZooKeeperEnsemble, path: str) -> list[str]:
    """The nodes whose ACL is not that of the brokers' user alone, as this user sees them."""
    own = [make_digest_acl("brokers", PASSWORD, all=True)]
    with as_brokers(zookeeper_server) as client:
        return [node for node in nodes(client, path) if client.get_acls(node)[0] != own]


def test_a_stranger_can_neither_read_nor_change_a_node(
    client: Any, setting: str, zookeeper_server: ZooKeeperEnsemble
) -> None:
    filled(setting, BROKERS)
    chroot = chroot_of(setting)
    assert unprotected(zookeeper_server, chroot) == []
    attempts = [
        lambda: client.get(f"{chroot}/secret"),
        lambda: client.get_children(chroot),
        lambda: client.get_acls(f"{chroot}/secret"),
        lambda: client.set(f"{chroot}/next", b""),
        lambda: client.create(f"{chroot}/controller", b"{}"),
        lambda: client.delete(f"{chroot}/secret"),
        lambda: client.delete(f"{chroot}/entries/{2:020d}"),
        lambda: client.set_acls(f"{chroot}/secret", client.get_acls("/")[0]),
    ]
    for attempt in attempts:
        with pytest.raises(NoAuthError):
            attempt()
    client.add_auth("digest", "brokers:wrong")
    with pytest.raises(NoAuthError):
        client.get(f"{chroot}/secret")
    client.ensure_path(f"{chroot.rpartition('/')[0]}/another")
    assert opened(setting, BROKERS) == opened(setting, BROKERS)


@pytest.mark.parametrize(
    "security",
    [OPEN, replace(BROKERS, password="wrong"), ZooKeeperSecurity(user="others", password=PASSWORD)],
    ids=["anonymous", "wrong password", "other user"],
)
def test_a_broker_that_is_not_permitted_is_refused(setting: str, security: ZooKeeperSecurity) -> None:
    filled(setting, BROKERS)
    with pytest.raises(
        StoreRefused, match=r"ACLs that do not permit.*set nilometer\.zookeeper\.user"
    ) as raised:
        opened(setting, security)
    assert PASSWORD not in str(raised.value)
    with pytest.raises(StoreRefused, match="ACLs that do not permit"):
        asyncio.run(open_reader(setting, Runtime.system(), security))


def test_an_open_store_is_closed_by_brokers_that_set_acls(
    setting: str, zookeeper_server: ZooKeeperEnsemble
) -> None:
    """Two rolling restarts: first with the user, then with zookeeper.set.acl."""
    filled(setting, OPEN)
    chroot = chroot_of(setting)
    user_only = replace(BROKERS, set_acl=False)
    first = opened(setting, user_only)
    assert f"{chroot}/secret" in unprotected(zookeeper_server, chroot)
    assert opened(setting, BROKERS) == first
    assert unprotected(zookeeper_server, chroot) == []
    assert opened(setting, user_only) == first, "one that is not restarted yet goes on"


def test_another_acl_than_that_of_the_brokers_is_no_protection(
    setting: str, zookeeper_server: ZooKeeperEnsemble
) -> None:
    filled(setting, BROKERS)
    chroot = chroot_of(setting)
    own, others = (make_digest_acl(user, PASSWORD, all=True) for user in ("brokers", "others"))
    wrong = {
        chroot: [own, others],
        f"{chroot}/secret": [own, others],
        f"{chroot}/next": [others, make_digest_acl("brokers", PASSWORD, read=True, admin=True)],
        f"{chroot}/entries": [own, make_acl("ip", "127.0.0.1", read=True)],
        f"{chroot}/brokers": OPEN_ACL_UNSAFE,
    }
    with as_brokers(zookeeper_server) as client:
        for node, acls in wrong.items():
            client.set_acls(node, acls)
    assert set(unprotected(zookeeper_server, chroot)) == set(wrong)
    opened(setting, BROKERS)
    assert unprotected(zookeeper_server, chroot) == []


def test_the_command_of_the_page_opens_a_store_again(
    client: Any, setting: str, zookeeper_server: ZooKeeperEnsemble
) -> None:
    filled(setting, BROKERS)
    chroot = chroot_of(setting)
    with pytest.raises(NoAuthError):
        client.get(f"{chroot}/secret")
    (command,) = [block for block in blocks(DOCS / "zookeeper.md") if "zkCli.sh" in block]
    for on_page, here in (
        ("zk1:2181", zookeeper_server.hosts),
        ("brokers:PASSWORD", f"brokers:{PASSWORD}"),
        ("/nilometer ", f"{chroot} "),
    ):
        assert on_page in command
        command = command.replace(on_page, here)
    subprocess.run(["bash", "-ec", command], capture_output=True, check=True, timeout=120)
    assert all(client.get_acls(node)[0] == OPEN_ACL_UNSAFE for node in nodes(client, chroot))


def test_acls_need_a_chroot(zookeeper_server: ZooKeeperEnsemble) -> None:
    with pytest.raises(StoreRefused, match=r"set\.acl needs a chroot"):
        store_at(f"zookeeper://{zookeeper_server.hosts}", BROKERS)


def test_commands_read_the_brokers_file(setting: str, tmp_path: Path) -> None:
    filled(setting, BROKERS)
    config = tmp_path / "server.properties"
    lines = [
        "node.id=1",
        "zookeeper.set.acl=true",
        "nilometer.zookeeper.user=brokers",
        f"nilometer.zookeeper.password={PASSWORD}",
    ]
    config.write_text("\n".join(lines) + "\n")
    where = ["--coordination", setting]
    refused = CliRunner().invoke(rotate_secret, where)
    assert refused.exit_code == 1 and "ACLs that do not permit" in refused.output
    assert CliRunner().invoke(metadata, ["image", *where]).exit_code == 1
    rotated = CliRunner().invoke(rotate_secret, [*where, "--coordination-config", str(config)])
    assert rotated.exit_code == 0, rotated.output
    assert "Secret 1 is current" in rotated.output
    config.write_text("\n".join([*lines, "zookeeper.ssl.client.enable=maybe"]))
    wrong = CliRunner().invoke(rotate_secret, [*where, "--coordination-config", str(config)])
    assert wrong.exit_code == 2 and "must be true or false" in wrong.output
    assert PASSWORD not in refused.output + rotated.output + wrong.output


def test_the_password_is_in_no_log(setting: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1)
    caplog.set_level(1, "kazoo")
    filled(setting, BROKERS)
    with pytest.raises(StoreRefused):
        opened(setting, replace(BROKERS, password=f"{PASSWORD}-wrong"))
    assert "Sending request(xid=-4): Auth(...)" in caplog.messages, "kazoo logs each request"
    assert PASSWORD not in caplog.text


# ---- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def tls_server(authority: Authority) -> Iterator[ZooKeeperEnsemble]:
    key = authority.issue("zookeeper", "/CN=zookeeper", hosts="IP:127.0.0.1")
    tls = ServerTls(key, authority.certificate, client_auth="need")
    with running_ensemble(1, tls=tls) as ensemble:
        # The first handshakes of a JVM are slow.
        opened(f"zookeeper://{ensemble.tls_hosts}/first", tls_of(authority), HANDSHAKE_TIMEOUT_MS)
        yield ensemble


def tls_of(authority: Authority, **more: Any) -> ZooKeeperSecurity:
    files = TlsFiles(
        key_file=str(authority.issue("broker", "/CN=broker")), trusted_file=str(authority.certificate)
    )
    return replace(BROKERS, tls=ClientTls(files=replace(files, **more)))


def test_brokers_connect_by_tls(authority: Authority, tls_server: ZooKeeperEnsemble) -> None:
    setting = f"zookeeper://{tls_server.tls_hosts}/tls"
    filled(setting, tls_of(authority), HANDSHAKE_TIMEOUT_MS)
    # Nor has the certificate's subject any right.
    assert opened(setting, tls_of(authority), HANDSHAKE_TIMEOUT_MS)
    assert unprotected(tls_server, "/tls") == []

    async def many_responses() -> None:
        """More than one record of TLS holds: what is left in TLS is read without waiting for the socket."""
        store = store_at(setting, tls_of(authority), HANDSHAKE_TIMEOUT_MS)
        await store.open()
        try:
            for number in range(3, 63):
                assert await store.append(number, b"x" * 1000)
            async with asyncio.timeout(30):
                for _ in range(5):
                    assert len(await store.read(3, 60)) == 60
        finally:
            await store.close()

    asyncio.run(many_responses())


def test_who_is_not_trusted_is_refused_by_name(
    authority: Authority, tls_server: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    setting = f"zookeeper://{tls_server.tls_hosts}/tls"
    other = Authority(tmp_path / "other", "Other")
    with pytest.raises(StoreUnavailable, match=r"cannot be reached.*certificate verify failed"):
        opened(setting, tls_of(authority, trusted_file=str(other.certificate)), REFUSED_TIMEOUT_MS)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        # The server asks for a certificate.
        opened(setting, tls_of(authority, key_file=None), REFUSED_TIMEOUT_MS)
    with pytest.raises(StoreRefused, match=r"has TLS, but .*missing\.pem"):
        opened(setting, tls_of(authority, trusted_file=str(tmp_path / "missing.pem")))


def test_the_servers_host_is_verified(authority: Authority, tls_server: ZooKeeperEnsemble) -> None:
    setting = f"zookeeper://localhost:{tls_server.servers[0].tls_port}/tls"
    checked = tls_of(authority)
    with pytest.raises(
        StoreUnavailable, match=r"cannot be reached.*certificate is not valid for 'localhost'"
    ):
        opened(setting, checked, REFUSED_TIMEOUT_MS)
    assert checked.tls is not None
    unchecked = replace(checked, tls=replace(checked.tls, checks_hostname=False))
    assert opened(setting, unchecked, HANDSHAKE_TIMEOUT_MS)
