"""The interface of all clients: write records, read a topic to its end.

Options a test may name: `codec`, `acks` ("0", "1", "all"), `idempotent`, `max_request_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Written:
    """A record to write. `partition=None` leaves the choice to the client's partitioner."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a client returned it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    codec: str = "none"
    acks: str = "all"
    idempotent: bool = True
    max_request_bytes: int | None = None


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """A client's error; ``code`` is the protocol's name of the error."""

    code: str


class KafkaClient(Protocol):
    name: str

    def write(
        self, topic: str, records: Sequence[Written], options: Options = ...
    ) -> list[tuple[int, int] | None]:
        """Send all records and wait; return (partition, offset) of each, None if the client has none."""
        ...

    def read(self, topic: str, partitions: int) -> list[Read]:
        """Return every record of the topic up to its present end, by partition and offset."""
        ...

    def close(self) -> None: ...


def ordered(records: Iterable[Read]) -> list[Read]:
    """Sort records by partition only, so that a wrong order within a partition stays visible."""
    return sorted(records, key=lambda record: record.partition)


def constant_case(class_name: str) -> str:
    """Return a class name such as `MessageSizeTooLargeError` as the protocol's `MESSAGE_SIZE_TOO_LARGE`."""
    words = class_name.removesuffix("Error")
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in words).lstrip("_")
