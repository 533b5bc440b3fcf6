"""The interface of one version of one API, whether Kafka's schemas or Nilometer's define its messages."""

from __future__ import annotations

from typing import Any, Protocol

from nilometer.wire.api_keys import AnyApiKey
from nilometer.wire.building import Message


class Api(Protocol):
    """Get it from :func:`nilometer.wire.messages.api`, which keeps one of each."""

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
        """Whether the request's header has tagged fields; ``flexible_response_header``: the response's."""
        ...

    @property
    def flexible_response_header(self) -> bool: ...

    def has(self, name: str) -> bool:
        """Whether the response of this version knows the nested type ``name``."""
        ...

    def response(self, **fields: object) -> Message: ...

    def make(self, name: str, /, **fields: object) -> Message:
        """A part of the response, by its type's name (``make("PartitionProduceResponse", index=0, ...)``)."""
        ...

    def request(self, **fields: object) -> Message: ...

    def make_request(self, name: str, /, **fields: object) -> Message:
        """A part of the request, by its type's name."""
        ...

    def read_request(self, body: bytes, position: int = 0) -> Message:
        """Raises MalformedRequest."""
        ...

    def read_response(self, body: bytes, position: int = 0) -> Message:
        """Raises MalformedResponse."""
        ...

    def write_request(self, request: Message) -> bytes: ...

    def write_response(self, response: Message) -> bytes: ...
