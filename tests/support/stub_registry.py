"""A schema registry as far as clients need one: schemas by id, and those of a subject."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .ports import HOST


class StubRegistry:
    """`with StubRegistry() as registry: registry.add("orders-value", schema)`, which returns the id."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.schemas: list[str] = []
        self._kinds: list[str] = []
        self._references: list[list[dict[str, Any]]] = []
        self.requests: list[str] = []
        self.answers_with: int | None = None
        """The status of every answer; None to answer."""
        self.answer: bytes | None = None
        """What every answer has; None: what was asked for."""
        self.authorization: str | None = None
        """The header without which every answer is 401."""
        self._versions: dict[str, list[int]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.requests.append(self.path)
                self._answer(registry.find(self.path))

            def do_POST(self) -> None:
                registry.requests.append(f"POST {self.path}")
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(registry.posted(self.path, body))

            def _answer(self, said: dict[str, Any] | None) -> None:
                status = registry.answers_with or (200 if said is not None else 404)
                if registry.authorization not in (None, self.headers["Authorization"]):
                    status, said = 401, {"error_code": 401, "message": "Unauthorized"}
                body = registry.answer or json.dumps(said or {"error_code": 40403}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                if status == 302:
                    self.send_header("Location", registry.url)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._scheme = "http" if tls is None else "https"
        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"{self._scheme}://{HOST}:{self._server.server_address[1]}"

    def add(
        self,
        subject: str,
        schema: dict[str, Any] | str,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
    ) -> int:
        """Add a schema, of which a text need not be valid; `kind` as the registry names it."""
        self.schemas.append(schema if isinstance(schema, str) else json.dumps(schema))
        self._kinds.append(kind)
        self._references.append(references or [])
        self._versions.setdefault(subject, []).append(len(self.schemas))
        return len(self.schemas)

    def find(self, path: str) -> dict[str, Any] | None:
        match path.strip("/").split("/"):
            case ["schemas", "ids", number] if int(number) <= len(self.schemas):
                return self._said(int(number))
            case ["subjects", subject, "versions", version] if subject in self._versions:
                ids = self._versions[subject]
                number = ids[-1 if version == "latest" else int(version) - 1]
                return {"subject": subject, "id": number, **self._said(number)}
            case _:
                return None

    def posted(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """A schema to register, or to be looked up."""
        match path.strip("/").split("/"):
            case ["subjects", subject, *rest]:
                kind = body.get("schemaType", "AVRO")
                for number in self._versions.get(subject, []):
                    if (self.schemas[number - 1], self._kinds[number - 1]) == (body["schema"], kind):
                        return {"id": number}
                return {"id": self.add(subject, body["schema"], kind)} if rest == ["versions"] else None
            case _:
                return None

    def _said(self, number: int) -> dict[str, Any]:
        kind, references = self._kinds[number - 1], self._references[number - 1]
        # As Confluent's registry: the type of an Avro schema is left out, and so are references if there are
        # none.
        said = {"schema": self.schemas[number - 1]} | ({} if kind == "AVRO" else {"schemaType": kind})
        return said | ({"references": references} if references else {})

    def __enter__(self) -> StubRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
