"""The console on an address of a network, used from another machine: TLS, a login, the rights of its user."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from support.authority import Authority
from support.brokers.sasl_broker import PASSWORDS, sasl_broker
from support.chaos.network import ChaosNetwork, is_available
from support.console.console_process import console

SERVER, USER = "server", "user"
JSON = {"Accept": "application/json"}


@pytest.fixture
def network() -> Iterator[ChaosNetwork]:
    """Two machines; the test itself is on the server."""
    if not is_available():
        pytest.skip("network namespaces need root and iproute2")
    with ChaosNetwork([SERVER, USER]) as network, network.entered(SERVER):
        yield network


class Browser:
    """Requests from the other machine, with the cookie that the last login set."""

    def __init__(self, network: ChaosNetwork, url: str, authority: Authority) -> None:
        self._network = network
        self._url = urlsplit(url)
        self._context = authority.context()
        self.cookie = ""

    def ask(
        self,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        form: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        with self._network.entered(USER):
            connection = http.client.HTTPSConnection(
                self._url.hostname or "", self._url.port, context=self._context, timeout=60
            )
            try:
                body = None if form is None else urlencode(form)
                connection.request(method, path, body, {"Cookie": self.cookie, **(headers or {})})
                answer = connection.getresponse()
                text = answer.read().decode()
            finally:
                connection.close()
        if (cookie := answer.getheader("Set-Cookie")) is not None:
            self.cookie = cookie.partition(";")[0]
        return answer.status, text


def test_another_machine_logs_in_by_tls(network: ChaosNetwork, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    address = network.address(SERVER)
    key = authority.issue("console", "/CN=console", hosts=f"IP:{address}")
    config = tmp_path / "console.properties"
    config.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    with sasl_broker(tmp_path / "broker") as broker:
        options = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config), "--host", address)
        with console(*options, "--login", "--tls-certificate", str(key)) as url:
            assert url.startswith(f"https://{address}:")
            browser, origin = Browser(network, url, authority), {"Origin": url}
            assert browser.ask("GET", "/topics", JSON)[0] == 401
            form = {"user": "bob", "password": PASSWORDS["bob"], "next": "/"}
            assert browser.ask("POST", "/login", form=form)[0] == 403, "without an Origin"
            assert browser.ask("POST", "/login", origin, form)[0] == 303
            status, text = browser.ask("GET", "/brokers", JSON)
            assert (status, json.loads(text)["grade"]) == (200, "healthy")
            assert browser.ask("POST", "/logout", origin)[0] == 303
            assert browser.ask("GET", "/topics", JSON)[0] == 401

            with network.entered(USER):
                plain = http.client.HTTPConnection(address, urlsplit(url).port, timeout=60)
                with pytest.raises((http.client.HTTPException, OSError)):
                    plain.request("GET", "/")
                    plain.getresponse()
                plain.close()
