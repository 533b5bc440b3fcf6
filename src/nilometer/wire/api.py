"""The interface of one version of one API, Kafka's or Nilometer's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from nilometer.wire.api_keys import AnyApiKey
from nilometer.wire.building import Message


class Api(Protocol):
    """One version of one API: builds, reads and writes its messages. Get it with ``messages.api``."""

    @property
    def key(self) -> AnyApiKey: ...
    @property
    def version(self) -> int: ...
    @property
    def request_type(self) -> type[Any]: ...
    @property
    def response_type(self) -> type[Any]: ...
    @property
    def flexible(self) -> bool:
        """Whether the request's header has tagged fields (KIP-482). ``flexible_response_header``: whether the
        response's header has."""
        ...

    @property
    def flexible_response_header(self) -> bool: ...

    def has(self, name: str) -> bool:
        """Return whether the response of this version has the nested type ``name``."""
        ...

    def response(self, **fields: object) -> Message: ...

    def make(self, name: str, /, **fields: object) -> Message:
        """Build a part of the response by its type: ``make("PartitionProduceResponse", index=0, ...)``."""
        ...

    def request(self, **fields: object) -> Message: ...

    def make_request(self, name: str, /, **fields: object) -> Message:
        """Build a part of the request by its type's name."""
        ...

    def read_request(self, body: bytes, position: int = 0) -> Message:
        """Decode the request at ``body[position:]``. Raises MalformedRequest."""
        ...

    def read_response(self, body: bytes, position: int = 0) -> Message:
        """Decode the response at ``body[position:]``. Raises MalformedResponse."""
        ...

    def write_request(self, request: Message) -> bytes: ...

    def write_response(self, response: Message) -> bytes: ...

    def response_slices(self, response: Message) -> Iterator[bytes]:
        """Yield what :meth:`write_response` returns in parts, each after a bounded amount of work."""
        ...
