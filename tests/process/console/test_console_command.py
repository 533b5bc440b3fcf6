"""`nilometer console` and `nilometer up --console`: what they print, refuse, and leave behind."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import cast
from urllib.error import HTTPError

import pytest

import nilometer as package
from nilometer.cli.main import run
from nilometer.console import server
from nilometer.console.serving import Serving
from nilometer.local.local_cluster import LocalCluster
from nilometer.security.sasl import PLAIN_MODULE
from nilometer.testing import Cluster
from support.brokers.cluster_shell import COMMAND
from support.console.console_process import console
from support.eventually import eventually
from support.ports import free_ports
from support.stub_registry import StubRegistry


def document(url: str) -> dict[str, object]:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.quick
def test_a_cluster_with_its_console_ends_by_one_signal(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [str(COMMAND), "up", "--port", str(port), "--console", "0", "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"bootstrap.servers=127.0.0.1:{port}\n"
        match = re.fullmatch(r"Console: (http://127\.0\.0\.1:\d+/)\n", process.stdout.readline())
        assert match is not None
        url = match[1]
        eventually(lambda: document(url)["grade"] == "healthy", "the console sees a healthy cluster", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert [one.state for one in LocalCluster(tmp_path / "data").brokers()] == ["down"]


def test_a_console_without_a_cluster_says_so() -> None:
    with console("--bootstrap-server", "127.0.0.1:1") as url:
        found = document(f"{url}/")
        assert found["grade"] == "unavailable"
        with pytest.raises(HTTPError, match="503"):
            document(f"{url}/topics")


def test_values_by_the_schemas_of_a_registry() -> None:
    with Cluster() as cluster, StubRegistry() as registry:
        with package.connect(cluster.bootstrap_servers) as kafka:
            kafka.producer(value=package.Avro(registry.url, schema='"string"')).send("t", "hello")
        with console("--bootstrap-server", cluster.bootstrap_servers, "--registry", registry.url) as url:
            [record] = cast(
                "list[dict[str, dict[str, str]]]", document(f"{url}/topics/t/messages")["records"]
            )
    assert (record["value"]["text"], record["value"]["note"]) == ('"hello"', "Avro, schema 1")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["console", "--host", "0.0.0.0"], "with a login and TLS: give --login and --tls-certificate"),
        (["console", "--host", "192.0.2.1", "--login"], "a login sends passwords, so it needs TLS"),
        (
            ["console", "--host", "::", "--tls-certificate", "x.pem"],
            "with a login and TLS: give --login.",
        ),
        (
            ["console", "--login", "--tls-certificate", "x.pem"],
            "security.protocol=PLAINTEXT the brokers",
        ),
        (["console", "--tls-key", "x.pem"], "give the certificate, too"),
        (["console", "--port", "70000"], "is not in the range"),
        (["console", "--read-only", "--changes", "all"], "--read-only and --changes all contradict"),
        (["up", "--detach", "--console", "0"], "run `nilometer console` instead"),
    ],
)
def test_what_it_refuses(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert error in capsys.readouterr().err


def test_a_certificate_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.pem"
    assert run(["console", "--tls-certificate", str(missing)]) == 1
    assert f"--tls-certificate: {missing}: no private key with its certificates" in capsys.readouterr().err
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    key.write_text("no key")
    chain.write_text("no chain")
    assert run(["console", "--tls-certificate", str(chain), "--tls-key", str(key)]) == 1
    assert f"{key} with {chain}: no private key" in capsys.readouterr().err


def test_a_user_is_needed_without_a_login_and_refused_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    assert run(["console", "--command-config", str(config)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "sasl.jaas.config must be" in shown and "or let users log in: --login" in shown
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="a" password="b";\n'
    )
    login = ("--login", "--tls-certificate", "x.pem")
    assert run(["console", "--command-config", str(config), *login]) == 2
    assert "remove sasl.jaas.config" in " ".join(capsys.readouterr().err.split())


def test_connections_that_send_no_request_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a few hundred of them would keep all users out."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.05)
    request = b"GET /static/console.css HTTP/1.1\r\nHost: %b\r\n\r\n"

    async def ends(port: int, sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def main() -> None:
        served = server.Console({"bootstrap.servers": "127.0.0.1:1"}, Serving(host="127.0.0.1", port=0))
        ready = asyncio.Event()
        serving = asyncio.ensure_future(served.serve(lambda _url: ready.set()))
        await ready.wait()
        whole = request % f"127.0.0.1:{served.port}".encode()
        async with asyncio.timeout(60):
            assert await ends(served.port, b"") == b""
            assert await ends(served.port, whole[:-2]) == b""
            assert b" 200 OK" in await ends(served.port, whole + whole[:-2])
        served.stop()
        await serving

    asyncio.run(main())


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with console("--bootstrap-server", "127.0.0.1:1") as url:
        port = url.rpartition(":")[2]
        assert run(["console", "--port", port]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
