"""A client of a schema registry, by Confluent's interface over HTTP, which others have too.

An id always means the same schema, so schemas that were read are kept, up to :data:`SCHEMAS_KEPT`. Methods
wait for the registry: an event loop calls them in another thread. Several threads may call them.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from nilometer.wire.errors import ErrorCode, KafkaError

# The five bytes before a key or value that has a schema in a registry: 0, and the id of the schema. Pure.

HEADER: Final = struct.Struct(">bi")
NOT_FRAMED: Final = "it does not begin with the 5 bytes of a schema registry"


class BadValue(ValueError):
    """The bytes are no value of the schema; the message says why."""


def schema_id(data: bytes) -> int | None:
    """Return the id of the schema that ``data`` names; None if it names none."""
    if len(data) < HEADER.size:
        return None
    first, number = HEADER.unpack_from(data)
    return number if first == 0 and number >= 0 else None


def framed(number: int, content: bytes) -> bytes:
    """Return what is written for the schema with this id."""
    return HEADER.pack(0, number) + content


AVRO, JSON_SCHEMA, PROTOBUF = "AVRO", "JSON", "PROTOBUF"
"""The types of schemas, as a registry names them."""
TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
SCHEMAS_KEPT: Final = 1_000
REFERENCES_MAX: Final = 100
"""How many other schemas one schema may refer to, those of its references included."""
TOO_MANY_REFERENCES: Final = f"it refers to more than {REFERENCES_MAX} schemas"

USER, TOKEN = "basic.auth.user.info", "bearer.auth.token"
AUTHORITIES, CERTIFICATE = "ssl.ca.location", "ssl.certificate.location"
KEY, KEY_PASSWORD = "ssl.key.location", "ssl.key.password"
SETTINGS: Final = (USER, TOKEN, AUTHORITIES, CERTIFICATE, KEY, KEY_PASSWORD)
"""The settings of a client, as confluent-kafka names them. Files are PEM."""

_NOT_FOUND, _TOO_MANY_REQUESTS, _SERVER_ERROR = 404, 429, 500
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"


class RegistryError(KafkaError):
    """The registry does not answer, or refuses a request."""


class UnusableSchema(RegistryError):
    """The registry answers, and has no such schema, or one that cannot be used; the message says why."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_record, message)


class Schema(msgspec.Struct, frozen=True):
    kind: str
    """``AVRO``, ``JSON`` or ``PROTOBUF``."""
    text: str
    references: tuple[tuple[str, Schema], ...] = ()
    """The schemas that it refers to, by the names it has for them."""


def references_of(schema: Schema) -> list[tuple[str, Schema]]:
    """Return the schemas that it refers to, and before each of them those that this one refers to; each once
    for each of its names, on however many ways it is reached."""
    found: dict[tuple[str, int], tuple[str, Schema]] = {}
    _collect(schema, found)
    return list(found.values())


def _collect(schema: Schema, found: dict[tuple[str, int], tuple[str, Schema]]) -> None:
    for name, one in schema.references:
        key = name, id(one)
        if key not in found:
            _collect(one, found)
            found[key] = name, one


