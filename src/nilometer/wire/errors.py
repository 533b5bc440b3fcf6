"""Kafka's error codes, and exceptions that carry one.

Knows the numbers of the protocol and what they mean to a client (retriable or not). Never touches
bytes. Every exception that can end a request is a :class:`KafkaError`: a handler turns it into the
error code of its response and needs no table of its own.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = [
    "RETRIABLE",
    "CorruptBatch",
    "ErrorCode",
    "InvalidRecord",
    "KafkaError",
    "MalformedMessage",
    "MalformedRequest",
    "MalformedResponse",
    "UnsupportedMagic",
    "UnsupportedVersion",
    "is_retriable",
]

RETRIABLE: frozenset[ErrorCode] = frozenset(code for code in ErrorCode if code.retriable)


def is_retriable(code: ErrorCode) -> bool:
    """Whether the same request may succeed later, possibly after fresh metadata."""
    return code in RETRIABLE


class KafkaError(Exception):
    """An error with a code of the protocol."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name.upper()}: {message}" if message else code.name.upper())
        self.code = code
        self.message = message

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE


class MalformedMessage(KafkaError):
    """Bytes that do not match their schema."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_request, message)


class MalformedRequest(MalformedMessage):
    """A client sent it. The position in its connection's stream can no longer be trusted."""


class MalformedResponse(MalformedMessage):
    """A broker sent it."""


class UnsupportedVersion(KafkaError):
    """An API key or a version of it that the schemas here do not know."""

    def __init__(self, api_key: int, version: int) -> None:
        super().__init__(ErrorCode.unsupported_version, f"API key {api_key} version {version}")
        self.api_key = api_key
        self.version = version


class CorruptBatch(KafkaError):
    """A record batch whose bytes contradict themselves: length, CRC, counts, compressed data."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.corrupt_message, message)


class UnsupportedMagic(KafkaError):
    """A message of the formats before record batches (magic 0 and 1), or of a newer one."""

    def __init__(self, magic: int) -> None:
        super().__init__(
            ErrorCode.unsupported_for_message_format, f"record format with magic {magic}, only 2 is supported"
        )
        self.magic = magic


class InvalidRecord(KafkaError):
    """A batch that is undamaged but violates a rule for its sender."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_record, message)
