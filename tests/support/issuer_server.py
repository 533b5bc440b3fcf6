"""An HTTP server of an issuer of tokens: its public keys, and its token endpoint (client credentials)."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs

from .ports import HOST

CLIENT_ID, CLIENT_SECRET = "service", "s3cr&t=1"
"""The only client that gets tokens."""


def basic(secret: str) -> str:
    return f"Basic {base64.b64encode(f'{CLIENT_ID}:{secret}'.encode()).decode()}"


class IssuerServer:
    """Use as ``with IssuerServer(document) as server``. ``document`` and ``status`` may be changed."""

    def __init__(
        self, document: bytes, issue: Callable[[], str] | None = None, key: Path | None = None
    ) -> None:
        """``issue`` makes the tokens of the token endpoint; ``key``: serve by https with it."""
        self.document = document
        self.status = 200
        self.fetches = 0
        self.tokens_issued = 0
        self.scopes: list[str] = []
        self.accepted = {basic(CLIENT_SECRET)}
        """The values of the header Authorization that get a token."""
        self._issue = issue
        self._server = ThreadingHTTPServer((HOST, 0), self._handler())
        self._scheme = "http"
        if key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def keys_url(self) -> str:
        return f"{self._scheme}://{HOST}:{self._server.server_address[1]}/keys"

    @property
    def token_url(self) -> str:
        return f"{self._scheme}://{HOST}:{self._server.server_address[1]}/token"

    def __enter__(self) -> IssuerServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.fetches += 1
                self._answer(outer.status, outer.document)

            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                if self.headers["Authorization"] not in outer.accepted or outer._issue is None:
                    self._answer(401, b'{"error":"invalid_client"}')
                    return
                assert body["grant_type"] == ["client_credentials"]
                outer.scopes += body.get("scope", [])
                outer.tokens_issued += 1
                token = {"access_token": outer._issue(), "token_type": "Bearer", "expires_in": 3600}
                self._answer(200, json.dumps(token).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