class _NotFound(Exception):
    pass


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes an error of a redirect: credentials are for one address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class SchemaRegistry:
    """``SchemaRegistry("https://127.0.0.1:8081", {"ssl.ca.location": "authority.pem"})``.

    The URL may have a user and a password: ``https://user:password@host:8081``. The settings are
    ``basic.auth.user.info`` (``user:password``), ``bearer.auth.token``, and for TLS ``ssl.ca.location``,
    ``ssl.certificate.location``, ``ssl.key.location`` and ``ssl.key.password``.
    """

    def __init__(
        self, url: str, settings: Mapping[str, str] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Raises RegistryError for a URL or a setting that cannot be used."""
        self._timeout_s = timeout_s
        settings = settings or {}
        self.url, user = _address(url)
        """The address without user and password."""
        for key in settings:
            if key not in SETTINGS:
                raise _bad_setting(f"{key} is none of {', '.join(SETTINGS)}")
        self._authorization = _authorization(settings.get(USER, user), settings.get(TOKEN))
        self._opener = urllib.request.build_opener(
            _NoRedirect, urllib.request.HTTPSHandler(context=_tls(settings))
        )
        self._lock = threading.Lock()
        self._kept: OrderedDict[int | tuple[str, int], Schema] = OrderedDict()

    def knows(self, schema_id: int) -> bool:
        """Return whether :meth:`by_id` need not ask the registry."""
        return schema_id in self._kept

    def by_id(self, schema_id: int) -> Schema:
        """Return a schema, with those that it refers to. Raises RegistryError, UnusableSchema."""
        return self._read(schema_id, f"/schemas/ids/{schema_id}", [])

    def newest(self, subject: str) -> tuple[int, Schema]:
        """Return the id of a subject's newest schema, and the schema. Raises RegistryError, UnusableSchema.

        It is asked for each time.
        """
        try:
            found = self._ask(f"{_subject(subject)}/versions/latest")
        except _NotFound:
            raise UnusableSchema(f"the registry {self.url} has no subject {subject}") from None
        return self._id(found, subject), self._schema(found, [])

    def register(self, subject: str, schema: Schema) -> int:
        """Add a schema to a subject unless it has it, and return its id. Raises RegistryError."""
        return self._id_of(f"{_subject(subject)}/versions", subject, schema)

    def look_up(self, subject: str, schema: Schema) -> int:
        """Return the id of a schema that a subject has. Raises RegistryError, UnusableSchema."""
        return self._id_of(_subject(subject), subject, schema)

    # --- helpers

    def _read(self, key: int | tuple[str, int], path: str, referred: list[str]) -> Schema:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        try:
            found = self._schema(self._ask(path), referred)
        except _NotFound:
            raise UnusableSchema("the registry does not have it") from None
        with self._lock:
            self._kept[key] = found
            if len(self._kept) > SCHEMAS_KEPT:
                self._kept.popitem(last=False)
        return found

    def _schema(self, found: Mapping[str, Any], referred: list[str]) -> Schema:
        """Return the schema of an answer. ``referred`` has the names that led to it, and those beside it."""
        kind, text = found.get("schemaType") or AVRO, found.get("schema")
        if not isinstance(kind, str) or not isinstance(text, str):
            raise UnusableSchema("the registry's answer has no schema")
        references: list[tuple[str, Schema]] = []
        for one in cast("list[Any]", found.get("references") or []):
            match one:
                case {"name": str() as name, "subject": str() as subject, "version": int() as version}:
                    referred.append(name)
                    if len(referred) > REFERENCES_MAX:
                        raise UnusableSchema(TOO_MANY_REFERENCES)
                    path = f"{_subject(subject)}/versions/{version}"
                    references.append((name, self._read((subject, version), path, referred)))
                case _:
                    raise UnusableSchema("a reference to another schema has no name, subject and version")
        schema = Schema(kind, text, tuple(references))
        if len(references_of(schema)) > REFERENCES_MAX:  # of schemas that were read before, too
            raise UnusableSchema(TOO_MANY_REFERENCES)
        return schema

    def _id_of(self, path: str, subject: str, schema: Schema) -> int:
        body = {"schema": schema.text} | ({} if schema.kind == AVRO else {"schemaType": schema.kind})
        try:
            return self._id(self._ask(path, body), subject)
        except _NotFound:
            raise UnusableSchema(
                f"subject {subject} of the registry {self.url} does not have this schema"
            ) from None

    def _id(self, found: Mapping[str, Any], subject: str) -> int:
        number = found.get("id")
        if not isinstance(number, int):
            raise UnusableSchema(f"the answer of the registry {self.url} for subject {subject} has no id")
        return number

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Return the JSON object that the registry answers with. Raises _NotFound, RegistryError."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Accept": f"{_CONTENT_TYPE}, application/json", "Content-Type": _CONTENT_TYPE},
        )
        if self._authorization is not None:
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                content = answer.read(ANSWER_BYTES_MAX + 1)
                said: Any = json.loads(content) if len(content) <= ANSWER_BYTES_MAX else None
        except urllib.error.HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    raise _NotFound from None
                raise self._refused(error, path) from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else repr(error)
            raise RegistryError(
                ErrorCode.network_exception, f"the registry {self.url} does not answer: {reason}"
            ) from None
        if not isinstance(said, dict):
            raise RegistryError(
                ErrorCode.invalid_request,
                f"the registry's answer to {self.url}{path} is no JSON object of at most "
                f"{ANSWER_BYTES_MAX // 2**20} MiB",
            )
        return cast("dict[str, Any]", said)

    def _refused(self, error: urllib.error.HTTPError, path: str) -> RegistryError:
        may_pass = error.code == _TOO_MANY_REQUESTS or error.code >= _SERVER_ERROR
        code = ErrorCode.network_exception if may_pass else ErrorCode.invalid_request
        return RegistryError(code, f"the registry answers {error.code} to {self.url}{path}{_said(error)}")


def _said(error: urllib.error.HTTPError) -> str:
    """Return the message in the body of an answer, after a colon; empty if there is none."""
    try:
        said: Any = json.loads(error.read(ANSWER_BYTES_MAX))
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return ""
    message = cast("dict[str, Any]", said).get("message") if isinstance(said, dict) else None
    return f": {message[:500]}" if isinstance(message, str) else ""


def _subject(name: str) -> str:
    return f"/subjects/{urllib.parse.quote(name, safe='')}"


def _bad_setting(message: str) -> RegistryError:
    return RegistryError(ErrorCode.invalid_config, message)


def _address(url: str) -> tuple[str, str | None]:
    """Return a URL without its user, and ``user:password``. Raises RegistryError."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _bad_setting("a registry has a URL such as http://127.0.0.1:8081")
    user, at, place = parts.netloc.rpartition("@")
    address = urllib.parse.urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    return address, urllib.parse.unquote(user) if at else None


def _authorization(user: str | None, token: str | None) -> str | None:
    """Return the header of requests. Raises RegistryError."""
    if token is not None:
        return f"Bearer {token}"
    if user is None:
        return None
    if ":" not in user:
        raise _bad_setting(f"{USER} is of the form user:password")
    return f"Basic {base64.b64encode(user.encode()).decode()}"


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Raises RegistryError."""
    try:
        context = ssl.create_default_context(cafile=settings.get(AUTHORITIES))
        if CERTIFICATE in settings:
            context.load_cert_chain(settings[CERTIFICATE], settings.get(KEY), settings.get(KEY_PASSWORD))
    except OSError as error:  # of files, and of what they hold
        files = ", ".join(
            f"{key}={settings[key]}" for key in (AUTHORITIES, CERTIFICATE, KEY) if key in settings
        )
        raise _bad_setting(f"{files}: {error}") from None
    return context
