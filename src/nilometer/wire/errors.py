"""Kafka's error codes, which of them are retriable, and exceptions with an error code.

Every exception that is the outcome of a request is a :class:`KafkaError`: a handler copies its code into the
response.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

__all__ = [
    "NONE",
    "RETRIABLE",
    "BatchTooLarge",
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

NONE: Final = ErrorCode.none
"""No error, for code that runs for each request: to look a member up in its enumeration costs as much as a
call."""
RETRIABLE: frozenset[ErrorCode] = frozenset(code for code in ErrorCode if code.retriable)


def is_retriable(code: ErrorCode) -> bool:
    """Return whether the same request may succeed later, possibly after a metadata refresh."""
    return code in RETRIABLE


class KafkaError(Exception):
    """An error with an error code of Kafka's protocol."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name.upper()}: {message}" if message else code.name.upper())
        self.code = code
        self.message = message

    @property
    def name(self) -> str:
        """Kafka's name of the error, as in ``UNKNOWN_TOPIC_OR_PARTITION``."""
        return self.code.name.upper()

    @property
    def retriable(self) -> bool:
        return self.code in RETRIABLE


class MalformedMessage(KafkaError):
    """The bytes of a message do not match its schema."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_request, message)


class MalformedRequest(MalformedMessage):
    """A request does not match its schema. The connection must be closed."""


class MalformedResponse(MalformedMessage):
    """A response of a broker does not match its schema."""


class UnsupportedVersion(KafkaError):
    """There is no schema for this API key or version."""

    def __init__(self, api_key: int, version: int) -> None:
        super().__init__(
            ErrorCode.unsupported_version, f"API key {api_key} version {version} is not supported"
        )
        self.api_key = api_key
        self.version = version


class CorruptBatch(KafkaError):
    """A record batch is damaged: wrong length, CRC, counts or compressed data."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.corrupt_message, message)


class BatchTooLarge(CorruptBatch):
    """A record batch decompresses to more bytes than its reader takes: to this reader it is unreadable.

    A leader that does not take it from a producer says MESSAGE_TOO_LARGE instead: Java's producer then sends
    the records again in smaller batches.
    """


class UnsupportedMagic(KafkaError):
    """The records have the old message format (magic 0 or 1) or an unknown newer one."""

    def __init__(self, magic: int) -> None:
        super().__init__(
            ErrorCode.unsupported_for_message_format,
            f"record format with magic {magic}; only magic 2 is supported",
        )
        self.magic = magic


class InvalidRecord(KafkaError):
    """A batch is undamaged, but its sender may not send it."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.invalid_record, message)
