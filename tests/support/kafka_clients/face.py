"""What a test asks of any client: write records, read a topic to its end.

Options a test may name: `codec`, `acks` ("0", "1", "all"), `idempotent`, `max_request_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

TIMEOUT_S = 30.0


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
    """A record as a client gave it."""

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
    """A client's error, by the protocol's name."""

    code: str


class KafkaClient(Protocol):
    name: str

    def write(
        self, topic: str, records: Sequence[Written], options: Options = ...
    ) -> list[tuple[int, int] | None]:
        """Sends all and waits for all: (partition, offset) of each, None where the client does not tell."""
        ...

    def read(self, topic: str, partitions: int) -> list[Read]:
        """Every record from the start to the end that the topic has now, by partition and offset."""
        ...

    def close(self) -> None: ...


def ordered(records: Iterable[Read]) -> list[Read]:
    """By partition; within one, as the client gave them, so that going back is not hidden."""
    return sorted(records, key=lambda record: record.partition)


def constant_case(class_name: str) -> str:
    """`MessageSizeTooLargeError` as the protocol writes it."""
    words = class_name.removesuffix("Error")
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in words).lstrip("_")
