"""Requests and responses: kio's schemas and Nilometer's own, behind one interface.

For every (API key, version) it has the message types, the header versions and the functions that read and
write them. Frames are passed as a whole.

Invariant: decoding any bytes returns a value or raises MalformedMessage, with memory proportional to the
frame.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from kio.serial import entity_reader

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message, build, milliseconds
from nilometer.wire.encoder import encode_slices, writer
from nilometer.wire.errors import (
    ErrorCode,
    MalformedMessage,
    MalformedRequest,
    MalformedResponse,
    UnsupportedVersion,
)
from nilometer.wire.later_versions import API_NAMES, message_type, nested_types, schema_module, versions_of
from nilometer.wire.own_apis import OWN_APIS, OWN_VERSIONS
from nilometer.wire.survey import skip_tagged_fields, survey

__all__ = [
    "Api",
    "ApiKey",
    "Message",
    "RequestHeader",
    "api",
    "body_position",
    "build",
    "decode_correlation_id",
    "decode_request",
    "decode_request_header",
    "decode_response",
    "encode_request",
    "encode_response",
    "encode_unsupported_api_versions",
    "milliseconds",
    "request_header",
    "response_header",
    "supported_versions",
]


class RequestHeader(msgspec.Struct, frozen=True, gc=False):
    """The header fields that every request has, in every version."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    size: int
    """Bytes up to and including the client id, without the tagged fields of a flexible header."""


def supported_versions(api_key: int) -> tuple[int, int]:
    """Return the lowest and highest version with a schema. Raises UnsupportedVersion for an unknown key."""
    if (own := OWN_VERSIONS.get(api_key)) is not None:
        return own
    versions = versions_of(API_NAMES.get(api_key, ""))
    if not versions:
        raise UnsupportedVersion(api_key, 0)
    return min(versions), max(versions)


@functools.cache
def api(api_key: int, version: int) -> Api:
    """Return the API of this key and version (cached). Raises UnsupportedVersion."""
    if (own := OWN_APIS.get((api_key, version))) is not None:
        return own
    if version not in versions_of(API_NAMES.get(api_key, "")):
        raise UnsupportedVersion(api_key, version)
    return KafkaApi(api_key, version)


class KafkaApi:
    """One version of one of Kafka's APIs, with kio's readers and Nilometer's writers. Implements ``Api``."""

    def __init__(self, key: int, version: int) -> None:
        self.key = ApiKey(key)
        self.version = version
        name = API_NAMES[key]
        self.request_type = message_type(name, version, "request")
        self.response_type = message_type(name, version, "response")
        self.flexible: bool = self.request_type.__flexible__
        self.flexible_response_header: bool = self.response_type.__header_schema__.__version__ > 0
        self._request_types = nested_types(vars(schema_module(name, version, "request")))
        self._response_types = nested_types(vars(schema_module(name, version, "response")))
        self._read_request = entity_reader(self.request_type)
        self._read_response = entity_reader(self.response_type)
        self._write_request = writer(self.request_type)
        self._write_response = writer(self.response_type)

    def __repr__(self) -> str:
        return f"KafkaApi({self.key.name}, {self.version})"

    def has(self, name: str) -> bool:
        return name in self._response_types

    def response(self, **fields: object) -> Message:
        return build(self.response_type, **fields)

    def make(self, name: str, /, **fields: object) -> Message:
        return build(self._response_types[name], **fields)

    def request(self, **fields: object) -> Message:
        return build(self.request_type, **fields)

    def make_request(self, name: str, /, **fields: object) -> Message:
        return build(self._request_types[name], **fields)

    def read_request(self, body: bytes, position: int = 0) -> Message:
        return _read(MalformedRequest, self.request_type, self._read_request, body, position)

    def read_response(self, body: bytes, position: int = 0) -> Message:
        return _read(MalformedResponse, self.response_type, self._read_response, body, position)

    def write_request(self, request: Message) -> bytes:
        return b"".join(encode_slices(self._write_request, request))

    def write_response(self, response: Message) -> bytes:
        return b"".join(encode_slices(self._write_response, response))

    def response_slices(self, response: Message) -> Iterator[bytes]:
        return encode_slices(self._write_response, response)


