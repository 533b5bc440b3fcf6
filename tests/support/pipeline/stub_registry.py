"""A schema registry as far as readers need one: schemas by id, and the newest of a subject."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..ports import HOST


class StubRegistry:
    """`with StubRegistry() as registry: registry.add("orders-value", schema)`, which returns the id."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self._kinds: list[str] = []
        self.requests: list[str] = []
        self.answers_with: int | None = None
        """The status of every answer; None to answer."""
        self._newest: dict[str, int] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests.append(self.path)
                said = registry.find(self.path)
                status = registry.answers_with or (200 if said is not None else 404)
                body = json.dumps(said or {"error_code": 40403}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    def add(self, subject: str, schema: dict[str, Any] | str, kind: str = "AVRO") -> int:
        """Add a schema, of which a text need not be valid; `kind` as the registry names it."""
        self.schemas.append(schema if isinstance(schema, str) else json.dumps(schema))
        self._kinds.append(kind)
        self._newest[subject] = len(self.schemas)
        return len(self.schemas)

    def find(self, path: str) -> dict[str, Any] | None:
        match path.strip("/").split("/"):
            case ["schemas", "ids", number] if int(number) <= len(self.schemas):
                return self._said(int(number))
            case ["subjects", subject, "versions", "latest"] if subject in self._newest:
                number = self._newest[subject]
                return {"subject": subject, "id": number, **self._said(number)}
            case _:
                return None

    def _said(self, number: int) -> dict[str, Any]:
        kind = self._kinds[number - 1]
        # As Confluent's registry: the type of an Avro schema is left out.
        return {"schema": self.schemas[number - 1]} | ({} if kind == "AVRO" else {"schemaType": kind})

    def __enter__(self) -> StubRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
