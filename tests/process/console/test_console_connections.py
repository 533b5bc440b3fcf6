"""What connections that send little may cost a console that others use."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from nilometer.console.server import CONNECTIONS_MAX, HANDSHAKES_MAX
from support.authority import Authority
from support.brokers.sasl_broker import sasl_broker
from support.console.console_process import console
from support.ports import HOST

OTHER_HOST = "127.0.0.2"


class Place:
    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self.url, self.context = url, context
        self.port = urlsplit(url).port or 0

    def connect(self, source: str = HOST) -> socket.socket:
        return socket.create_connection((HOST, self.port), 20, (source, 0))

    def login_page(self) -> int:
        """Ask for the page as another browser; return its status."""
        connection = http.client.HTTPSConnection(HOST, self.port, context=self.context, timeout=20)
        try:
            connection.request("GET", "/login")
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A console with a login and TLS."""
    folder = tmp_path_factory.mktemp("console")
    authority = Authority(folder / "authority")
    key = authority.issue("console", "/CN=console", hosts=f"IP:{HOST}")
    config = Path(folder / "console.properties")
    config.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n")
    with sasl_broker(folder / "broker") as broker:
        options = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config))
        with console(*options, "--login", "--tls-certificate", str(key)) as url:
            yield Place(url, authority.context())


def test_connections_without_a_handshake_keep_no_browser_out(place: Place) -> None:
    """They used up the descriptors of the process for a minute."""
    with ExitStack() as stack:
        silent = [stack.enter_context(place.connect()) for _ in range(3 * HANDSHAKES_MAX)]
        assert place.login_page() == 200
        assert silent[0].recv(1) == b"", "the oldest end for others"


def test_forms_that_do_not_arrive_keep_no_other_address_out(place: Place) -> None:
    half = (
        f"POST /login HTTP/1.1\r\nHost: {HOST}:{place.port}\r\nOrigin: {place.url}\r\n"
        "Content-Length: 1000\r\n\r\nuser="
    )
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            client = stack.enter_context(
                place.context.wrap_socket(place.connect(OTHER_HOST), server_hostname=HOST)
            )
            client.sendall(half.encode())
        assert place.login_page() == 200
