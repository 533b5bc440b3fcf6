"""Reads schemas from a registry over HTTP, by the interface of Confluent's that others have too."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final, cast

from nilometer.pipeline.errors import PipelineError

TIMEOUT_S: Final = 10.0
_NOT_FOUND: Final = 404


class UnusableSchema(Exception):
    """The registry answers, and what it has is no Avro schema; the message says why."""


class _NotFound(Exception):
    pass


class SchemaRegistry:
    """The schemas of one registry. A schema's id always means the same schema, so each is read once."""

    def __init__(self, url: str) -> None:
        """``url`` such as ``http://127.0.0.1:8081``. Raises PipelineError if it is none of HTTP."""
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise PipelineError(f"--set registry={url}: it is a URL such as http://127.0.0.1:8081")
        self._url = url.rstrip("/")
        self._by_id: dict[int, str] = {}

    def by_id(self, schema_id: int) -> str:
        """Return the text of an Avro schema. Raises UnusableSchema, PipelineError."""
        if schema_id not in self._by_id:
            try:
                self._by_id[schema_id] = self._schema(f"/schemas/ids/{schema_id}")
            except _NotFound:
                raise UnusableSchema("the registry does not have it") from None
        return self._by_id[schema_id]

    def latest(self, topic: str) -> str:
        """Return the newest schema of a topic's values, subject ``<topic>-value``. Raises PipelineError."""
        subject = f"{topic}-value"
        try:
            return self._schema(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        except _NotFound:
            raise PipelineError(f"the registry {self._url} has no subject {subject}") from None
        except UnusableSchema as error:
            raise PipelineError(f"the newest schema of {subject} in {self._url}: {error}") from None

    def _schema(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self._url}{path}", timeout=TIMEOUT_S) as answer:
                said: Any = json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _NOT_FOUND:
                raise _NotFound from None
            raise PipelineError(f"the registry answers {error.code} to {self._url}{path}") from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise PipelineError(f"the registry {self._url} does not answer: {error!r}") from None
        if not isinstance(said, dict):
            raise PipelineError(f"the registry's answer to {self._url}{path} is no JSON object")
        found = cast("dict[str, Any]", said)
        kind, text = found.get("schemaType", "AVRO"), found.get("schema")
        if kind != "AVRO" or not isinstance(text, str):
            raise UnusableSchema(f"it is of type {kind}, and only AVRO is read")
        return text