def decode_request_header(frame: bytes) -> RequestHeader:
    """Decode only the header, without tagged fields. Raises MalformedRequest."""
    if len(frame) < 10:
        raise MalformedRequest(f"request of {len(frame)} bytes is too short for a header")
    api_key, version, correlation_id, length = _REQUEST_START.unpack_from(frame)
    size = 10 + max(length, 0)
    if len(frame) < size or length < -1:
        raise MalformedRequest(f"client id of {length} bytes in a request of {len(frame)}")
    try:
        client_id = None if length < 0 else str(frame[10:size], "utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("client id is not UTF-8") from None
    return RequestHeader(api_key, version, correlation_id, client_id, size)


def decode_request(frame: bytes) -> tuple[RequestHeader, Message]:
    """Decode a request frame, given without its length.

    Raises MalformedRequest, or UnsupportedVersion: then :func:`decode_request_header` still works.
    """
    header = decode_request_header(frame)
    codec = api(header.api_key, header.api_version)
    return header, codec.read_request(frame, body_position(header, frame))


def body_position(header: RequestHeader, frame: bytes) -> int:
    """Return where the request's body begins. Raises MalformedRequest, UnsupportedVersion."""
    if not api(header.api_key, header.api_version).flexible:
        return header.size
    return _after_tagged_fields(MalformedRequest, frame, header.size)


def encode_request(correlation_id: int, client_id: str | None, request: Message) -> bytes:
    """Encode a request as a frame with its 4-byte length. The request's type has API key and version."""
    codec = api(request.__api_key__, request.__version__)
    header = request_header(codec, correlation_id, client_id)
    body = codec.write_request(request)
    return b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body))


def request_header(codec: Api, correlation_id: int, client_id: str | None) -> bytes:
    name = (
        b"\xff\xff" if client_id is None else len(encoded := client_id.encode()).to_bytes(2, "big") + encoded
    )
    return b"".join(
        (
            codec.key.to_bytes(2, "big"),
            codec.version.to_bytes(2, "big"),
            correlation_id.to_bytes(4, "big", signed=True),
            name,
            b"\x00" if codec.flexible else b"",
        )
    )


def encode_response(correlation_id: int, api_key: int, version: int, response: Message) -> bytes:
    """Encode a response as a frame with its 4-byte length."""
    codec = api(api_key, version)
    header = response_header(codec, correlation_id)
    body = codec.write_response(response)
    return b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body))


def response_header(codec: Api, correlation_id: int) -> bytes:
    return correlation_id.to_bytes(4, "big", signed=True) + (
        b"\x00" if codec.flexible_response_header else b""
    )


def decode_response(api_key: int, version: int, frame: bytes) -> tuple[int, Message]:
    """Decode a response frame, given without its length; return (correlation id, response).

    Raises MalformedResponse.
    """
    codec = api(api_key, version)
    correlation_id = decode_correlation_id(frame)
    position = 4
    if codec.flexible_response_header:
        position = _after_tagged_fields(MalformedResponse, frame, position)
    return correlation_id, codec.read_response(frame, position)


def decode_correlation_id(frame: bytes) -> int:
    """Return the correlation id of a response frame, by which its request is found."""
    if len(frame) < 4:
        raise MalformedResponse(f"response of {len(frame)} bytes is too short for a header")
    return int.from_bytes(frame[:4], "big", signed=True)


def encode_unsupported_api_versions(correlation_id: int, ranges: Mapping[int, tuple[int, int]]) -> bytes:
    """Encode the response to an ApiVersions request of an unknown version, always in version 0 (KIP-511).

    ``ranges``: API key → (lowest, highest version), from which the client can choose.
    """
    codec = api(ApiKey.API_VERSIONS, 0)
    keys = tuple(
        codec.make("ApiVersion", api_key=key, min_version=low, max_version=high)
        for key, (low, high) in sorted(ranges.items())
    )
    response = codec.response(error_code=ErrorCode.unsupported_version, api_keys=keys)
    return encode_response(correlation_id, ApiKey.API_VERSIONS, 0, response)


def _read(
    failure: type[MalformedMessage],
    message_type: type[Any],
    read: Callable[[bytes, int], tuple[Any, int]],
    body: bytes,
    position: int,
) -> Message:
    try:
        if (cleaned := survey(message_type, body, position)) is not None:
            body, position = cleaned, 0
        return read(body, position)[0]
    except BaseException as error:
        raise as_malformed(error, failure, message_type) from error


def as_malformed(
    error: BaseException, failure: type[MalformedMessage], message_type: type[Any]
) -> MalformedMessage:
    """Return what a reader of ``message_type`` raises for ``error``. Raises what is not about the bytes."""
    if isinstance(error, MalformedMessage):
        return failure(error.message)
    if isinstance(error, Exception):
        return failure(f"{message_type.__name__}: {error}")
    if type(error).__name__ != _PANIC:
        raise error
    return failure(f"{message_type.__name__}: the reader panicked, {error}")


def _after_tagged_fields(failure: type[MalformedMessage], frame: bytes, position: int) -> int:
    """Return the position after the header's tagged fields, which are ignored."""
    try:
        return skip_tagged_fields(frame, position, len(frame))
    except (MalformedMessage, IndexError) as error:
        raise failure(f"header: {error}") from None


_PANIC = "PanicException"
"""The class name of a panic in compiled Rust code. It is not an ``Exception``, and cannot be imported."""
_REQUEST_START = struct.Struct(">hhih")
"""API key, version, correlation id, length of the client id."""
